/** Lets a thread be ended while it talks over ZeroMQ: the package ends the whole process when its thread is stopped in the
 *  midst of one of its calls, by `terminate` or because the process exits. Whoever ends the thread closes the gate first.
 *
 *      thread        enter ─▶ call ─▶ leave      enter ─▶ no
 *      its owner                 close ─────▶ (waits until it is outside) ─▶ terminate, or exit */
import { ShoalError } from '../base/errors.ts';
import { callback, checkArgument, describeValue } from '../base/schema.ts';

const callers = 0;
const closed = 1;
/** Time for a call to end. None takes long; the thread may not get a CPU. */
const callMs = 10_000;

/** The gate between a thread that talks over ZeroMQ and the one that ends it. Both have one over the same memory: the thread gives its gate
 *  to its `MessagingContext`, its owner closes the other one before `terminate`.
 *
 *      const gate = new ThreadGate();
 *      const worker = new Worker(script, { workerData: gate.memory });   // there: new ThreadGate(workerData)
 *      gate.close();
 *      await worker.terminate(); */
export class ThreadGate {
  /** The memory that the other thread's gate is made of. */
  readonly memory: SharedArrayBuffer;
  readonly #state: Int32Array;

  constructor(memory: SharedArrayBuffer = new SharedArrayBuffer(8)) {
    if (!(memory instanceof SharedArrayBuffer))
      throw new ShoalError('usage', `ThreadGate: the memory of another thread's gate is a SharedArrayBuffer, not ${describeValue(memory)}`);
    this.memory = memory;
    this.#state = new Int32Array(memory);
  }

  /** Before a call. False: the thread is about to end, there must be none. */
  enter(): boolean {
    Atomics.add(this.#state, callers, 1);
    if (Atomics.load(this.#state, closed) === 0) return true;
    this.leave();
    return false;
  }

  /** After a call for which `enter` was true. */
  leave(): void {
    Atomics.sub(this.#state, callers, 1);
    if (Atomics.load(this.#state, closed) !== 0) Atomics.notify(this.#state, callers);
  }

  /** One call, or several. @throws ShoalError `closed` instead. */
  pass<T>(call: () => T): T {
    checkArgument('pass: the call', call, callback);
    if (!this.enter()) throw new ShoalError('closed', 'this thread is about to be ended');
    try {
      return call();
    } finally {
      this.leave();
    }
  }

  /** Returns when the thread is outside; it never enters again. Blocks, so that it also serves when the process exits. */
  close(): void {
    Atomics.store(this.#state, closed, 1);
    for (let inside = Atomics.load(this.#state, callers); inside > 0; inside = Atomics.load(this.#state, callers)) {
      if (Atomics.wait(this.#state, callers, inside, callMs) === 'timed-out') return;
    }
  }
}
