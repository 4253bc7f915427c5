/** The side of the workers: one per process, it aggregates its local workers, cuts and packs, orders by priority, and
 *  repeats what servers may have lost. A state machine; it must not know sockets or threads. */
import type { ShoalError } from '../base/errors.ts';
import type { Msg } from '../messaging/msg.ts';
import type { OptimizerSpec } from './optimizers/optimizer.ts';
import type { Done, InfoDone, InitEntry, RowsRequest, StubOptions, TransferRequest } from './stub-options.ts';

/** `worker` is a number among all workers, one of this process. Nothing throws: `done` gets the error; it may be called
 *  before the call returns. */
export class StubCore {
  readonly #options: StubOptions;

  constructor(options: StubOptions) {
    this.#options = options;
  }

  // ── connections ────────────────────────────────────────────────────────────────────────────────────────────────

  receive(msg: Msg): void {
    void msg;
    void this.#options;
  }

  /** A connection with a server of this stub's server group, by its number in the group, has been made (again). */
  serverUp(server: number): void {
    void server;
  }

  /** It is lost. Operations wait for `serverUp` within their deadlines. */
  serverDown(server: number, error: ShoalError): void {
    void server;
    void error;
  }

  // ── operations ─────────────────────────────────────────────────────────────────────────────────────────────────

  init(worker: number, entries: readonly InitEntry[], done: Done): void {
    void worker;
    void entries;
    void done;
  }

  /** Push, pull or both, of any number of keys, as one operation. */
  transfer(worker: number, request: TransferRequest, done: Done): void {
    void worker;
    void request;
    void done;
  }

  rowSparsePush(worker: number, request: RowsRequest, done: Done): void {
    void worker;
    void request;
    void done;
  }

  rowSparsePull(worker: number, request: RowsRequest, done: Done): void {
    void worker;
    void request;
    void done;
  }

  /** Of all workers of the job. */
  barrier(worker: number, done: Done): void {
    void worker;
    void done;
  }

  setOptimizer(worker: number, spec: OptimizerSpec, done: Done): void {
    void worker;
    void spec;
    void done;
  }

  /** `folder` as the servers see it. */
  saveState(worker: number, folder: string, done: Done): void {
    void worker;
    void folder;
    void done;
  }

  loadState(worker: number, folder: string, done: Done): void {
    void worker;
    void folder;
    void done;
  }

  info(worker: number, key: string, done: InfoDone): void {
    void worker;
    void key;
    void done;
  }

  /** This worker calls nothing any more; `done` when the servers know. With a reason, others who wait for it fail with it. */
  leave(worker: number, done: Done, reason?: ShoalError): void {
    void worker;
    void done;
    void reason;
  }

  /** A region of `values` is about to be freed: no value of a pending operation lies in it. */
  forgetRegion(region: number): void {
    void region;
  }

  /** Pending operations fail with the error. Idempotent. */
  close(error?: ShoalError): void {
    void error;
  }
}
