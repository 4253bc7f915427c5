/** The socket every dealer connects to: it receives from all of them and sends to each by the destination address of
 *  the message. Where an address is it learns: a dealer introduces itself, and every message says who sent it.
 *
 *    dealer 1 ─┐                 ┌─ remote socket of address 1 ── pipe
 *    dealer 2 ─┼─▶ router ─ routes ─ remote socket of address 2 ── pipe
 *              ┘                 └─ remote socket of address 9 (nobody yet): buffers, bounded, in order
 *
 *  One that is slow, stopped or dead fills its own queue only. When it comes back under the same address, also as a new
 *  process, it gets what waited for it. */
import { within } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { anyList, anyObject, anyText, callback, checkArgument, checkOptions, noOptions, optionTable } from '../base/schema.ts';
import { checkAddress, formatAddress, type Address } from './address.ts';
import type { Listener, Pipe } from './backend.ts';
import { checkContext, type MessagingContext } from './context.ts';
import { socketLimits, type MessagingLimits } from './limits.ts';
import { RemoteSocket } from './remote/remote-socket.ts';
import { MessageSocket } from './message-socket.ts';
import { checkMsg, type Msg } from './msg.ts';
import { decodePacket, encodeControl, encodeError, noCounters, PacketKind, type Packet } from './remote/packet.ts';

/** A dealer came or went. */
export interface PeerEvent {
  /** The dealer's; undefined when the connection ended before the dealer had said it. */
  readonly address: Address | undefined;
  /** `connected`: it has introduced itself, also after a break. `left`: it was closed. `lost`: its connection broke; what is sent to it
   *  waits. `refused`: what it sent was against the protocol or the limits. */
  readonly state: 'connected' | 'left' | 'lost' | 'refused';
  /** The reason, for `lost` and `refused`. */
  readonly error?: ShoalError;
}

/** The addresses of a router, its bounds and its listeners. */
export interface RouterOptions {
  /** Addresses this router itself answers for. When given, messages to other addresses are forwarded without passing
   *  `receive`; otherwise `receive` returns every message and the owner forwards with `send`. */
  readonly addresses?: readonly Address[];
  /** Bounds of this socket. Default: the context's. */
  readonly limits?: Partial<MessagingLimits>;
  /** Told of peers that come and go. */
  readonly onPeer?: (event: PeerEvent) => void;
  /** A message that was forwarded, or had been accepted by `send`, cannot be delivered. */
  readonly onUndeliverable?: (msg: Msg, error: ShoalError) => void;
}

const routerOptions = optionTable<RouterOptions>({ addresses: anyList, limits: anyObject, onPeer: callback, onUndeliverable: callback });

/** The socket of a stub or a server that many dealers connect to: it receives from all and sends to each by the message's destination.
 *  Messages for an address that nobody has yet wait for it, in order and within the limits.
 *
 *      const router = new Router(context);
 *      await router.bind('ipc:///tmp/stub');
 *      for await (const msg of router) answer(msg); */
export class Router extends MessageSocket {
  readonly #context: MessagingContext;
  readonly #options: RouterOptions;
  readonly #limits: MessagingLimits;
  readonly #own: ReadonlySet<Address> | undefined;
  readonly #listeners: Listener[] = [];
  /** Dealers by their own address, or by the destination of what waits for one. */
  readonly #dealers = new Map<Address, RemoteSocket>();
  /** Other addresses that were seen behind a dealer. */
  readonly #routes = new Map<Address, RemoteSocket>();
  /** The dealer of each pipe, once it has said hello. */
  readonly #pipes = new Map<Pipe, RemoteSocket | undefined>();
  /** Pipes whose hello is for an address that another pipe has: they say it again. */
  readonly #asked = new WeakSet<Pipe>();
  #end: ShoalError | undefined;
  /** Its connections have been told to end. */
  #isOver = false;

  constructor(context: MessagingContext, options: RouterOptions = noOptions) {
    checkContext('Router', context);
    checkOptions('Router', options, routerOptions);
    super();
    options.addresses?.forEach(checkAddress);
    this.#context = context;
    this.#options = options;
    this.#limits = socketLimits(context.limits, options.limits);
    this.#own = options.addresses === undefined ? undefined : new Set(options.addresses);
  }

  override get internalId(): string {
    return `router at ${this.#listeners.map(({ url }) => url).join(', ') || 'nowhere yet'}`;
  }

  /** Addresses of the dealers that are connected now. */
  get peers(): Address[] {
    return [...this.#dealers].filter(([, dealer]) => dealer.open).map(([address]) => address);
  }

  /** Listens at an endpoint; several, also of several kinds, may be bound.
   *  @returns what dealers connect to: `tcp://127.0.0.1:*` becomes the real port.
   *  @throws ShoalError `usage`, `system` when it is taken, `unsupported`, `closed`. */
  async bind(url: string): Promise<string> {
    checkArgument('bind: url', url, anyText);
    this.#checkOpen();
    const backend = await this.#context.backendOf(url);
    const listener = await backend.listen(url, (pipe) => this.#onPipe(pipe));
    if (this.#end !== undefined) {
      await listener.close();
      throw this.#end;
    }
    this.#listeners.push(listener);
    return listener.url;
  }

  /** To the dealer of `msg.destination`. When none has connected yet, it waits for it.
   *  @throws ShoalError `out-of-memory` when too much waits there already, `closed`, `usage`. */
  override send(msg: Msg): void {
    checkMsg(msg);
    this.#checkOpen();
    const { destination } = msg;
    const dealer = this.#routes.get(destination) ?? this.#dealers.get(destination) ?? this.#addDealer(destination);
    dealer.enqueue(msg);
  }

  /** Resolves when `send` to this destination would take a message, or the router has ended, which `send` then says. */
  writable(destination: Address): Promise<void> {
    checkAddress(destination);
    const dealer = this.#routes.get(destination) ?? this.#dealers.get(destination);
    return dealer === undefined ? Promise.resolve() : dealer.room();
  }

  /** Whoever has this address will not come back, and what waits for it goes. If it does come, it is new. */
  forget(address: Address): void {
    checkAddress(address);
    const dealer = this.#dealers.get(address);
    if (dealer === undefined) return;
    this.#dealers.delete(address);
    for (const [behind, route] of this.#routes) if (route === dealer) this.#routes.delete(behind);
    const { pipe } = dealer;
    dealer.end(new ShoalError('peer-lost', `${formatAddress(address)} was given up`));
    if (pipe === undefined) return;
    // It says hello again, and is welcomed by a session that does not know it.
    this.#pipes.set(pipe, undefined);
    pipe.send([encodeControl('reset', noCounters)]);
  }

  override async flushed(): Promise<void> {
    await Promise.all([...this.#dealers.values()].map((dealer) => dealer.flushed()));
  }

  protected override async end(timeoutMs: number): Promise<number> {
    const end = new ShoalError('closed', `${this.internalId} is closed`);
    this.#end = end;
    const { clock } = this.#context;
    const deadlineMs = clock.now() + timeoutMs;
    const dealers = [...this.#dealers.values()];
    // Nobody who is not connected now will be in time.
    const waiting = dealers.filter((dealer) => dealer.open && dealer.pending > 0);
    const flushed = Promise.all(waiting.map((dealer) => dealer.flushed()));
    if (waiting.length > 0) await within<unknown>(clock, timeoutMs, flushed, () => undefined);
    this.inbox.end(end);
    for (const dealer of dealers) if (dealer.open) dealer.sayGoodbye();
    const undelivered = dealers.reduce((sum, dealer) => sum + dealer.pending, 0);
    const leftMs = Math.max(0, deadlineMs - clock.now());
    const pipes = [...this.#pipes.keys()];
    this.#isOver = true;
    this.#pipes.clear();
    for (const dealer of dealers) dealer.end(end);
    await Promise.all(pipes.map((pipe) => pipe.close(leftMs)));
    await Promise.all(this.#listeners.map((listener) => listener.close()));
    return undelivered;
  }

  // ── pipes ──────────────────────────────────────────────────────────────────────────────────────────────────────

  #onPipe(pipe: Pipe): void {
    if (this.#isOver) {
      // Whoever comes again at once finds nobody; another router may listen here soon.
      pipe.close(0).catch(() => undefined);
      return;
    }
    this.#pipes.set(pipe, undefined);
    pipe.setHandlers({
      onParts: (parts, pointers, release) => {
        if (!this.#pipes.has(pipe)) return;
        try {
          this.#onParts(pipe, parts, pointers, release);
        } catch (thrown) {
          this.#refuse(pipe, ShoalError.from(thrown, 'protocol'));
        }
      },
      onClose: (error) => this.#dropPipe(pipe, { state: 'lost', error }),
    });
  }

  #onParts(pipe: Pipe, parts: Uint8Array[], pointers: readonly Uint8Array[], release?: () => void): void {
    const packet = decodePacket(parts, { limits: this.#limits, pointers, release });
    if (packet.kind === PacketKind.hello) {
      this.#onHello(pipe, packet);
      return;
    }
    const dealer = this.#pipes.get(pipe);
    if (dealer === undefined) {
      // Its hello was lost with an earlier connection, or with an earlier router.
      if (packet.kind === PacketKind.data || packet.kind === PacketKind.credit) pipe.send([encodeControl('reset', noCounters)]);
      return;
    }
    switch (packet.kind) {
      case PacketKind.goodbye:
        dealer.onPacket({ ...packet, kind: PacketKind.credit });
        dealer.forgetPeer();
        this.#dropPipe(pipe, { state: 'left' });
        pipe.close(0).catch(() => undefined);
        return;
      case PacketKind.error:
        this.#dropPipe(pipe, { state: 'lost', error: new ShoalError(packet.code, `${nameOf(dealer)} gave up: ${packet.text}`) });
        pipe.close(0).catch(() => undefined);
        return;
      case PacketKind.welcome:
      case PacketKind.reset:
        throw new ShoalError('protocol', `a dealer does not send packets of kind ${packet.kind}`);
      default:
        if (dealer.onPacket(packet) === 'lost') pipe.send([encodeControl('reset', noCounters)]);
    }
  }

  #onHello(pipe: Pipe, packet: Extract<Packet, { kind: 1 | 2 }>): void {
    const { address } = packet;
    const known = this.#pipes.get(pipe);
    if (known !== undefined && known.address !== address) throw new ShoalError('protocol', 'a dealer changed its address');
    const dealer = this.#dealers.get(address) ?? this.#addDealer(address);
    if (dealer.pipe !== undefined && dealer.pipe !== pipe && !this.#asked.delete(pipe)) {
      // Connections keep no order among each other: this hello may be older than that of the pipe that is there. One that is over does
      // not answer.
      this.#asked.add(pipe);
      pipe.send([encodeControl('reset', noCounters)]);
      return;
    }
    const previous = dealer.attach(pipe);
    this.#pipes.set(pipe, dealer);
    if (previous !== undefined) {
      this.#pipes.delete(previous);
      const message = `another dealer said hello as ${formatAddress(address)}; give every dealer its own address`;
      previous.send([encodeError(new ShoalError('config', message))]);
      previous.close(0).catch(() => undefined);
    }
    // Messages that waited under another dealer's route are this one's now.
    this.#routes.delete(address);
    dealer.greet(packet);
    this.#options.onPeer?.({ address, state: 'connected' });
  }

  #refuse(pipe: Pipe, error: ShoalError): void {
    pipe.send([encodeError(error)]);
    this.#dropPipe(pipe, { state: 'refused', error });
    pipe.close(0).catch(() => undefined);
  }

  #dropPipe(pipe: Pipe, event: Omit<PeerEvent, 'address'>): void {
    if (!this.#pipes.has(pipe)) return;
    const dealer = this.#pipes.get(pipe);
    this.#pipes.delete(pipe);
    if (dealer?.pipe === pipe) dealer.detach();
    if (dealer !== undefined && event.state === 'left') this.#forget(dealer);
    this.#options.onPeer?.({ address: dealer?.address, ...event });
  }

  // ── dealers and routes ───────────────────────────────────────────────────────────────────────────────────────────

  #addDealer(address: Address): RemoteSocket {
    // Room is made by peers that are gone and have nothing waiting.
    if (this.#dealers.size >= this.#limits.peers)
      for (const each of [...this.#dealers.values()]) if (each.pipe === undefined && each.pending === 0) this.#forget(each);
    if (this.#dealers.size >= this.#limits.peers) {
      throw new ShoalError('out-of-memory', `${this.internalId} knows ${this.#dealers.size} destinations already, its limit; raise peers`);
    }
    const dealer = new RemoteSocket({
      session: this.#context.newSession(),
      own: 0n,
      address,
      limits: this.#limits,
      clock: this.#context.clock,
      deliver: (from, msg, bytes) => this.#deliver(from, msg, bytes),
      onUndeliverable: (msg, error) => this.#options.onUndeliverable?.(msg, error),
    });
    this.#dealers.set(address, dealer);
    return dealer;
  }

  #deliver(dealer: RemoteSocket, msg: Msg, bytes: number): void {
    const { source, destination } = msg;
    if (source !== dealer.address && this.#routes.get(source) !== dealer) this.#learn(source, dealer);
    if (this.#own === undefined || this.#own.has(destination)) {
      this.inbox.push(dealer, msg, bytes);
      return;
    }
    dealer.taken(dealer.epoch, bytes);
    try {
      this.send(msg);
    } catch (thrown) {
      this.#options.onUndeliverable?.(msg, ShoalError.from(thrown));
    }
  }

  /** `source` is behind `dealer`, which is not its own. */
  #learn(source: Address, dealer: RemoteSocket): void {
    const own = this.#dealers.get(source);
    if (own !== undefined && (own.open || own.pending > 0)) {
      // A dealer that introduced itself under the address is the better way; what waited for it goes the new one.
      if (own.open) return;
      own.moveTo(dealer);
      if (own.pending === 0) this.#dealers.delete(source);
    }
    if (this.#routes.size >= this.#limits.peers) return;
    this.#routes.set(source, dealer);
  }

  #forget(dealer: RemoteSocket): void {
    for (const [address, route] of this.#routes) if (route === dealer) this.#routes.delete(address);
    if (dealer.pending === 0 && dealer.address !== undefined) this.#dealers.delete(dealer.address);
  }

  #checkOpen(): void {
    if (this.#end !== undefined) throw this.#end;
  }
}

function nameOf({ address }: RemoteSocket): string {
  return address === undefined ? 'a peer' : formatAddress(address);
}
