/** Messages that have arrived and not been taken. It is bounded by the windows of the sockets that fill it. */
import { ShoalError } from '../base/errors.ts';
import { Fifo } from '../base/collections/fifo.ts';
import type { Msg } from './msg.ts';
import type { RemoteSocket } from './remote/remote-socket.ts';

interface Arrived {
  readonly msg: Msg;
  readonly from: RemoteSocket;
  readonly epoch: number;
  readonly bytes: number;
}

interface Receiver {
  resolve(msg: Msg): void;
  reject(error: unknown): void;
}

export class Inbox {
  readonly #arrived = new Fifo<Arrived>();
  #receivers: Receiver[] = [];
  readonly #watchers = new Set<() => void>();
  #end: ShoalError | undefined;

  /** A message can be taken, or the socket has ended, which `receive` then says. */
  get ready(): boolean {
    return this.#arrived.length > 0 || this.#end !== undefined;
  }

  /** Nothing comes any more, and everything that came has been taken. */
  get ended(): boolean {
    return this.#end !== undefined && this.#arrived.length === 0;
  }

  push(from: RemoteSocket, msg: Msg, bytes: number): void {
    const receiver = this.#receivers.shift();
    if (receiver !== undefined) {
      from.taken(from.epoch, bytes);
      receiver.resolve(msg);
      return;
    }
    this.#arrived.push({ msg, from, epoch: from.epoch, bytes });
    if (this.#watchers.size > 0) for (const watcher of this.#watchers) watcher();
  }

  /** @throws the error that ended the socket, when everything has been taken. */
  take(): Msg | undefined {
    const msg = this.#next();
    if (msg === undefined && this.#end !== undefined) throw this.#end;
    return msg;
  }

  /** Not an async function: one that returns a promise settles three microtasks after it. */
  receive(signal: AbortSignal | undefined): Promise<Msg> {
    if (signal?.aborted) return Promise.reject(aborted(signal));
    const msg = this.#next();
    if (msg !== undefined) return Promise.resolve(msg);
    if (this.#end !== undefined) return Promise.reject(this.#end);
    return new Promise<Msg>((resolve, reject) => {
      if (signal === undefined) {
        this.#receivers.push({ resolve, reject });
        return;
      }
      const onAbort = (): void => {
        this.#receivers = this.#receivers.filter((each) => each !== receiver);
        reject(aborted(signal));
      };
      const settle =
        <T>(then: (value: T) => void) =>
        (value: T): void => {
          signal.removeEventListener('abort', onAbort);
          then(value);
        };
      const receiver = { resolve: settle(resolve), reject: settle<unknown>(reject) };
      signal.addEventListener('abort', onAbort, { once: true });
      this.#receivers.push(receiver);
    });
  }

  /** Calls back whenever it may have become ready. @returns what ends that. */
  watch(callback: () => void): () => void {
    this.#watchers.add(callback);
    return () => this.#watchers.delete(callback);
  }

  /** Ends it: messages that have arrived can still be taken, then `error` is thrown. */
  end(error: ShoalError): void {
    if (this.#end !== undefined) return;
    this.#end = error;
    for (const receiver of this.#receivers.splice(0)) receiver.reject(error);
    for (const watcher of this.#watchers) watcher();
  }

  #next(): Msg | undefined {
    const arrived = this.#arrived.shift();
    arrived?.from.taken(arrived.epoch, arrived.bytes);
    return arrived?.msg;
  }
}

function aborted(signal: AbortSignal): ShoalError {
  return new ShoalError('aborted', 'receive was cancelled by its signal', { operation: 'receive', cause: signal.reason });
}
