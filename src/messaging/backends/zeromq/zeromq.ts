/** `tcp://` and `ipc://` over ZeroMQ: dealers are DEALER sockets, routers ROUTER sockets. Encrypted and authenticated by
 *  CURVE with keys made of the job's secret: who does not know it cannot even begin to speak.
 *
 *    dealer socket ═══ CURVE over TCP or a Unix socket ═══ router socket, one pipe per routing id
 *      up     ◀── the router's socket, to every dealer that got in
 *      packets ◀─▶
 *      down   (made by the dealer's own socket)       │       '' (made by the router's own): the connection is gone
 *
 *  ZeroMQ connects again and again until the router is there, but a connection that is lost ends its pipe: the sockets above
 *  make it anew. ZeroMQ's own queues have no limit, because the windows of the sockets are one.
 *
 *  The package is loaded when the first such URL is used, and need not be installed before: an optional peer of ours. */
import { chmodSync } from 'node:fs';
import type * as Zmq from 'zeromq';
import { retry } from '../../../base/connections/retry.ts';
import { messageOf, ShoalError } from '../../../base/errors.ts';
import { checkDescriptors } from '../../../base/exhaustion.ts';
import { installCommand, isNotInstalled } from '../../../base/settings/install-commands.ts';
import type { Backend, BackendOptions, Listener, Pipe, PipeConnectOptions } from '../../backend.ts';
import { packetBytesMost } from '../../limits.ts';
import type { ThreadGate } from '../../thread-gate.ts';
import { givenUp } from '../dial.ts';
import { deriveCurveKeys } from './curve-keys.ts';
import { DealerPipe, noRouter, notices, type DealerPipeOptions } from './dealer-pipe.ts';
import { lingerMs, PacketSocket, pieceBytes } from './packet-socket.ts';
import { RouterListener } from './router-listener.ts';
import { answers, ipcPath, reachable } from './zeromq-url.ts';

export interface ZeromqOptions extends BackendOptions {
  readonly encryption: 'curve' | 'none';
  readonly gate?: ThreadGate;
}

type Package = typeof Zmq;

const zapEndpoint = 'inproc://zeromq.zap.01';
/** A stranger has so long to prove itself; the first answer to one that does may have to wait for this thread. */
const handshakeMs = 10_000;
/** Hosts that vanish without a word are noticed, by the kernel: ZeroMQ's own heartbeats showed in every round trip. */
const keepalive = { tcpKeepalive: 1, tcpKeepaliveIdle: 10, tcpKeepaliveInterval: 5, tcpKeepaliveCount: 3 } as const;
/** Descriptors of a socket, and of the threads behind the first one: libzmq ends the process when it gets none. */
const socketDescriptors = 16;
const reconnectMs = 50;
const reconnectMostMs = 1000;
/** Bytes that encryption adds to a piece. */
const pieceSlackBytes = 256;
/** Messages that a ROUTER gives itself when a dealer's connection is gone, and every dealer that gets in; and that a DEALER gives
 *  itself when the router's is: options by number, because the package has no names for them. */
const routerNotifyOption = 97;
const notifyDisconnect = 2;
const helloOption = 110;
const hiccupOption = 114;

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
  #zap: PacketSocket | undefined;
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
    if (outcome.why === 'aborted') throw givenUp(url);
    throw new ShoalError('timeout', noRouter(url, timeoutMs, 'nobody listens there'), { timeoutMs });
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open].map((each) => each.close(0)));
    this.#zap?.close(0);
    this.#zap = undefined;
  }

  #pipeOptions(url: string, onEnded: () => void): DealerPipeOptions {
    const { clock, limits, gate } = this.#options;
    return { url, clock, gate, packetBytes: packetBytesMost(limits), onEnded };
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
      setOption(socket, helloOption, Buffer.of(notices.up));
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
    setOption(socket, hiccupOption, Buffer.of(notices.down));
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
    const zap: PacketSocket = new PacketSocket(socket, {
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
