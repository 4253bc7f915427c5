/** A store in another process, reached over TCP. Requests are pipelined: any number may be in flight up to a bound, each
 *  with an id; the server answers `get` and `wait` when the keys are there, everything else at once.
 *  Deadlines are the client's: it cancels the wait, and the server answers with the keys that are missing.
 *  It must not know what is stored. Wire format: store-wire.ts; handshake: base/auth.ts. */
import type { Socket } from 'node:net';
import { Handshake, partyName } from '../base/auth.ts';
import { SecureStream } from '../base/secure/secure-stream.ts';
import { claimOf, type LinkSettings } from '../base/secure/link.ts';
import { setServedTimer, type Clock } from '../base/clock.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { exhaustion, isExhaustion } from '../base/exhaustion.ts';
import type { Random } from '../base/random.ts';
import type { LinkKeys } from '../base/secure/records.ts';
import { retry } from '../base/connections/retry.ts';
import { keysOf } from './apply-operation.ts';
import { abortedWait, timedOutWait } from './key-waits.ts';
import { checkOperation, defaultStoreLimits, defaultStoreTimeoutMs, type StoreLimits } from './store-limits.ts';
import { storePurpose } from './store-server.ts';
import { systemNetwork, type StreamNetwork } from '../fabric/stream/stream-network.ts';
import { decodeResult, encodeRequest, FrameReader, type StoreRequest } from './store-wire.ts';
import { closedStore, isImmediate, Store, type StoreOperation, type StoreResult, type StoreWait, type WaitingOperation } from './store.ts';

export interface StoreClientOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** Default: the system's. */
  readonly network?: StreamNetwork | undefined;
  readonly host: string;
  readonly port: number;
  readonly secret: Uint8Array;
  /** Whether connections that leave the host are encrypted. Default: they are. */
  readonly settings?: LinkSettings | undefined;
  readonly world: string;
  /** The server refuses another size than its own. Default: any. */
  readonly worldSize?: number;
  /** This client's rank; of a server or a launcher, `serverNumber` or `launcherNumber` of its index. */
  readonly rank: number;
  /** The rank that serves the store: errors name it. Default: no rank does. */
  readonly servedBy?: number | undefined;
  /** Timeout of waits that give none. Default 5 minutes. */
  readonly timeoutMs?: number;
  /** Ends the attempts to connect. Default 30 s. */
  readonly connectTimeoutMs?: number;
  /** Largest number of attempts to connect. Default: any. */
  readonly attemptsMax?: number;
  readonly signal?: AbortSignal;
  readonly limits?: Partial<StoreLimits>;
}

interface Pending {
  resolve(result: StoreResult): void;
  reject(error: ShoalError): void;
}

/** Time for connecting and authenticating, before another try. */
const attemptMs = 5000;
/** Many ranks may wait for one that starts late. */
const pauseMostMs = 1000;
/** Time in which the server may answer a cancelled wait; then the caller gets its error without the server's word. */
const cancelGraceMs = 1000;

export class StoreClient extends Store {
  readonly #socket: Socket;
  readonly #stream: SecureStream;
  readonly #options: StoreClientOptions;
  readonly #limits: StoreLimits;
  readonly #name: string;
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  #end: ShoalError | undefined;

  private constructor({ socket, rest, keys }: Dialled, options: StoreClientOptions) {
    super();
    this.#socket = socket;
    this.#stream = new SecureStream(socket, keys);
    this.#options = options;
    this.#limits = { ...defaultStoreLimits, ...options.limits };
    this.#name = nameOf(options);
    const reader = new FrameReader(this.#limits);
    const onData = (chunk: Uint8Array): void => {
      try {
        this.#stream.open(chunk, (bytes) => reader.push(bytes, (frame) => this.#onResult(frame)));
      } catch (error) {
        this.#lose(ShoalError.from(error, 'protocol'));
      }
    };
    socket.on('data', onData);
    socket.on('error', (error) => this.#lose(this.#lost(messageOf(error), error)));
    socket.on('close', () => this.#lose(this.#lost('the connection was closed')));
    socket.unref();
    socket.resume();
    if (rest.length > 0) onData(rest);
  }

  /** Tries until the server answers, `connectTimeoutMs` has passed or `attemptsMax` have failed.
   *  @throws ShoalError `timeout` with the address, the time spent and the last reason; `auth` or `config` when the server
   *          answers and refuses. */
  static async connect(options: StoreClientOptions): Promise<StoreClient> {
    const { clock, random, rank, servedBy, connectTimeoutMs = 30_000, attemptsMax = Infinity, signal } = options;
    const startMs = clock.now();
    const isFinal = (error: ShoalError): boolean => error.code === 'auth' || error.code === 'config' || isExhaustion(error);
    const outcome = await retry({ clock, random, timeoutMs: connectTimeoutMs, attemptsMax, signal, isFinal, pauseMostMs }, (stop) =>
      dial(options, stop),
    );
    if ('value' in outcome) return new StoreClient(outcome.value, options);
    const { why, error, attempts } = outcome;
    if (why === 'aborted') throw new ShoalError('aborted', `connecting to the ${nameOf(options)} was aborted`, { cause: signal?.reason });
    if (why === 'final') throw error;
    const message =
      `${partyName(rank)} could not reach the ${nameOf(options)} in ${Math.round(clock.now() - startMs)} ms (attempts: ${attempts}); last: ${error?.message ?? 'none'}. ` +
      'Is the process that serves it (the launcher or rank 0) running, and is the address right?';
    throw new ShoalError('timeout', message, {
      rank,
      peer: servedBy,
      operation: 'store connect',
      timeoutMs: connectTimeoutMs,
      cause: error,
    });
  }

  async start(operation: StoreOperation, wait?: StoreWait): Promise<StoreResult> {
    checkOperation(operation, this.#limits);
    return isImmediate(operation) ? this.#post(operation).answer : this.#wait(operation, wait);
  }

  async close(): Promise<void> {
    this.#lose(closedStore(this.#name));
  }

  /** A call that the server may answer late. */
  async #wait(operation: WaitingOperation, options: StoreWait = {}): Promise<StoreResult> {
    const { clock } = this.#options;
    const keys = keysOf(operation);
    const timeoutMs = options.timeoutMs ?? this.#options.timeoutMs ?? defaultStoreTimeoutMs;
    if (options.signal?.aborted) throw abortedWait(this.#name, keys, options.signal);
    const { id, answer } = this.#post(operation);
    const giveUp = (error: ShoalError): void => {
      const pending = this.#pending.get(id);
      this.#pending.delete(id);
      this.#setAlive();
      pending?.reject(error);
    };
    const cancel = (): void => {
      if (this.#pending.has(id)) this.#write(this.#takeId(), { op: 'cancel', target: id });
      timer.cancel();
      timer = setServedTimer(clock, cancelGraceMs, () => giveUp(this.#silent(timeoutMs)));
    };
    const aborted = (): ShoalError => abortedWait(this.#name, keys, options.signal);
    const abort = (): void => {
      cancel();
      // The server may have sent a queue's value already, which nobody else would get then.
      if (operation.op !== 'queuePop') giveUp(aborted());
    };
    let timer = clock.setTimer(timeoutMs, cancel, { keepAlive: true });
    options.signal?.addEventListener('abort', abort);
    try {
      const result = await answer;
      if (result.kind === 'missing') throw options.signal?.aborted ? aborted() : timedOutWait(this.#name, result.keys, timeoutMs);
      return result;
    } finally {
      timer.cancel();
      options.signal?.removeEventListener('abort', abort);
    }
  }

  #post(request: StoreRequest): { id: number; answer: Promise<StoreResult> } {
    if (this.#end !== undefined) throw this.#end;
    if (this.#pending.size >= this.#limits.maxPending) {
      throw new ShoalError('usage', `${this.#name}: more than ${this.#limits.maxPending} calls at once`);
    }
    const id = this.#takeId();
    const answer = new Promise<StoreResult>((resolve, reject) => this.#pending.set(id, { resolve, reject }));
    this.#setAlive();
    this.#write(id, request);
    return { id, answer };
  }

  #takeId(): number {
    const id = this.#nextId;
    this.#nextId = id === 0xffffffff ? 1 : id + 1;
    return this.#pending.has(id) ? this.#takeId() : id;
  }

  #write(id: number, request: StoreRequest): void {
    this.#stream.write(encodeRequest(id, request));
  }

  #onResult(frame: Uint8Array): void {
    const { id, message } = decodeResult(frame, this.#limits);
    const pending = this.#pending.get(id);
    // An aborted wait is answered too; nobody listens any more.
    if (pending === undefined) return;
    this.#pending.delete(id);
    this.#setAlive();
    if (message.kind === 'error') pending.reject(new ShoalError(message.code, message.message));
    else pending.resolve(message);
  }

  /** Only unanswered calls keep the process alive. */
  #setAlive(): void {
    if (this.#pending.size > 0) this.#socket.ref();
    else this.#socket.unref();
  }

  #silent(timeoutMs: number): ShoalError {
    const { rank, servedBy: peer } = this.#options;
    const message = `${this.#name} did not answer within ${timeoutMs} ms; the process that serves it is stopped or cannot be reached`;
    return new ShoalError('timeout', message, { rank, peer, operation: 'store', timeoutMs });
  }

  #lost(why: string, cause?: unknown): ShoalError {
    const { rank, servedBy: peer } = this.#options;
    const calls = this.#pending.size;
    const message = `${this.#name} was lost: ${why}; ${calls === 0 ? 'no call was' : `${calls} call${calls > 1 ? 's were' : ' was'}`} in flight. The process that serves it (the launcher or rank 0) ended`;
    return new ShoalError('peer-lost', message, { rank, peer, operation: 'store', cause });
  }

  #lose(error: ShoalError): void {
    if (this.#end !== undefined) return;
    this.#end = error;
    // Requests of this turn are still sent.
    this.#socket.uncork();
    this.#socket.destroy();
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const call of pending) call.reject(error);
  }
}

interface Dialled {
  readonly socket: Socket;
  readonly rest: Uint8Array;
  readonly keys?: LinkKeys;
}

/** One attempt: connect and authenticate before `stop`, within 5 s. */
function dial(options: StoreClientOptions, stop: AbortSignal): Promise<Dialled> {
  const { clock, host, port, secret, world, worldSize, rank, random, settings, network = systemNetwork } = options;
  return new Promise((resolve, reject) => {
    const socket = network.connect({ host, port, noDelay: true, keepAlive: true, keepAliveInitialDelay: 30_000 });
    let handshake: Handshake | undefined;
    const fail = (error: ShoalError): void => {
      finish();
      socket.destroy();
      reject(error);
    };
    const silent = (): void => fail(new ShoalError('timeout', 'no answer'));
    const timer = setServedTimer(clock, attemptMs, silent);
    const onError = (error: Error): void =>
      fail(
        exhaustion(partyName(options.rank), error, `connecting to the ${nameOf(options)}`) ??
          new ShoalError('peer-lost', messageOf(error), { cause: error }),
      );
    const onClose = (): void => fail(new ShoalError('peer-lost', 'the connection was closed during the handshake'));
    const onData = (chunk: Buffer): void => {
      try {
        const { send, done } = handshake!.push(chunk);
        if (send !== undefined) socket.write(send);
        if (done === undefined) return;
        finish();
        // Stops the flow until the client has its handlers, so that no byte falls between the two.
        socket.pause();
        socket.off('data', onData).off('error', onError).off('close', onClose);
        resolve({ socket, ...done });
      } catch (error) {
        const refusal = handshake?.refusal;
        if (refusal !== undefined) socket.write(refusal);
        fail(ShoalError.from(error));
      }
    };
    const finish = (): void => {
      timer.cancel();
      stop.removeEventListener('abort', silent);
    };
    stop.addEventListener('abort', silent);
    socket.on('error', onError).on('close', onClose).on('data', onData);
    socket.on('connect', () => {
      const link = claimOf(socket, settings);
      handshake = new Handshake({ role: 'dialer', secret, purpose: storePurpose, world, worldSize, rank, random, link });
      socket.write(handshake.start()!);
    });
  });
}

function nameOf({ host, port }: StoreClientOptions): string {
  return `store at tcp://${host.includes(':') ? `[${host}]` : host}:${port}`;
}
