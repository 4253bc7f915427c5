/** The socket of a worker, a server, or of a stub towards another process: connected to exactly one router. It owns an
 *  address, under which the router reaches it, and keeps what the router does not have yet. When the connection breaks
 *  it is made again, and both ends go on where they stopped. */
import { within } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { retry } from '../base/connections/retry.ts';
import {
  anyNumber,
  anyObject,
  anyText,
  bigInteger,
  checkArgument,
  checkFields,
  checkOptions,
  literal,
  noOptions,
  optionTable,
} from '../base/schema.ts';
import { checkAddress, formatAddress, type Address } from './address.ts';
import type { Pipe } from './backend.ts';
import { checkContext, type MessagingContext } from './context.ts';
import { socketLimits, type MessagingLimits } from './limits.ts';
import { RemoteSocket } from './remote/remote-socket.ts';
import { MessageSocket } from './message-socket.ts';
import { checkMsg, type Msg } from './msg.ts';
import { decodePacket, encodeError, PacketKind } from './remote/packet.ts';

/** A dealer's identity, and its ways. */
export interface DealerOptions {
  /** The address of this socket; no other living dealer of its router may have it. */
  readonly address: Address;
  /** Bounds of this socket. Default: the context's. */
  readonly limits?: Partial<MessagingLimits>;
  /** `one`: what is said is for one process. When its router closes, forgets this dealer or another process takes its place, the
   *  dealer ends with `peer-lost`, and what was on its way reaches nobody else. Default `any`. */
  readonly routers?: 'any' | 'one';
  /** The fate of messages when the connection breaks. `resume`: it is made again, and each message arrives once. `end`: neither side keeps
   *  messages for that; the dealer ends with `peer-lost`, and messages on their way are lost. For users that repeat themselves what
   *  matters, over another dealer. Default `resume`. */
  readonly breaks?: 'resume' | 'end';
}

/** Limits of the time for a connection. */
export interface ConnectOptions {
  /** Time in which the router must answer, in milliseconds. Default 10,000. */
  readonly timeoutMs?: number;
}

const dealerOptions = optionTable<DealerOptions>({
  address: bigInteger,
  limits: anyObject,
  routers: literal('any', 'one'),
  breaks: literal('resume', 'end'),
});
const connectOptions = optionTable<ConnectOptions>({ timeoutMs: anyNumber });

const defaultConnectMs = 10_000;
const pauseMostMs = 1000;

/** The socket of a worker or a server: connected to one router, which reaches it by its address. What it sends before the router answers
 *  waits, in order. A connection that is lost is made again, for `reconnectMs` at most, and both ends go on where they were.
 *
 *      const dealer = new Dealer(context, { address: makeAddress({ group: 0, id: 1, role: 0 }) });
 *      await dealer.connect(url); */
export class Dealer extends MessageSocket {
  /** Address of 64 bits under which the router reaches this dealer. */
  readonly address: Address;
  readonly #context: MessagingContext;
  readonly #limits: MessagingLimits;
  readonly #isOfOne: boolean;
  readonly #isBrief: boolean;
  /** The router that it is connected to. */
  readonly #router: RemoteSocket;
  readonly #stopped = new AbortController();
  #url: string | undefined;
  /** Counts calls of `connect`: what belongs to an earlier one stops. */
  #attempt = 0;
  #welcomed: { resolve(): void; reject(error: ShoalError): void } | undefined;
  #end: ShoalError | undefined;

  constructor(context: MessagingContext, options: DealerOptions) {
    checkContext('Dealer', context);
    checkFields('Dealer', options, dealerOptions);
    super();
    checkAddress(options.address);
    this.address = options.address;
    this.#context = context;
    this.#limits = socketLimits(context.limits, options.limits);
    this.#isBrief = options.breaks === 'end';
    this.#isOfOne = options.routers === 'one' || this.#isBrief;
    this.#router = new RemoteSocket({
      session: context.newSession(),
      own: options.address,
      address: undefined,
      limits: this.#limits,
      clock: context.clock,
      isBrief: this.#isBrief,
      deliver: (from, msg, bytes) => this.inbox.push(from, msg, bytes),
      onUndeliverable: (_, error) => this.#fail(error),
    });
  }

  override get internalId(): string {
    return `dealer at ${formatAddress(this.address)}${this.#url === undefined ? '' : ` towards ${this.#url}`}`;
  }

  /** The router answers at the moment. */
  get connected(): boolean {
    return this.#router.open;
  }

  /** Connects to a router's endpoint; resolves when the router has answered. Messages may be sent before. Called again,
   *  it moves to another endpoint, for instance of a router that was started anew.
   *  @throws ShoalError `timeout`, `auth`, `peer-lost`, `unsupported`, `usage`, `closed`. The dealer stays usable. */
  async connect(url: string, options: ConnectOptions = noOptions): Promise<void> {
    checkArgument('connect: url', url, anyText);
    checkOptions('connect', options, connectOptions);
    const { timeoutMs = defaultConnectMs } = options;
    this.#checkOpen();
    if (this.#isBrief && this.#attempt > 0)
      throw new ShoalError('usage', `${this.internalId} ends with its connection, and connects once; make another dealer`);
    const attempt = ++this.#attempt;
    this.#url = url;
    const previous = this.#router.pipe;
    this.#router.detach();
    if (previous !== undefined) await previous.close(0);
    const deadlineMs = this.#context.clock.now() + timeoutMs;
    const backend = await this.#context.backendOf(url);
    const pipe = await backend.connect(url, { timeoutMs, signal: this.#stopped.signal });
    if (attempt !== this.#attempt || this.#end !== undefined) {
      await pipe.close(0);
      throw this.#end ?? new ShoalError('aborted', `${this.internalId} was told to connect elsewhere`);
    }
    const welcomed = new Promise<void>((resolve, reject) => {
      this.#welcomed = { resolve, reject };
    });
    this.#attach(pipe, attempt);
    await within(this.#context.clock, Math.max(0, deadlineMs - this.#context.clock.now()), welcomed, () => undefined);
    if (this.#router.open || attempt !== this.#attempt) return;
    throw new ShoalError('timeout', `${this.internalId} had no answer within ${timeoutMs} ms; does a router listen there?`, { timeoutMs });
  }

  /** `msg.destination` says whom the router gives it to. */
  override send(msg: Msg): void {
    checkMsg(msg);
    this.#checkOpen();
    this.#router.enqueue(msg);
  }

  /** Resolves when `send` would take a message, or the dealer has ended, which `send` then says. */
  writable(): Promise<void> {
    return this.#router.room();
  }

  override flushed(): Promise<void> {
    return this.#router.flushed();
  }

  protected override async end(timeoutMs: number): Promise<number> {
    const failed = this.#end !== undefined;
    this.#end ??= new ShoalError('closed', `${this.internalId} is closed`);
    const { clock } = this.#context;
    const deadlineMs = clock.now() + timeoutMs;
    if (this.#router.pending > 0 && !failed) await within(clock, timeoutMs, this.#router.flushed(), () => undefined);
    this.#stopped.abort();
    this.#attempt++;
    const { pipe } = this.#router;
    if (this.#router.open) this.#router.sayGoodbye();
    const undelivered = this.#router.pending;
    this.#router.end(this.#end);
    this.inbox.end(this.#end);
    this.#welcomed?.reject(this.#end);
    await pipe?.close(Math.max(0, deadlineMs - clock.now()));
    return undelivered;
  }

  #attach(pipe: Pipe, attempt: number): void {
    const current = (): boolean => attempt === this.#attempt;
    pipe.setHandlers({
      onParts: (parts, pointers, release) => {
        if (!current()) return;
        try {
          this.#onParts(parts, pointers, release);
        } catch (thrown) {
          const error = ShoalError.from(thrown, 'protocol');
          pipe.send([encodeError(error)]);
          this.#fail(error);
        }
      },
      onClose: (error) => {
        if (current()) this.#onLost(error, attempt);
      },
    });
    this.#router.attach(pipe);
    this.#router.sayHello();
  }

  #onParts(parts: Uint8Array[], pointers: readonly Uint8Array[], release?: () => void): void {
    const packet = decodePacket(parts, { limits: this.#limits, pointers, release });
    switch (packet.kind) {
      case PacketKind.welcome:
        if (this.#router.open) return;
        if (this.#isOfOne && this.#router.isStranger(packet)) {
          this.#fail(new ShoalError('peer-lost', `the router of ${this.internalId} has forgotten it, or is another process by now`));
          return;
        }
        this.#router.greet(packet);
        this.#welcomed?.resolve();
        this.#welcomed = undefined;
        return;
      case PacketKind.reset:
        this.#greetAgain();
        return;
      case PacketKind.error:
        this.#fail(new ShoalError(packet.code, `router refused ${this.internalId}: ${packet.text}`));
        return;
      case PacketKind.goodbye:
        this.#router.onPacket({ ...packet, kind: PacketKind.credit });
        this.#router.forgetPeer();
        this.#onLost(new ShoalError('peer-lost', `the router of ${this.internalId} has closed`), this.#attempt, this.#isOfOne);
        return;
      case PacketKind.hello:
        throw new ShoalError('protocol', `${this.internalId} received a hello; it is connected to a dealer`);
      default:
        if (this.#router.onPacket(packet) === 'lost') this.#greetAgain();
    }
  }

  /** Messages are missing at one of the ends, or the router does not know this dealer. */
  #greetAgain(): void {
    if (!this.#isBrief || !this.#router.open) this.#router.sayHello();
    else this.#fail(new ShoalError('peer-lost', `${this.internalId} has lost messages with a connection`));
  }

  #onLost(lost: ShoalError, attempt: number, isOver = false): void {
    const pipe = this.#router.pipe;
    this.#router.detach();
    // Its packets are no longer heard; nothing depends on how long it takes to end.
    pipe?.close(0).catch(() => undefined);
    if (isOver || this.#isBrief || (lost.code !== 'peer-lost' && lost.code !== 'timeout')) {
      this.#fail(lost);
      return;
    }
    this.#reconnect(lost, attempt).catch((thrown: unknown) => this.#fail(ShoalError.from(thrown)));
  }

  async #reconnect(lost: ShoalError, attempt: number): Promise<void> {
    const { clock, random } = this.#context;
    const timeoutMs = this.#limits.reconnectMs;
    const url = this.#url!;
    const isCurrent = (): boolean => attempt === this.#attempt && this.#end === undefined;
    // Our keys were right: another program may have the port of a router that is down, or connections break in the handshake.
    const isFinal = ({ code }: ShoalError): boolean => code !== 'peer-lost' && code !== 'timeout' && code !== 'auth';
    const outcome = await retry(
      { clock, random, timeoutMs, signal: this.#stopped.signal, isFinal, pauseMostMs, begin: 'pause' },
      async (signal, leftMs) => {
        if (!isCurrent()) return undefined;
        const backend = await this.#context.backendOf(url);
        return backend.connect(url, { timeoutMs: Math.min(leftMs, defaultConnectMs), signal });
      },
    );
    if ('value' in outcome) {
      if (outcome.value !== undefined && isCurrent()) this.#attach(outcome.value, attempt);
      else await outcome.value?.close(0);
    } else if (isCurrent()) {
      const over = new ShoalError('peer-lost', `${this.internalId} could not reconnect within ${timeoutMs} ms: ${lost.message}`, {
        cause: lost,
      });
      this.#fail(outcome.why === 'final' ? outcome.error! : over);
    }
  }

  #fail(end: ShoalError): void {
    if (this.#end !== undefined) return;
    this.#end = end;
    this.#attempt++;
    this.#stopped.abort();
    const { pipe } = this.#router;
    this.#router.end(end);
    this.inbox.end(end);
    this.#welcomed?.reject(end);
    pipe?.close(0).catch(() => undefined);
  }

  #checkOpen(): void {
    if (this.#end !== undefined) throw this.#end;
  }
}
