/** Receives from one task, by rendezvous' protocol on a connection that the first of them wants. When it breaks, what has not come is asked
 *  for again over the next one; the sender gives again what was lost on the way. */
import { ShoalError } from '../../base/errors.ts';
import type { TensorCarrier } from '../../rendezvous/protocol/tensor-carrier.ts';
import type { SlotOutcome } from '../../rendezvous/protocol/tensor-carrier.ts';
import type { Cancel } from '../../rendezvous/table/rendezvous.ts';
import { nothingToCancel } from './tensor-channels.ts';
import { aborted, type RpcStats, type TensorSlot, type TensorSource } from './rpc.ts';

/** A request until it is answered, over however many connections. */
interface OpenReceive {
  readonly stepId: number;
  readonly keys: readonly string[];
  readonly receive: (outcomes: readonly SlotOutcome[]) => void;
  readonly fail: (cause: ShoalError) => void;
  cancel: Cancel;
}

export class LinkTensors implements TensorSource {
  readonly #task: string;
  readonly #stats: RpcStats;
  readonly #want: () => void;
  /** In the order in which they were asked. */
  readonly #open = new Set<OpenReceive>();
  #carrier: TensorCarrier | undefined;
  #end: ShoalError | undefined;

  /** @param want told that something waits for a connection, perhaps again; to be answered by `attach` or `fail`, not at once. */
  constructor(task: string, stats: RpcStats, want: () => void) {
    this.#task = task;
    this.#stats = stats;
    this.#want = want;
  }

  receive(stepId: number, keys: readonly string[], signal?: AbortSignal): Promise<readonly TensorSlot[]> {
    this.#stats.calls++;
    return new Promise((resolve, reject) => {
      let cancel = nothingToCancel;
      const onAbort = (): void => {
        cancel();
        reject(aborted(this.#task, signal));
      };
      const settled = (): void => signal?.removeEventListener('abort', onAbort);
      signal?.addEventListener('abort', onAbort, { once: true });
      // Who waits may be told before this returns.
      cancel = this.#ask(
        stepId,
        keys,
        (outcomes) => {
          settled();
          resolve(outcomes.map(slotOf));
        },
        (cause) => {
          settled();
          reject(cause);
        },
      );
    });
  }

  /** All are asked for in one turn: one message. Each is answered by itself. */
  receiveEach(items: readonly (readonly [number, string])[], onSlot: (index: number, slot: TensorSlot) => void): Promise<void> {
    this.#stats.calls++;
    return new Promise((resolve) => {
      let missing = items.length;
      const settle = (index: number, slot: TensorSlot): void => {
        onSlot(index, slot);
        if (--missing === 0) resolve();
      };
      items.forEach(([stepId, key], index) => {
        this.#ask(
          stepId,
          [key],
          ([outcome]) => settle(index, slotOf(outcome)),
          (cause) => settle(index, cause),
        );
      });
      if (missing === 0) resolve();
    });
  }

  // ── what becomes of the link ───────────────────────────────────────────────────────────────────────────────────

  /** There is a connection: everything that has not come is asked for over it. */
  attach(carrier: TensorCarrier): void {
    this.#carrier = carrier;
    for (const open of [...this.#open]) this.#start(open, carrier);
  }

  /** The connection is over; told before its carrier is. */
  detach(): void {
    this.#carrier = undefined;
    if (this.#open.size > 0) this.#want();
  }

  /** There will be no other connection. */
  fail(cause: ShoalError): void {
    this.#end ??= cause;
    this.#carrier = undefined;
    for (const open of [...this.#open]) this.#settle(open, () => open.fail(cause));
  }

  #ask(stepId: number, keys: readonly string[], receive: OpenReceive['receive'], fail: OpenReceive['fail']): Cancel {
    if (this.#end !== undefined) {
      fail(this.#end);
      return nothingToCancel;
    }
    const open: OpenReceive = { stepId, keys, receive, fail, cancel: nothingToCancel };
    this.#open.add(open);
    if (this.#carrier === undefined) this.#want();
    else this.#start(open, this.#carrier);
    return () => this.#settle(open, () => open.cancel());
  }

  #start(open: OpenReceive, carrier: TensorCarrier): void {
    const { stepId, keys } = open;
    // With its connection, a carrier fails what it was asked for: that is asked for again.
    const fail = (cause: ShoalError): void => {
      if (this.#carrier === carrier) this.#settle(open, () => open.fail(cause));
    };
    const receive = (outcomes: readonly SlotOutcome[]): void => {
      for (const outcome of outcomes) this.#stats.bytesReceived += bytesOf(outcome);
      this.#settle(open, () => open.receive(outcomes));
    };
    try {
      if (keys.length > 1) open.cancel = carrier.recvFused(stepId, keys, { receive, fail });
      else
        open.cancel = carrier.recv(stepId, keys[0], {
          receive: (value) => receive([{ value }]),
          // What the sender says of this tensor.
          fail,
        });
    } catch (thrown) {
      fail(ShoalError.from(thrown));
    }
  }

  #settle(open: OpenReceive, tell: () => void): void {
    if (this.#open.delete(open)) tell();
  }
}

function slotOf(outcome: SlotOutcome): TensorSlot {
  return 'cause' in outcome ? outcome.cause : outcome.value;
}

function bytesOf(outcome: SlotOutcome): number {
  const { data } = ('value' in outcome ? outcome.value : undefined) ?? {};
  return ArrayBuffer.isView(data) ? data.byteLength : 0;
}
