/** Which thread of a rank runs an operation of the host path that both could: whoever is first. The main thread leaves it to the
 *  comm thread at once, so that it runs whatever the main thread does next, and takes it back when it has to wait for it
 *  anyway: the data is in that thread's caches, and nobody must be woken.
 *
 *      open ─▶ comm
 *        └───▶ main ─▶ ended
 *                └───▶ comm     a message says where: a rank was late */

const open = 0;
const atComm = 1;
const atMain = 2;
const ended = 3;

export class HostPathClaim {
  readonly #state: Int32Array;

  /** @param memory of the other thread's claim on the same operation. Default: new. */
  constructor(memory = new SharedArrayBuffer(4)) {
    this.#state = new Int32Array(memory);
  }

  get memory(): SharedArrayBuffer {
    return this.#state.buffer as SharedArrayBuffer;
  }

  /** False: the other thread has it. */
  take(thread: 'main' | 'comm'): boolean {
    return Atomics.compareExchange(this.#state, 0, open, thread === 'main' ? atMain : atComm) === open;
  }

  /** The main thread has finished the operation. */
  end(): void {
    Atomics.store(this.#state, 0, ended);
  }

  get ended(): boolean {
    return Atomics.load(this.#state, 0) === ended;
  }

  get isAtMain(): boolean {
    return Atomics.load(this.#state, 0) === atMain;
  }
}
