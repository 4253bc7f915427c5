/** `tcp://` and `ipc://` over ZeroMQ: dealers are DEALER sockets, routers ROUTER sockets. Encrypted and authenticated by
 *  CURVE with keys made of the job's secret: who does not know it cannot even begin to speak.
 *
 *    dealer socket ═══ CURVE over TCP or a Unix socket ═══ router socket, one pipe per routing id
 *      up     ◀── the router's socket, to every dealer that got in
 *      packets ◀─▶
 *      down   (made by the dealer's own socket)       │       '' (made by the router's own): the connection is gone
 *
 *  ZeroMQ connects again and again until the router is there, but a connection that is lost ends its pipe: the links above
 *  make it anew. ZeroMQ's own queues have no limit, because the windows of the links are one.
 *
 *  The package is loaded when the first such URL is used, and need not be installed before: an optional peer of ours. */
import { chmodSync, readFileSync } from 'node:fs';
import type net from 'node:net';
import os from 'node:os';
import { isMainThread } from 'node:worker_threads';
import type * as Zmq from 'zeromq';
import { must } from '../../base/assert.ts';
import { retry } from '../../base/connections/retry.ts';
import { setServedTimer, sleep, type Clock } from '../../base/clock.ts';
import { isShoalError, messageOf, ShoalError } from '../../base/errors.ts';
import { checkDescriptors } from '../../base/exhaustion.ts';
import { installCommand, isNotInstalled } from '../../base/settings/install-commands.ts';
import { connect } from '../../fabric/stream/stream-network.ts';
import type { Backend, BackendOptions, Listener, Pipe, PipeConnectOptions, PipeHandlers } from '../backend.ts';
import { packetBytesMost } from '../limits.ts';
import type { ThreadGate } from '../thread-gate.ts';
import { deriveCurveKeys } from './curve-keys.ts';
import { join, pieceBytes, ZeromqChannel } from './zeromq-channel.ts';

export interface ZeromqOptions extends BackendOptions {
  readonly encryption: 'curve' | 'none';
  readonly gate?: ThreadGate;
}

type Package = typeof Zmq;

const zapEndpoint = 'inproc://zeromq.zap.01';
/** Less than the 500 ms after which the package zeromq complains on stderr, of a process that ends while a peer takes nothing. */
const lingerMs = 300;
/** For ZeroMQ to give an address back, at most. */
const releaseMs = 2000;
const releaseLookMs = 5;
/** A stranger has so long to prove itself; the first answer to one that does may have to wait for this thread. */
const handshakeMs = 10_000;
/** Hosts that vanish without a word are noticed, by the kernel: ZeroMQ's own heartbeats showed in every round trip. */
const keepalive = { tcpKeepalive: 1, tcpKeepaliveIdle: 10, tcpKeepaliveInterval: 5, tcpKeepaliveCount: 3 } as const;
/** This many connections in a row that end in the middle of the handshake, soon after it began, are no accident. */
const refusalsForAuth = 6;
const refusalMs = 2000;
/** Descriptors of a socket, and of the threads behind the first one: libzmq ends the process when it gets none. */
const socketDescriptors = 16;
const reconnectMs = 50;
const reconnectMostMs = 1000;
/** Bytes that encryption adds to a piece. */
const pieceSlackBytes = 256;
/** Messages that a ROUTER gives itself when a dealer's connection is gone, and every dealer that gets in; and that a DEALER gives
 *  itself when the router's is. Options by number: the package has no names for them. */
const routerNotifyOption = 97;
const notifyDisconnect = 2;
const helloOption = 110;
const hiccupOption = 114;
const up = 1;
const down = 2;

/** @throws ShoalError `unsupported`; `out-of-memory`: a package whose files cannot be opened is said not to be there. */
export async function createZeromqBackend(options: ZeromqOptions): Promise<Backend> {
  checkDescriptors('this process', socketDescriptors, 'loading the package zeromq');
  const zmq = await loadPackage();
  const missing = (['curve', 'draft'] as const).filter((name) => zmq.capability[name] !== true);
  if (missing.length > 0) throw unusable(`this build of the package zeromq lacks ${missing.join(' and ')}`);
  return withinGate(options.gate, () => new ZeromqBackend(zmq, options));
}

async function loadPackage(): Promise<Package> {
  try {
    return await import('zeromq');
  } catch (error) {
    if (isNotInstalled(error, 'zeromq'))
      throw unusable(`it needs the package zeromq, which is not installed; run ${installCommand(process.env, 'zeromq')}`);
    throw unusable(`the package zeromq cannot be loaded: ${messageOf(error)}`);
  }
}

function unusable(why: string): ShoalError {
  return new ShoalError('unsupported', `ZeroMQ (tcp://, ipc://) cannot be used: ${why}`);
}

class ZeromqBackend implements Backend {
  readonly #zmq: Package;
  readonly #options: ZeromqOptions;
  readonly #context: Zmq.Context;
  readonly #router: ReturnType<typeof deriveCurveKeys>;
  readonly #dealer: ReturnType<typeof deriveCurveKeys>;
  #zap: ZeromqChannel | undefined;
  readonly #open = new Set<{ close(timeoutMs: number): Promise<void> }>();

  constructor(zmq: Package, options: ZeromqOptions) {
    this.#zmq = zmq;
    this.#options = options;
    this.#context = new zmq.Context();
    this.#router = deriveCurveKeys(options.secret, options.world, 'router');
    this.#dealer = deriveCurveKeys(options.secret, options.world, 'dealer');
  }

  async listen(url: string, onPipe: (pipe: Pipe) => void): Promise<Listener> {
    this.#checkUrl(url);
    const path = ipcPath(url);
    if (path !== undefined && (await answers(url))) throw new ShoalError('system', `${url} is bound by another router already`);
    return withinGate(this.#options.gate, () => {
      checkDescriptors('this process', socketDescriptors, `listening at ${url}`);
      if (this.#options.encryption === 'curve') this.#guard();
      const socket = this.#bind(url, path);
      const listener = new RouterListener(socket, {
        ...this.#pipeOptions(reachable(socket.lastEndpoint ?? url), () => this.#open.delete(listener)),
        onPipe,
      });
      this.#open.add(listener);
      return listener;
    });
  }

  async connect(url: string, { timeoutMs, signal }: PipeConnectOptions): Promise<Pipe> {
    this.#checkUrl(url);
    const { clock } = this.#options;
    const deadlineMs = clock.now() + timeoutMs;
    await this.#listened(url, timeoutMs, signal);
    const pipe = withinGate(this.#options.gate, () => {
      checkDescriptors('this process', socketDescriptors, `connecting to ${url}`);
      const pipe: DealerPipe = new DealerPipe(
        this.#dealerSocket(url),
        this.#pipeOptions(url, () => this.#open.delete(pipe)),
      );
      return pipe;
    });
    this.#open.add(pipe);
    try {
      await pipe.connect({ timeoutMs: Math.max(1, deadlineMs - clock.now()), signal });
    } catch (error) {
      await pipe.close(0);
      throw error;
    }
    return pipe;
  }

  /** Resolves when somebody listens there. ZeroMQ dials again and again as well, and gets connections that lead back to itself, which it
   *  does not know: it gives up then, and nobody can listen there for a minute. @throws ShoalError `timeout`, `aborted`. */
  async #listened(url: string, timeoutMs: number, signal: AbortSignal): Promise<void> {
    if (!url.startsWith('tcp://')) return;
    const { clock, random } = this.#options;
    const pauses = { firstPauseMs: reconnectMs, pauseMostMs: reconnectMostMs };
    const outcome = await retry({ clock, random, timeoutMs, signal, ...pauses, isFinal: () => false }, async (stop) => {
      if (!(await answers(url, stop))) throw new ShoalError('peer-lost', 'nobody listens there');
    });
    if ('value' in outcome) return;
    throw outcome.why === 'aborted' ? givenUp(url) : noRouter(url, timeoutMs, 'nobody listens there');
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open].map((each) => each.close(0)));
    this.#zap?.close(0);
    this.#zap = undefined;
  }

  #pipeOptions(url: string, onClosed: () => void): PipeOptions {
    const { clock, limits, gate } = this.#options;
    return { url, clock, gate, packetBytes: packetBytesMost(limits), onClosed };
  }

  #bind(url: string, path: string | undefined): Zmq.Router {
    const { publicKey: curvePublicKey, secretKey: curveSecretKey } = this.#router;
    const security =
      this.#options.encryption === 'none'
        ? {}
        : { curveServer: true, curvePublicKey, curveSecretKey, zapDomain: 'shoal', zapEnforceDomain: true };
    // Sending to a dealer that is gone must be an error. When all are gone the socket is not writable at all; without
    // queue limits that is the only reason, so waiting would be for nothing.
    const socket = new this.#zmq.Router({ ...this.#socketOptions(url), ...security, handshakeInterval: handshakeMs, mandatory: true });
    try {
      setOption(socket, routerNotifyOption, notifyDisconnect);
      setOption(socket, helloOption, Buffer.of(up));
      socket.bindSync(url.replace(/^(tcp:\/\/.*):0$/, '$1:*'));
      if (path?.startsWith('/') === true) chmodSync(path, 0o600);
    } catch (error) {
      socket.close();
      throw new ShoalError('system', `${url} cannot be bound: ${messageOf(error)}`, { cause: error });
    }
    return socket;
  }

  #dealerSocket(url: string): Zmq.Dealer {
    const { publicKey: curvePublicKey, secretKey: curveSecretKey } = this.#dealer;
    const security = this.#options.encryption === 'none' ? {} : { curveServerKey: this.#router.publicKey, curvePublicKey, curveSecretKey };
    const socket = new this.#zmq.Dealer({
      ...this.#socketOptions(url),
      ...security,
      reconnectInterval: reconnectMs,
      reconnectMaxInterval: reconnectMostMs,
    });
    setOption(socket, hiccupOption, Buffer.of(down));
    return socket;
  }

  #socketOptions(url: string): { context: Zmq.Context } & Zmq.SocketOptions<Zmq.Dealer> {
    return {
      context: this.#context,
      linger: lingerMs,
      sendHighWaterMark: 0,
      receiveHighWaterMark: 0,
      // Without queue limits it can always be sent to, and need not be asked first.
      sendTimeout: 0,
      receiveTimeout: 0,
      // Also of what strangers send: they cannot make us hold more.
      maxMessageSize: pieceBytes + pieceSlackBytes,
      ...(url.startsWith('tcp://') ? keepalive : {}),
      ipv6: url.includes('['),
    };
  }

  #checkUrl(url: string): void {
    if (url.startsWith('ipc://')) {
      const path = url.slice('ipc://'.length);
      if (path.length === 0 || Buffer.byteLength(path) > 100) throw new ShoalError('usage', `'${url}' needs a path of 1 to 100 bytes`);
      return;
    }
    const host = /^tcp:\/\/(.+):(\d{1,5}|\*)$/.exec(url)?.[1];
    if (host === undefined) throw new ShoalError('usage', `'${url}' is not like tcp://10.0.0.4:7001`);
    if (this.#options.encryption === 'none' && !/^(127\.\d+\.\d+\.\d+|localhost|\[::1\])$/.test(host)) {
      throw new ShoalError('usage', `${url} needs encryption: without it only addresses of this host are allowed`);
    }
  }

  /** Answers ZeroMQ's question (RFC 27) whether a client may come in: only with the key that the secret gives. */
  #guard(): void {
    if (this.#zap !== undefined) return;
    const socket = new this.#zmq.Reply({ context: this.#context, sendTimeout: 0, receiveTimeout: 0 });
    socket.bindSync(zapEndpoint);
    const expected = this.#dealer.publicBytes;
    const zap: ZeromqChannel = new ZeromqChannel(socket, {
      gate: this.#options.gate,
      onPieces: ([version, id, , , , mechanism, key]) => {
        const knows = Buffer.from(mechanism ?? []).toString() === 'CURVE' && key !== undefined && expected.equals(key);
        const words = [knows ? '200' : '400', knows ? 'OK' : 'unknown key', knows ? 'member' : '', ''];
        zap.push([version, id, ...words.map((word) => Buffer.from(word))], () => undefined);
      },
      onError: () => undefined,
    });
    this.#zap = zap;
  }
}

interface PipeOptions {
  readonly url: string;
  readonly clock: Clock;
  readonly gate: ThreadGate | undefined;
  /** A packet is no larger. */
  readonly packetBytes: number;
  onClosed(): void;
}

class DealerPipe implements Pipe {
  readonly pointers = false;
  readonly description: string;
  readonly #socket: Zmq.Dealer;
  readonly #options: PipeOptions;
  readonly #channel: ZeromqChannel;
  #handlers: PipeHandlers | undefined;
  #onUp: (() => void) | undefined;
  #lost: ShoalError | undefined;
  #open = true;

  constructor(socket: Zmq.Dealer, options: PipeOptions) {
    this.#socket = socket;
    this.#options = options;
    this.description = options.url;
    this.#channel = new ZeromqChannel(socket, {
      gate: options.gate,
      onPieces: (pieces) => this.#onPieces(pieces),
      onError: (error) => this.#lose(error),
    });
  }

  connect({ timeoutMs, signal }: PipeConnectOptions): Promise<void> {
    const { url, clock, gate } = this.#options;
    return new Promise((resolve, reject) => {
      let lastProblem = 'nobody listens there, or it does not accept our keys';
      const finish = (error?: ShoalError): void => {
        this.#onUp = undefined;
        timer.cancel();
        signal.removeEventListener('abort', onAbort);
        if (error === undefined) resolve();
        else reject(error);
      };
      const onAbort = (): void => finish(givenUp(url));
      const timer = setServedTimer(clock, timeoutMs, () => finish(noRouter(url, timeoutMs, lastProblem)));
      signal.addEventListener('abort', onAbort, { once: true });
      if (signal.aborted) {
        onAbort();
        return;
      }
      this.#onUp = finish;
      // Listening to events leaves an operation of the package pending, which another thread must not (zeromq-channel.ts).
      if (isMainThread) {
        lastProblem = 'nobody listens there';
        this.#onRefusals((refusals) => {
          lastProblem = 'the handshake did not complete';
          if (refusals < refusalsForAuth || this.#onUp === undefined) return;
          finish(
            new ShoalError(
              'auth',
              `what listens at ${url} does not accept our keys; do both sides have the job's secret, and is it a router?`,
            ),
          );
        });
      }
      if (gate?.enter() === false) return;
      this.#socket.connect(url);
      gate?.leave();
    });
  }

  setHandlers(handlers: PipeHandlers): void {
    this.#handlers = handlers;
    const lost = this.#lost;
    if (lost !== undefined) queueMicrotask(() => handlers.onClose(lost));
  }

  send(parts: readonly Uint8Array[]): void {
    this.#channel.push(parts, (error) => this.#lose(error));
  }

  async close(timeoutMs: number): Promise<void> {
    if (!this.#open) return;
    if (timeoutMs > 0) await this.#channel.idle();
    // ZeroMQ itself lingers for what it has taken.
    this.#end(lingerMs);
  }

  /** Counts connections that the other side ended in the middle of the handshake. */
  #onRefusals(callback: (refusals: number) => void): void {
    const { clock } = this.#options;
    const { events } = this.#socket;
    let refusals = 0;
    let connectedMs = -Infinity;
    events.on('connect', () => {
      connectedMs = clock.now();
    });
    for (const name of ['disconnect', 'handshake:error:protocol', 'handshake:error:auth', 'handshake:error:other'] as const) {
      events.on(name, () => {
        // Whoever takes long is busy. One connection ends with several of these.
        if (clock.now() - connectedMs >= refusalMs) return;
        connectedMs = -Infinity;
        callback(++refusals);
      });
    }
  }

  #onPieces(pieces: Uint8Array[]): void {
    const notice = pieces.length === 1 && pieces[0].byteLength === 1 ? pieces[0][0] : undefined;
    if (notice === up) this.#onUp?.();
    else if (notice === down) this.#lose(new Error('the router is gone'));
    else this.#handlers?.onParts(join(pieces, this.#options.packetBytes), []);
  }

  #end(linger: number): void {
    if (!this.#open) return;
    this.#open = false;
    this.#channel.close(linger);
    this.#options.onClosed();
  }

  #lose(cause: unknown): void {
    if (!this.#open) return;
    this.#end(0);
    this.#lost = isShoalError(cause) ? cause : new ShoalError('peer-lost', `${this.description}: ${messageOf(cause)}`, { cause });
    this.#handlers?.onClose(this.#lost);
  }
}

interface ListenerOptions extends PipeOptions {
  onPipe(pipe: Pipe): void;
}

class RouterListener implements Listener {
  readonly #options: ListenerOptions;
  readonly #channel: ZeromqChannel;
  readonly #pipes = new Map<string, RouterPipe>();
  #closed: Promise<void> | undefined;

  constructor(socket: Zmq.Router, options: ListenerOptions) {
    this.#options = options;
    // Only `close` ends it.
    this.#channel = new ZeromqChannel(socket, {
      gate: options.gate,
      onPieces: (pieces) => this.#onPieces(pieces),
      onError: () => undefined,
    });
  }

  get url(): string {
    return this.#options.url;
  }

  push(id: Uint8Array, parts: readonly Uint8Array[], onError: (error: unknown) => void): void {
    this.#channel.push(parts, onError, id);
  }

  forget(key: string): void {
    this.#pipes.delete(key);
  }

  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    await this.#channel.idle();
    this.#channel.close(lingerMs);
    // ZeroMQ gives the address back on its own time: until then nobody can bind it again.
    const { clock, url, onClosed } = this.#options;
    const deadlineMs = clock.now() + releaseMs;
    while (clock.now() < deadlineMs && (await answers(url))) await sleep(clock, releaseLookMs);
    onClosed();
  }

  #onPieces(pieces: Uint8Array[]): void {
    const id = must(pieces.shift(), () => 'a ROUTER socket tells who sent a message');
    const key = Buffer.from(id.buffer, id.byteOffset, id.byteLength).toString('latin1');
    let pipe = this.#pipes.get(key);
    if (pieces.length === 1 && pieces[0].byteLength === 0) {
      pipe?.lose(new Error('its connection has ended'));
      return;
    }
    if (pipe === undefined) {
      pipe = new RouterPipe(this, Uint8Array.from(id), key);
      this.#pipes.set(key, pipe);
      this.#options.onPipe(pipe);
    }
    pipe.onPieces(pieces, this.#options.packetBytes);
  }
}

class RouterPipe implements Pipe {
  readonly pointers = false;
  readonly #listener: RouterListener;
  readonly #id: Uint8Array;
  readonly #key: string;
  #handlers: PipeHandlers | undefined;
  #open = true;

  constructor(listener: RouterListener, id: Uint8Array, key: string) {
    this.#listener = listener;
    this.#id = id;
    this.#key = key;
  }

  get description(): string {
    return `a dealer of ${this.#listener.url}`;
  }

  setHandlers(handlers: PipeHandlers): void {
    this.#handlers = handlers;
  }

  send(parts: readonly Uint8Array[]): void {
    if (this.#open) this.#listener.push(this.#id, parts, (error) => this.lose(error));
  }

  async close(): Promise<void> {
    if (!this.#open) return;
    this.#open = false;
    // Whatever it still sends makes a new pipe, and is told to say hello.
    this.#listener.forget(this.#key);
  }

  onPieces(pieces: Uint8Array[], packetBytes: number): void {
    try {
      this.#handlers?.onParts(join(pieces, packetBytes), []);
    } catch (thrown) {
      this.lose(thrown);
    }
  }

  lose(cause: unknown): void {
    if (!this.#open) return;
    this.#open = false;
    this.#listener.forget(this.#key);
    const error = isShoalError(cause) ? cause : new ShoalError('peer-lost', `${this.description} is gone: ${messageOf(cause)}`, { cause });
    this.#handlers?.onClose(error);
  }
}

function withinGate<T>(gate: ThreadGate | undefined, calls: () => T): T {
  return gate === undefined ? calls() : gate.pass(calls);
}

function setOption(socket: Zmq.Socket, option: number, value: number | Buffer): void {
  const raw = socket as unknown as {
    setInt32Option(option: number, value: number): void;
    setStringOption(option: number, value: Buffer): void;
  };
  if (typeof value === 'number') raw.setInt32Option(option, value);
  else raw.setStringOption(option, value);
}

/** The path of a Unix socket that is a file. */
function ipcPath(url: string): string | undefined {
  return url.startsWith('ipc://') && !url.startsWith('ipc://@') ? url.slice('ipc://'.length) : undefined;
}

/** Somebody listens at this URL: ZeroMQ replaces the Unix socket of a living listener without a word, and says only by events
 *  that it has given an address back; so we ask. */
function answers(url: string, signal?: AbortSignal): Promise<boolean> {
  if (url.startsWith('ipc://@')) return Promise.resolve(isListedAsListening(url.slice('ipc://'.length)));
  return new Promise((resolve) => {
    const socket = connect(addressOf(url));
    const onAbort = (): void => void socket.destroy(new Error('given up'));
    signal?.addEventListener('abort', onAbort, { once: true });
    const finish = (does: boolean): void => {
      signal?.removeEventListener('abort', onAbort);
      socket.destroy();
      resolve(does);
    };
    socket.once('connect', () => finish(true));
    socket.once('error', () => finish(false));
  });
}

function addressOf(url: string): net.NetConnectOpts {
  if (url.startsWith('ipc://')) return { path: url.slice('ipc://'.length) };
  const [, host, port] = must(/^tcp:\/\/\[?(.+?)\]?:(\d+)$/.exec(url), () => `${url} has a host and a port`);
  return { host, port: Number(port), family: url.includes('[') ? 6 : 4 };
}

/** True for a Unix socket without a file that listens. Its name ends where ZeroMQ says: names that Node.js dials are padded with zeros. */
function isListedAsListening(name: string): boolean {
  const acceptsConnections = '00010000';
  const rows = readFileSync('/proc/net/unix', 'utf8').split('\n');
  return rows.some((row) => row.endsWith(` ${name}`) && row.split(/ +/, 4)[3] === acceptsConnections);
}

function givenUp(url: string): ShoalError {
  return new ShoalError('aborted', `connecting to ${url} was given up`);
}

function noRouter(url: string, timeoutMs: number, why: string): ShoalError {
  return new ShoalError('timeout', `no router at ${url} within ${timeoutMs} ms: ${why}`, { timeoutMs });
}

/** The endpoint with its wildcard replaced by an address that other hosts can use. */
function reachable(endpoint: string): string {
  const wildcard = /^tcp:\/\/(0\.0\.0\.0|\[::\]|\*):(\d+)$/.exec(endpoint);
  if (wildcard === null) return endpoint;
  const outward = Object.values(os.networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .find(({ family, internal }) => family === 'IPv4' && !internal);
  return `tcp://${outward?.address ?? '127.0.0.1'}:${wildcard[2]}`;
}
