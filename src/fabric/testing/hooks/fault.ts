/** Hook that makes a network misbehave on demand: delays and dropped connections, over any fabric. faulty-wire.ts damages bytes. Choices come from the given `Random`, so that a seed replays them. */
import type { Clock, Timer } from '../../../base/clock.ts';
import { ShoalError } from '../../../base/errors.ts';
import type { Random } from '../../../base/random.ts';
import type { Connection, ConnectionHandlers, Fabric, RemoteSpan, Span } from '../../fabric.ts';
import { Fifo } from '../../../base/collections/fifo.ts';
import { checkBacklog, defaultCloseTimeoutMs, defaultMaxQueuedBytes } from '../../limits.ts';
import { decorateFabric, ForwardingConnection } from './decorate.ts';

export interface FaultOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** Wait before each operation is posted, in order: a fixed time, or uniformly between two times. Default: none. */
  readonly delayMs?: number | readonly [from: number, to: number];
  /** The connection breaks at this operation (0 = the first), which is lost. Default: never. */
  readonly dropAt?: number;
  /** Bytes of messages that may wait in the hook. Default 64 MiB. */
  readonly maxQueuedBytes?: number;
}

export function faultFabric(inner: Fabric, options: FaultOptions): Fabric {
  return decorateFabric(inner, (connection) => new FaultyConnection(connection, options));
}

interface Delayed {
  readonly delayMs: number;
  readonly messageBytes: number;
  readonly bytes: number;
  run(): Promise<void>;
  resolve(done: Promise<void>): void;
  reject(error: ShoalError): void;
}

class FaultyConnection extends ForwardingConnection {
  readonly #options: FaultOptions;
  readonly #queue = new Fifo<Delayed>();
  #timer: Timer | undefined;
  #operations = 0;
  #bytes = 0;
  #messageBytes = 0;
  #closing: Promise<void> | undefined;
  #onDrained: (() => void) | undefined;
  #ended = false;

  constructor(inner: Connection, options: FaultOptions) {
    super(inner);
    this.#options = options;
  }

  override setHandlers(handlers: ConnectionHandlers): void {
    super.setHandlers({
      onMessage: (message) => handlers.onMessage(message),
      onImmediate: (immediate) => handlers.onImmediate(immediate),
      onClose: (error) => {
        this.#end(error ?? this.#closed());
        handlers.onClose(error);
      },
    });
  }

  override send(message: Uint8Array): Promise<void> {
    if (this.#options.delayMs === undefined) return this.#post(message.length, message.length, () => super.send(message));
    const copy = Uint8Array.from(message);
    return this.#post(copy.length, copy.length, () => super.send(copy));
  }

  override write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    return this.#post(source.bytes, 0, () => super.write(source, target, immediate));
  }

  override close(timeoutMs: number = defaultCloseTimeoutMs): Promise<void> {
    this.#closing ??= this.#drained(timeoutMs).then(() => super.close(timeoutMs));
    return this.#closing;
  }

  async #post(bytes: number, messageBytes: number, run: () => Promise<void>): Promise<void> {
    if (this.#closing !== undefined || this.#ended) throw this.#closed();
    const { dropAt, delayMs, random, maxQueuedBytes = defaultMaxQueuedBytes } = this.#options;
    if (this.#operations++ === dropAt) this.abort();
    if (delayMs === undefined) return run();
    checkBacklog(this.peer, { operations: this.#queue.length, bytes: this.#bytes, messageBytes: this.#messageBytes }, maxQueuedBytes);
    const wait = typeof delayMs === 'number' ? delayMs : delayMs[0] + random.next() * (delayMs[1] - delayMs[0]);
    return new Promise((resolve, reject) => {
      this.#queue.push({ delayMs: wait, messageBytes, bytes, run, resolve, reject });
      this.#bytes += bytes;
      this.#messageBytes += messageBytes;
      this.#timer ??= this.#startTimer();
    });
  }

  #startTimer(): Timer | undefined {
    const next = this.#queue.peek();
    if (next === undefined) {
      this.#onDrained?.();
      return undefined;
    }
    return this.#options.clock.setTimer(next.delayMs, () => {
      this.#queue.shift();
      this.#bytes -= next.bytes;
      this.#messageBytes -= next.messageBytes;
      next.resolve(next.run());
      this.#timer = this.#startTimer();
    });
  }

  #drained(timeoutMs: number): Promise<void> {
    if (this.#queue.length === 0) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = this.#options.clock.setTimer(timeoutMs, resolve, { keepAlive: true });
      this.#onDrained = () => {
        timer.cancel();
        resolve();
      };
    });
  }

  #end(error: ShoalError): void {
    this.#ended = true;
    this.#timer?.cancel();
    for (let next = this.#queue.shift(); next !== undefined; next = this.#queue.shift()) next.reject(error);
    this.#onDrained?.();
  }

  #closed(): ShoalError {
    return new ShoalError('closed', `connection to rank ${this.peer.rank} is closed`, { peer: this.peer.rank });
  }
}
