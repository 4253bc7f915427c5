/** An endpoint for one user of MPI in this process: opens MPI, and reports arrivals and completions. There may be any number of
 *  endpoints, in any thread; all share the MPI of the process. It must not know the meaning of messages or groups. */
import { must } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import { loadNative, nativeUnavailableReason, type Native, type NativeOptions } from '../memory/native.ts';
import { mpiEvents, type MpiEventBatch, type MpiHandle, type NativeMpi } from './native-mpi.ts';

/** The reason why this machine has no usable MPI, with the next step; undefined when it has one. */
export function mpiUnavailable(options: NativeOptions = { enabled: true }): string | undefined {
  const native = loadMpi(options);
  if (native === undefined) return nativeUnavailableReason(options);
  const reason = native.mpiUnavailable();
  return reason === ''
    ? undefined
    : `${reason}; install Open MPI (Debian: apt-get install openmpi-bin) and start the processes with mpirun`;
}

/** The addon, which has the functions for Open MPI beside all others. */
function loadMpi(options: NativeOptions): NativeMpi | undefined {
  return loadNative(options) as (Native & NativeMpi) | undefined;
}

/** Parts of messages below this size are copied when they are sent. */
const copiedBytes = 64 * 1024;
const closeMs = 1000;

export interface MpiPort {
  /** `kind` is 0…3 as it was sent; the bytes are the receiver's. */
  onMessage(peer: number, kind: number, bytes: Uint8Array): void;
  /** Called when a message that exceeds the port's size was dropped. */
  onOversize(peer: number): void;
}

/** A collective, with codes and buffers; see native/mpi_tasks.h. */
export interface MpiCollective {
  readonly group: number;
  readonly kind: number;
  readonly dtype: number;
  readonly op: number;
  readonly root: number;
  readonly input: Uint8Array;
  readonly output: Uint8Array;
  readonly inputCounts: readonly number[];
  readonly outputCounts: readonly number[];
}

interface Pending {
  /** Memory that MPI reads or writes until the operation is done. */
  readonly memory: readonly Uint8Array[];
  readonly onDone: (error: ShoalError | undefined) => void;
}

export class MpiEndpoint {
  readonly #native: NativeMpi;
  readonly #handle: MpiHandle;
  readonly #ports = new Map<number, MpiPort>();
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  #rank = 0;
  #size = 0;
  #opened: { resolve(): void; reject(error: ShoalError): void } | undefined;
  #failure: ShoalError | undefined;
  #closing = false;
  /** Called when MPI ended under its users. */
  onFailed: ((error: ShoalError) => void) | undefined;

  private constructor(native: NativeMpi) {
    this.#native = native;
    this.#handle = native.mpiOpen((events) => this.#onEvents(events));
  }

  /** Starts MPI in this process unless it runs already. The endpoint keeps the event loop alive: see `ref`.
   *  @throws ShoalError `unsupported` when this machine has no MPI that can be used, with the reason. */
  static async open(options: NativeOptions = { enabled: true }): Promise<MpiEndpoint> {
    const reason = mpiUnavailable(options);
    const native = loadMpi(options);
    if (reason !== undefined || native === undefined) throw new ShoalError('unsupported', `MPI cannot be used: ${reason}`);
    const endpoint = new MpiEndpoint(native);
    await new Promise<void>((resolve, reject) => {
      endpoint.#opened = { resolve, reject };
    });
    return endpoint;
  }

  /** Rank of this process in MPI's world. */
  get rank(): number {
    return this.#rank;
  }

  /** Number of processes in MPI's world. */
  get size(): number {
    return this.#size;
  }

  ref(on: boolean): void {
    if (!this.#closing) this.#native.mpiRef(this.#handle, on);
  }

  /** Directs messages for this port of the process, 0…2²¹−1, to `port`. @returns false when the port is taken. */
  claim(number: number, port: MpiPort, options: { bytesMax: number }): boolean {
    if (!this.#native.mpiClaim(this.#handle, number, options.bytesMax)) return false;
    this.#ports.set(number, port);
    return true;
  }

  release(number: number): void {
    if (this.#ports.delete(number) && !this.#closing) this.#native.mpiRelease(this.#handle, number);
  }

  /** Sends a message to a port of a process; between two processes all messages arrive in order. Large ones are not copied:
   *  `bytes` must not change until the receiver has them, or until `onDone`. `kind` is 0…3. */
  send(message: { peer: number; port: number; kind: number; bytes: Uint8Array }, onDone: (error: ShoalError | undefined) => void): void {
    const { peer, port, kind, bytes } = message;
    const copies = bytes.byteLength < copiedBytes;
    const id = this.#begin([bytes], onDone);
    if (!this.#closing) this.#native.mpiSend(this.#handle, id, peer, port * 4 + kind, bytes, copies);
  }

  /** Makes a communicator of these ranks of MPI's world, in this order; collective over them. `group` is this endpoint's name for it. */
  createGroup(group: number, ranks: readonly number[]): Promise<void> {
    return new Promise((resolve, reject) => {
      const id = this.#begin([], (error) => (error === undefined ? resolve() : reject(error)));
      this.#native.mpiGroup(this.#handle, id, group, int32Bytes(ranks));
    });
  }

  freeGroup(group: number): void {
    if (!this.#closing) this.#native.mpiFreeGroup(this.#handle, group);
  }

  /** Starts a collective of a group. All ranks of a group start its collectives in the same order. */
  collective(call: MpiCollective, onDone: (error: ShoalError | undefined) => void): void {
    const { group, kind, dtype, op, root, input, output, inputCounts, outputCounts } = call;
    const id = this.#begin([input, output], onDone);
    const [ins, outs] = [int32Bytes(inputCounts), int32Bytes(outputCounts)];
    this.#native.mpiCollective(this.#handle, id, group, kind, dtype, op, root, input, output, ins, outs);
  }

  /** Stops all callbacks. Operations under way go on, and their memory is kept until they end. Idempotent. */
  close(): void {
    if (this.#closing) return;
    for (const port of [...this.#ports.keys()]) this.release(port);
    this.ref(false);
    this.#closing = true;
    this.#closeWhenIdle();
  }

  #closeWhenIdle(): void {
    if (this.#pending.size === 0 || this.#failure !== undefined) this.#native.mpiClose(this.#handle, closeMs);
  }

  #begin(memory: readonly Uint8Array[], onDone: Pending['onDone']): number {
    const id = this.#nextId++;
    const failure = this.#failure ?? (this.#closing ? new ShoalError('closed', 'this endpoint of MPI is closed') : undefined);
    if (failure === undefined) this.#pending.set(id, { memory, onDone });
    else queueMicrotask(() => onDone(failure));
    return id;
  }

  #onEvents(events: MpiEventBatch): void {
    for (let at = 0; at < events.length; at += 4) {
      const [kind, a, b, what] = [events[at] as number, events[at + 1] as number, events[at + 2] as number, events[at + 3]];
      switch (kind) {
        case mpiEvents.message:
          this.#ports.get(b >> 2)?.onMessage(a, b & 3, what as Uint8Array);
          break;
        case mpiEvents.done:
          this.#done(a, what as string);
          break;
        case mpiEvents.oversize:
          this.#ports.get(b >> 2)?.onOversize(a);
          break;
        case mpiEvents.opened:
          [this.#rank, this.#size] = [a, b];
          this.#opened?.resolve();
          break;
        default:
          this.#fail(what as string);
      }
    }
  }

  #done(id: number, text: string): void {
    const { onDone } = must(this.#pending.get(id), () => `MPI finished ${id}, which was started`);
    this.#pending.delete(id);
    onDone(text === '' ? undefined : new ShoalError('system', `MPI: ${text}`));
    if (this.#closing) this.#closeWhenIdle();
  }

  #fail(why: string): void {
    this.#failure = new ShoalError('unsupported', `MPI cannot be used: ${why}`);
    this.#opened?.reject(this.#failure);
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const { onDone } of pending) onDone(this.#failure);
    if (this.#closing) this.#closeWhenIdle();
    else this.onFailed?.(this.#failure);
  }
}

function int32Bytes(numbers: readonly number[]): Uint8Array {
  return new Uint8Array(Int32Array.from(numbers).buffer);
}
