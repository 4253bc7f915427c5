/** Where the comm side runs, as the main thread sees it: a worker thread, or the same thread for tests and simulation.
 *
 *      main thread                         comm thread
 *        post(command) ───── port ─────────▶ handle
 *        drain / onEvent ◀── port ────────── emit, then events += 1 and notify      (waitSync sleeps on `events`) */
import { MessageChannel, receiveMessageOnPort, Worker, type MessagePort, type WorkerOptions } from 'node:worker_threads';
import { isShoalError, messageOf, ShoalError } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import { builtEntry } from '../../base/package-root.ts';
import type { CommCore } from './comm-core.ts';
import type { Command, CommEvent, WorldPlan } from '../engine/comm-protocol.ts';

/** What the comm thread makes is gone at once. Node's default lets 48 MiB of that pile up in each process before it looks. */
const resourceLimits = { maxYoungGenerationSizeMb: 4 };

export interface CommHost {
  post(command: Command): void;
  /** Delivers what has arrived, now, without returning to the event loop. */
  drain(): void;
  /** Blocks until something arrives, at most `timeoutMs`; false when this host cannot block. */
  block(timeoutMs: number): boolean;
  /** Pending work keeps the process alive. */
  keepAlive(on: boolean): void;
  /** Ends the comm side; nothing is delivered afterwards. */
  terminate(): Promise<void>;
}

export interface CommHostHandlers {
  onEvent(event: CommEvent): void;
  /** The comm side is gone without having been asked. */
  onLost(error: ShoalError): void;
}

/** What the worker receives. */
export interface CommWorkerData {
  readonly plan: WorldPlan;
  readonly port: MessagePort;
  /** Int32: count of events posted. */
  readonly events: SharedArrayBuffer;
}

/** The comm thread. */
export class WorkerHost implements CommHost {
  readonly #who: string;
  readonly #worker: Worker;
  readonly #port: MessagePort;
  readonly #events = new Int32Array(new SharedArrayBuffer(4));
  readonly #handlers: CommHostHandlers;
  #seen = 0;
  #ended = false;

  constructor(plan: WorldPlan, handlers: CommHostHandlers) {
    this.#handlers = handlers;
    const { port1, port2 } = new MessageChannel();
    this.#port = port1;
    const workerData: CommWorkerData = { plan, port: port2, events: this.#events.buffer };
    // No execArgv: loaders and inspectors of the main thread are not for the comm thread.
    this.#who = `rank ${plan.rank}`;
    this.#worker = this.#start({ workerData, transferList: [port2], execArgv: [], name: 'shoal-comm', resourceLimits });
    this.#worker.on('error', (error) => this.#lost(this.#failed(error)));
    this.#worker.on('exit', (code) => this.#lost(new ShoalError('system', `the comm thread ended with code ${code}`)));
    port1.on('message', (event: CommEvent) => this.#deliver(event));
  }

  post(command: Command): void {
    this.#port.postMessage(command);
  }

  drain(): void {
    if (Atomics.load(this.#events, 0) === this.#seen) return;
    for (let next = receiveMessageOnPort(this.#port); next !== undefined; next = receiveMessageOnPort(this.#port)) {
      this.#deliver(next.message as CommEvent);
    }
  }

  block(timeoutMs: number): boolean {
    Atomics.wait(this.#events, 0, this.#seen, timeoutMs);
    return true;
  }

  keepAlive(on: boolean): void {
    if (on) {
      this.#port.ref();
      this.#worker.ref();
    } else {
      this.#port.unref();
      this.#worker.unref();
    }
  }

  async terminate(): Promise<void> {
    this.#ended = true;
    this.#port.close();
    await this.#worker.terminate();
  }

  #deliver(event: CommEvent): void {
    this.#seen = (this.#seen + 1) | 0;
    if (!this.#ended) this.#handlers.onEvent(event);
  }

  /** @throws ShoalError `out-of-memory` when the system has no more threads, descriptors or memory for it. */
  #start(options: WorkerOptions): Worker {
    try {
      return new Worker(builtEntry('group/thread/comm-worker.js'), options);
    } catch (thrown) {
      throw isShoalError(thrown) ? thrown : this.#failed(thrown);
    }
  }

  #failed(thrown: unknown): ShoalError {
    const ranOut = exhaustion(this.#who, thrown, 'running its comm thread');
    return ranOut ?? new ShoalError('system', `the comm thread failed: ${messageOf(thrown)}`, { cause: thrown });
  }

  #lost(error: ShoalError): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#handlers.onLost(error);
  }
}

/** The comm side on the calling thread. Nothing can block for it. */
export class InlineHost implements CommHost {
  #core: CommCore | undefined;
  readonly #handlers: CommHostHandlers;

  constructor(create: (emit: (event: CommEvent) => void) => CommCore, handlers: CommHostHandlers) {
    this.#handlers = handlers;
    // Events are delivered in a later turn, as from a thread: never inside the call that caused them.
    this.#core = create((event) => queueMicrotask(() => this.#core && this.#handlers.onEvent(event)));
    void this.#core.start();
  }

  post(command: Command): void {
    queueMicrotask(() => this.#core?.handle(command));
  }

  drain(): void {}

  block(): boolean {
    return false;
  }

  keepAlive(): void {}

  terminate(): Promise<void> {
    this.#core = undefined;
    return Promise.resolve();
  }
}
