/** `tcp://` and `ipc://` over ZeroMQ: dealers are DEALER sockets, routers ROUTER sockets. Encrypted and authenticated by
 *  CURVE with keys made of the job's secret: who does not know it cannot even begin to speak.
 *
 *    dealer socket ═══ CURVE over TCP or a Unix socket ═══ router socket, one pipe per routing id
 *
 *  ZeroMQ reconnects by itself and may lose packets then; the links above notice and send them again. Its own
 *  queues have no limit, because the windows of the links are one.
 *
 *  The package is loaded when the first such URL is used. */
import { chmodSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import type * as Zmq from 'zeromq';
import { must } from '../../base/assert.ts';
import type { Clock } from '../../base/clock.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { Fifo } from '../../base/fifo.ts';
import type { Backend, BackendOptions, Listener, Pipe, PipeConnectOptions, PipeHandlers } from '../backend.ts';
import { within } from '../deadline.ts';
import { deriveCurveKeys } from './curve-keys.ts';

export interface ZeromqOptions extends BackendOptions {
  readonly encryption: 'curve' | 'none';
}

type Package = typeof Zmq;

const zapEndpoint = 'inproc://zeromq.zap.01';
const lingerMs = 500;
/** For ZeroMQ to give an address back, at most. */
const releaseMs = 2000;
/** Hosts that vanish without a word are noticed, by the kernel: ZeroMQ's own heartbeats showed in every round trip. */
const keepalive = { tcpKeepalive: 1, tcpKeepaliveIdle: 10, tcpKeepaliveInterval: 5, tcpKeepaliveCount: 3 } as const;
/** This many connections that end in the middle of the handshake are no accident. */
const refusalsForAuth = 3;
const reconnectMs = 50;
const reconnectMostMs = 1000;
/** Of a packet's first part beside its messages' frames. */
const partSlackBytes = 1024 * 1024;

export async function zeromqUnavailable(): Promise<string | undefined> {
  try {
    const { capability } = await import('zeromq');
    return capability.curve === true ? undefined : 'this build of the package zeromq has no CURVE';
  } catch (error) {
    return `the package zeromq cannot be loaded: ${messageOf(error)}`;
  }
}

export async function createZeromqBackend(options: ZeromqOptions): Promise<Backend> {
  return new ZeromqBackend(await import('zeromq'), options);
}

class ZeromqBackend implements Backend {
  readonly #zmq: Package;
  readonly #options: ZeromqOptions;
  readonly #context: Zmq.Context;
  readonly #router: ReturnType<typeof deriveCurveKeys>;
  readonly #dealer: ReturnType<typeof deriveCurveKeys>;
  #zap: Zmq.Reply | undefined;
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
    if (this.#options.encryption === 'curve') await this.#guard();
    const path = ipcPath(url);
    if (path !== undefined && (await answers(path))) throw new ShoalError('system', `${url} is bound by another router already`);
    const { publicKey: curvePublicKey, secretKey: curveSecretKey } = this.#router;
    const security =
      this.#options.encryption === 'none'
        ? {}
        : { curveServer: true, curvePublicKey, curveSecretKey, zapDomain: 'shoal', zapEnforceDomain: true };
    // Sending to a dealer that is gone must be an error: it is how a dead one is noticed. When all are gone the socket
    // is not writable at all; without queue limits that is the only reason, so waiting would be for nothing.
    const socket = new this.#zmq.Router({ ...this.#socketOptions(url), ...security, mandatory: true, sendTimeout: 0 });
    try {
      await socket.bind(url.replace(/^(tcp:\/\/.*):0$/, '$1:*'));
      if (path?.startsWith('/') === true) chmodSync(path, 0o600);
    } catch (error) {
      socket.close();
      throw new ShoalError('system', `${url} cannot be bound: ${messageOf(error)}`, { cause: error });
    }
    const listener = new RouterListener(socket, reachable(socket.lastEndpoint ?? url), this.#options.clock, onPipe, () =>
      this.#open.delete(listener),
    );
    this.#open.add(listener);
    return listener;
  }

  async connect(url: string, { timeoutMs, signal }: PipeConnectOptions): Promise<Pipe> {
    this.#checkUrl(url);
    const { publicKey: curvePublicKey, secretKey: curveSecretKey } = this.#dealer;
    const security = this.#options.encryption === 'none' ? {} : { curveServerKey: this.#router.publicKey, curvePublicKey, curveSecretKey };
    const socket = new this.#zmq.Dealer({
      ...this.#socketOptions(url),
      ...security,
      // It has one connection and no queue limit: it can always be sent to, and need not be asked first.
      sendTimeout: 0,
      reconnectInterval: reconnectMs,
      reconnectMaxInterval: reconnectMostMs,
    });
    const pipe = new DealerPipe(socket, url, () => this.#open.delete(pipe));
    this.#open.add(pipe);
    try {
      await this.#handshake(pipe, url, { timeoutMs, signal });
    } catch (error) {
      await pipe.close(0);
      throw error;
    }
    return pipe;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open].map((each) => each.close(0)));
    this.#zap?.close();
    this.#zap = undefined;
  }

  #socketOptions(url: string): { context: Zmq.Context } & Zmq.SocketOptions<Zmq.Dealer> {
    const { messageBytes } = this.#options.limits;
    return {
      context: this.#context,
      linger: lingerMs,
      sendHighWaterMark: 0,
      receiveHighWaterMark: 0,
      maxMessageSize: messageBytes + partSlackBytes,
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
  async #guard(): Promise<void> {
    if (this.#zap !== undefined) return;
    const zap = new this.#zmq.Reply({ context: this.#context, linger: 0 });
    this.#zap = zap;
    await zap.bind(zapEndpoint);
    const expected = this.#dealer.publicBytes;
    const answer = async (): Promise<void> => {
      for (;;) {
        const [version, id, , , , mechanism, key] = await zap.receive();
        const knows = mechanism?.toString() === 'CURVE' && key !== undefined && expected.equals(key);
        await zap.send([version, id, knows ? '200' : '400', knows ? 'OK' : 'unknown key', knows ? 'member' : '', '']);
      }
    };
    // Ends when the socket is closed.
    answer().catch(() => undefined);
  }

  #handshake(pipe: DealerPipe, url: string, { timeoutMs, signal }: PipeConnectOptions): Promise<void> {
    return new Promise((resolve, reject) => {
      let refusals = 0;
      let lastProblem = 'nobody listens there';
      const finish = (error?: ShoalError): void => {
        timer.cancel();
        signal.removeEventListener('abort', onAbort);
        if (error === undefined) resolve();
        else reject(error);
      };
      const onAbort = (): void => finish(new ShoalError('aborted', `connecting to ${url} was given up`));
      const timer = this.#options.clock.setTimer(
        timeoutMs,
        () => finish(new ShoalError('timeout', `no router at ${url} within ${timeoutMs} ms: ${lastProblem}`, { timeoutMs })),
        { keepAlive: true },
      );
      signal.addEventListener('abort', onAbort, { once: true });
      if (signal.aborted) onAbort();
      pipe.onEvent = (event) => {
        if (event === 'handshake') finish();
        else if (event === 'refused' && ++refusals >= refusalsForAuth) {
          finish(new ShoalError('auth', `what listens at ${url} does not accept our keys; do both sides have the job's secret?`));
        } else if (event === 'refused') lastProblem = 'the handshake did not complete';
      };
      pipe.connect();
    });
  }
}

/** Packets towards a socket, one send at a time as ZeroMQ's interface wants it. */
class Outbox {
  readonly #socket: Zmq.Dealer | Zmq.Router;
  readonly #waiting = new Fifo<{ readonly parts: readonly Uint8Array[]; readonly onError: (error: unknown) => void }>();
  #sending = false;
  #onIdle: (() => void) | undefined;

  constructor(socket: Zmq.Dealer | Zmq.Router) {
    this.#socket = socket;
  }

  push(parts: readonly Uint8Array[], onError: (error: unknown) => void): void {
    this.#waiting.push({ parts, onError });
    // Never rejects: errors belong to their packet.
    if (!this.#sending) this.#run().catch(() => undefined);
  }

  idle(): Promise<void> {
    if (!this.#sending) return Promise.resolve();
    return new Promise((resolve) => {
      this.#onIdle = resolve;
    });
  }

  async #run(): Promise<void> {
    this.#sending = true;
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
      try {
        await this.#socket.send(next.parts as Uint8Array[]);
      } catch (error) {
        next.onError(error);
      }
    }
    this.#sending = false;
    this.#onIdle?.();
  }
}

class DealerPipe implements Pipe {
  readonly pointers = false;
  readonly description: string;
  onEvent: ((event: 'handshake' | 'refused') => void) | undefined;
  readonly #socket: Zmq.Dealer;
  readonly #outbox: Outbox;
  readonly #onClosed: () => void;
  #handlers: PipeHandlers | undefined;
  #handshaken = false;
  #open = true;

  constructor(socket: Zmq.Dealer, url: string, onClosed: () => void) {
    this.#socket = socket;
    this.description = url;
    this.#outbox = new Outbox(socket);
    this.#onClosed = onClosed;
  }

  connect(): void {
    const { events } = this.#socket;
    events.on('handshake', () => this.#onHandshake());
    // Before the handshake: the other side hung up on us.
    for (const name of ['disconnect', 'handshake:error:protocol', 'handshake:error:auth', 'handshake:error:other'] as const)
      events.on(name, () => this.onEvent?.('refused'));
    this.#socket.connect(this.description);
  }

  setHandlers(handlers: PipeHandlers): void {
    this.#handlers = handlers;
    this.onEvent = undefined;
    const receive = async (): Promise<void> => {
      while (this.#open) {
        const parts = await this.#socket.receive();
        if (this.#open) handlers.onParts(parts, []);
        await afterAnswers();
      }
    };
    receive().catch((error: unknown) => this.#fail(error));
  }

  send(parts: readonly Uint8Array[]): void {
    if (this.#open) this.#outbox.push(parts, (error) => this.#fail(error));
  }

  async close(timeoutMs: number): Promise<void> {
    if (!this.#open) return;
    this.#open = false;
    // ZeroMQ itself lingers for what it has taken.
    if (timeoutMs > 0) await this.#outbox.idle();
    this.#socket.close();
    this.#onClosed();
  }

  #onHandshake(): void {
    const again = this.#handshaken;
    this.#handshaken = true;
    this.onEvent?.('handshake');
    if (again && this.#open) this.#handlers?.onReopen();
  }

  #fail(error: unknown): void {
    if (!this.#open) return;
    this.#open = false;
    this.#socket.close();
    this.#onClosed();
    this.#handlers?.onClose(new ShoalError('peer-lost', `${this.description}: ${messageOf(error)}`, { cause: error }));
  }
}

class RouterListener implements Listener {
  readonly url: string;
  readonly #socket: Zmq.Router;
  readonly #clock: Clock;
  readonly #outbox: Outbox;
  readonly #pipes = new Map<string, RouterPipe>();
  readonly #onPipe: (pipe: Pipe) => void;
  readonly #onClosed: () => void;
  #open = true;

  constructor(socket: Zmq.Router, url: string, clock: Clock, onPipe: (pipe: Pipe) => void, onClosed: () => void) {
    this.#socket = socket;
    this.#clock = clock;
    this.url = url;
    this.#outbox = new Outbox(socket);
    this.#onPipe = onPipe;
    this.#onClosed = onClosed;
    // Ends when the socket is closed.
    this.#receive().catch(() => undefined);
  }

  push(id: Uint8Array, parts: readonly Uint8Array[], onError: (error: unknown) => void): void {
    if (this.#open) this.#outbox.push([id, ...parts], onError);
  }

  forget(key: string): void {
    this.#pipes.delete(key);
  }

  async close(): Promise<void> {
    if (!this.#open) return;
    this.#open = false;
    await this.#outbox.idle();
    // The package unbinds on another thread while this one still looks whether something came, which a socket of ZeroMQ
    // does not bear. Closing gives the address back as well, on ZeroMQ's own time, and says so: until then nobody can
    // bind it again.
    const { events } = this.#socket;
    const released = new Promise<void>((resolve) => {
      for (const event of ['close', 'close:error', 'end'] as const) events.on(event, () => resolve());
    });
    this.#socket.close();
    await within(this.#clock, releaseMs, released);
    this.#onClosed();
  }

  async #receive(): Promise<void> {
    while (this.#open) {
      const parts = await this.#socket.receive();
      const id = must(parts.shift(), () => 'a ROUTER socket tells who sent a message');
      const key = id.toString('latin1');
      let pipe = this.#pipes.get(key);
      if (pipe === undefined) {
        pipe = new RouterPipe(this, Buffer.from(id), key);
        this.#pipes.set(key, pipe);
        this.#onPipe(pipe);
      }
      pipe.handlers?.onParts(parts, []);
      await afterAnswers();
    }
  }
}

class RouterPipe implements Pipe {
  readonly pointers = false;
  handlers: PipeHandlers | undefined;
  readonly #listener: RouterListener;
  readonly #id: Uint8Array;
  readonly #key: string;
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
    this.handlers = handlers;
  }

  send(parts: readonly Uint8Array[]): void {
    if (this.#open) this.#listener.push(this.#id, parts, (error) => this.#lost(error));
  }

  async close(): Promise<void> {
    if (!this.#open) return;
    this.#open = false;
    // Whatever it still sends makes a new pipe, and is told to say hello.
    this.#listener.forget(this.#key);
  }

  #lost(error: unknown): void {
    if (!this.#open) return;
    this.#open = false;
    this.#listener.forget(this.#key);
    this.handlers?.onClose(new ShoalError('peer-lost', `${this.description} is gone: ${messageOf(error)}`, { cause: error }));
  }
}

/** What the application does with a packet at once goes first: asking ZeroMQ for the next costs 10 µs, which would be
 *  added to every round trip. Resolves in this turn of the event loop, after all that promises trigger. */
function afterAnswers(): Promise<void> {
  return new Promise((resolve) => process.nextTick(resolve));
}

/** The path of a Unix socket that is a file. */
function ipcPath(url: string): string | undefined {
  return url.startsWith('ipc://') && !url.startsWith('ipc://@') ? url.slice('ipc://'.length) : undefined;
}

/** ZeroMQ replaces the socket of a living listener without a word; so we ask first. */
function answers(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect({ path });
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}

/** With the wildcard replaced by an address that other hosts can use. */
function reachable(endpoint: string): string {
  const wildcard = /^tcp:\/\/(0\.0\.0\.0|\[::\]|\*):(\d+)$/.exec(endpoint);
  if (wildcard === null) return endpoint;
  const outward = Object.values(os.networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .find(({ family, internal }) => family === 'IPv4' && !internal);
  return `tcp://${outward?.address ?? '127.0.0.1'}:${wildcard[2]}`;
}
