/** `mpi://` over Open MPI: packets are messages of MPI, one for each part, between ports of processes. The processes are
 *  those that mpirun started; the death of one ends all, which MPI cannot be talked out of.
 *
 *    dealer                                            router at mpi://3/router
 *      connect(own port, proof)  ─▶ listening port       a number made of world and name
 *      accept(port, proof)       ◀─                      a port for this dealer
 *      part, part, last part     ─▶ port                 both directions, any time
 *      close                     ─▶ port
 *
 *  A message's tag is `port · 4 + kind`: 0 part, 1 last part of its packet, 2 control. Control messages, little-endian:
 *    u8 type (1 connect, 2 accept, 3 refuse, 4 close) │ u8 version │ u16 0 │ u32 port of the sender │ proof (32)
 *
 *  MPI's own flow control bounds what is under way to a process that does not receive, the windows of the sockets the rest. */
import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import { within } from '../base/clock.ts';
import { Layout } from '../base/bytes.ts';
import { ShoalError } from '../base/errors.ts';
import { retry } from '../base/connections/retry.ts';
import { MpiEndpoint, mpiUnavailable } from './mpi-endpoint.ts';
import type { Backend, BackendOptions, Listener, Pipe, PipeConnectOptions } from '../messaging/backend.ts';
import { BackendPipe, type BackendPipeOptions } from '../messaging/backends/backend-pipe.ts';
import { givenUp } from '../messaging/backends/dial.ts';
import { IncomingPacket } from '../messaging/backends/incoming-packet.ts';
import { packetBytesMost } from '../messaging/limits.ts';

const kind = { part: 0, lastPart: 1, control: 2 } as const;
const control = { connect: 1, accept: 2, refuse: 3, close: 4 } as const;
const version = 1;
const controlLayout = new Layout('a control message', { type: 'u8', version: 'u8', reserved: 'u16', port: 'u32', proof: 32 });
const controlBytes = controlLayout.bytes;
const noProof = new Uint8Array(0);
/** Ports below belong to pipes, those from here to listeners. */
const firstListener = 2 ** 20;
const defaultName = 'router';
const answerMs = 50;

/** @throws ShoalError `unsupported` when this machine has no MPI that can be used. */
export async function createMpiBackend(options: BackendOptions & { readonly encryption?: 'curve' | 'none' }): Promise<Backend> {
  const reason = mpiUnavailable();
  if (reason !== undefined) throw new ShoalError('unsupported', `mpi:// cannot be used: ${reason}`);
  const { OMPI_COMM_WORLD_SIZE: all, OMPI_COMM_WORLD_LOCAL_SIZE: here } = process.env;
  if (options.encryption !== 'none' && all !== here)
    throw new ShoalError('unsupported', "mpi:// leaves this host, and MPI encrypts nothing; encryption: 'none' of the context allows that");
  return new MpiBackend(await MpiEndpoint.open(), options);
}

interface MpiAddress {
  readonly rank: number;
  readonly name: string;
}

class MpiBackend implements Backend {
  readonly #mpi: MpiEndpoint;
  readonly #options: BackendOptions;
  readonly #pipes = new Set<MpiPipe>();
  readonly #listeners = new Set<Listener>();
  #connecting = 0;
  #nextPort: number;

  constructor(mpi: MpiEndpoint, options: BackendOptions) {
    this.#mpi = mpi;
    this.#options = options;
    // Other endpoints of this process begin elsewhere; what is taken is skipped.
    this.#nextPort = options.random.bytes(3).reduce((port, byte) => port * 256 + byte, 0) % firstListener;
    mpi.onFailed = (error) => {
      for (const pipe of [...this.#pipes]) pipe.lose(error);
    };
    this.#keepAlive();
  }

  async listen(url: string, onPipe: (pipe: Pipe) => void): Promise<Listener> {
    const { rank, name } = this.#parse(url);
    if (rank !== this.#mpi.rank) {
      throw new ShoalError('usage', `'${url}' cannot be bound here: this process is rank ${this.#mpi.rank}; bind mpi://*/${name}`);
    }
    const port = this.#listeningPort(name);
    /** Pipes by rank and port of the dealer: it asks until it is answered. */
    const known = new Map<string, MpiPipe>();
    const onControl = (peer: number, message: ControlMessage): void => {
      if (message.type !== control.connect) return;
      if (!this.#proves(message, name, 'dealer')) {
        this.#tell(peer, message.port, { type: control.refuse, port: 0, proof: noProof });
        return;
      }
      const dealer = `${peer}:${message.port}`;
      let pipe = known.get(dealer);
      if (pipe === undefined) {
        pipe = this.#open(peer, `a dealer of mpi://${rank}/${name}`, () => known.delete(dealer));
        pipe.attach(message.port);
        known.set(dealer, pipe);
        onPipe(pipe);
      }
      this.#tell(peer, message.port, { type: control.accept, port: pipe.port, proof: this.#proof(name, 'router') });
    };
    const onMessage = (peer: number, what: number, bytes: Uint8Array): void => {
      const message = what === kind.control ? decodeControl(bytes) : undefined;
      // Whoever sends anything else is no dealer, and there is no pipe to close.
      if (message !== undefined) onControl(peer, message);
    };
    if (!this.#mpi.claim(port, { onMessage, onOversize: () => undefined }, { bytesMax: controlBytes })) {
      throw new ShoalError('system', `mpi://${rank}/${name} is bound already, or its number is taken; bind another name`);
    }
    const listener: Listener = {
      url: `mpi://${rank}/${name}`,
      close: async () => {
        this.#mpi.release(port);
        this.#listeners.delete(listener);
        this.#keepAlive();
      },
    };
    this.#listeners.add(listener);
    this.#keepAlive();
    return listener;
  }

  async connect(url: string, options: PipeConnectOptions): Promise<Pipe> {
    const { rank, name } = this.#parse(url);
    if (rank >= this.#mpi.size) throw new ShoalError('usage', `'${url}' is not there: mpirun started ${this.#mpi.size} processes`);
    const pipe = this.#open(rank, url, () => undefined);
    this.#connecting++;
    this.#keepAlive();
    try {
      await this.#greet(pipe, { rank, name }, options);
    } catch (error) {
      await pipe.close(0);
      throw error;
    } finally {
      this.#connecting--;
      this.#keepAlive();
    }
    return pipe;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#listeners].map((listener) => listener.close()));
    await Promise.all([...this.#pipes].map((pipe) => pipe.close(0)));
    this.#mpi.close();
  }

  /** A listener that is not there yet drops what is sent to it: it is asked again and again. */
  async #greet(pipe: MpiPipe, { rank, name }: MpiAddress, { timeoutMs, signal }: PipeConnectOptions): Promise<void> {
    const { clock, random } = this.#options;
    const greeted = new Promise<void>((resolve, reject) => {
      pipe.onGreeting = (message) => {
        if (message.type === control.accept && this.#proves(message, name, 'router')) {
          pipe.attach(message.port);
          resolve();
        } else if (message.type === control.refuse || message.type === control.accept) {
          reject(new ShoalError('auth', `the router at ${pipe.description} does not know our secret; do both sides have the job's?`));
        }
      };
    });
    greeted.catch(() => undefined);
    const isFinal = ({ code }: ShoalError): boolean => code === 'auth';
    const outcome = await retry({ clock, random, timeoutMs, signal, isFinal }, async (_, leftMs) => {
      this.#tell(rank, this.#listeningPort(name), { type: control.connect, port: pipe.port, proof: this.#proof(name, 'dealer') });
      await within(clock, Math.min(answerMs, leftMs), greeted, () => {
        throw new ShoalError('timeout', `no router at ${pipe.description} within ${timeoutMs} ms`, { timeoutMs });
      });
    });
    pipe.onGreeting = undefined;
    if ('value' in outcome) return;
    if (outcome.why === 'aborted') throw givenUp(pipe.description);
    throw outcome.error!;
  }

  /** @param forget called when it has ended. */
  #open(peer: number, description: string, forget: () => void): MpiPipe {
    const { clock, limits } = this.#options;
    const onEnded = (): void => {
      this.#pipes.delete(pipe);
      this.#keepAlive();
      forget();
    };
    const pipe = new MpiPipe(this.#mpi, peer, { description, clock, packetBytes: packetBytesMost(limits), onEnded });
    for (let tried = 0; tried < firstListener; tried++) {
      this.#nextPort = (this.#nextPort + 1) % firstListener;
      if (!pipe.listen(this.#nextPort)) continue;
      this.#pipes.add(pipe);
      this.#keepAlive();
      return pipe;
    }
    throw new ShoalError('system', `this process has ${firstListener} connections over MPI already`);
  }

  #tell(peer: number, port: number, message: ControlMessage): void {
    // When MPI itself fails, `onFailed` says so.
    this.#mpi.send({ peer, port, kind: kind.control, bytes: encodeControl(message) }, () => undefined);
  }

  #keepAlive(): void {
    this.#mpi.ref(this.#pipes.size + this.#listeners.size + this.#connecting > 0);
  }

  #parse(url: string): MpiAddress {
    const match = /^mpi:\/\/(\d{1,7}|\*)(?:\/([\w.-]{1,64}))?$/.exec(url);
    if (match === null)
      throw new ShoalError('usage', `'${url}' is not like mpi://3 or mpi://3/name: a rank of mpirun's, or * for one's own`);
    return { rank: match[1] === '*' ? this.#mpi.rank : Number(match[1]), name: match[2] ?? defaultName };
  }

  /** Worlds do not meet: their numbers differ. */
  #listeningPort(name: string): number {
    const digest = createHash('sha256')
      .update(JSON.stringify([this.#options.world, name]))
      .digest();
    return firstListener + (digest.readUInt32LE(0) % firstListener);
  }

  #proof(name: string, role: 'dealer' | 'router'): Buffer {
    const { secret, world } = this.#options;
    return createHmac('sha256', secret)
      .update(JSON.stringify(['shoal-messaging-1 mpi', world, name, role]))
      .digest();
  }

  #proves({ proof }: ControlMessage, name: string, role: 'dealer' | 'router'): boolean {
    return timingSafeEqual(proof, this.#proof(name, role));
  }
}

class MpiPipe extends BackendPipe {
  readonly peer: number;
  /** Answers to `connect`, while it asks. */
  onGreeting: ((message: ControlMessage) => void) | undefined;
  port = -1;
  readonly #mpi: MpiEndpoint;
  readonly #packetBytes: number;
  readonly #packet: IncomingPacket;
  #peerPort = -1;
  #sending = 0;

  constructor(mpi: MpiEndpoint, peer: number, options: BackendPipeOptions & { readonly packetBytes: number }) {
    super(options);
    this.#mpi = mpi;
    this.peer = peer;
    this.#packetBytes = options.packetBytes;
    this.#packet = new IncomingPacket(options.packetBytes);
  }

  /** @returns false when the port is taken. */
  listen(port: number): boolean {
    const bytesMax = Math.max(controlBytes, this.#packetBytes);
    const onMessage = (peer: number, what: number, bytes: Uint8Array): void => this.#onMessage(peer, what, bytes);
    const onOversize = (): void => this.lose(this.#violation('a part larger than messages may be'));
    if (!this.#mpi.claim(port, { onMessage, onOversize }, { bytesMax })) return false;
    this.port = port;
    return true;
  }

  /** The other end's port is known: packets can be sent. */
  attach(port: number): void {
    this.#peerPort = port;
  }

  override send(parts: readonly Uint8Array[]): void {
    if (!this.isOpen) return;
    const { peer } = this;
    const port = this.#peerPort;
    for (let k = 0; k < parts.length; k++) {
      // Parts are shorter than 2³¹ bytes, as MPI counts them (limits.ts).
      const bytes = parts[k];
      this.#sending++;
      this.#mpi.send({ peer, port, kind: k === parts.length - 1 ? kind.lastPart : kind.part, bytes }, (error) => this.#onSent(error));
    }
  }

  protected override get isSending(): boolean {
    return this.#sending > 0;
  }

  protected override release(): undefined {
    if (this.#peerPort >= 0) {
      const bytes = encodeControl({ type: control.close, port: this.port, proof: noProof });
      this.#mpi.send({ peer: this.peer, port: this.#peerPort, kind: kind.control, bytes }, () => undefined);
    }
    this.#mpi.release(this.port);
  }

  #onSent(error: ShoalError | undefined): void {
    this.#sending--;
    if (this.#sending === 0) this.flushed();
    if (error !== undefined) this.lose(new ShoalError('peer-lost', `${this.description}: ${error.message}`, { cause: error }));
  }

  #onMessage(peer: number, what: number, bytes: Uint8Array): void {
    // Packets that others send here are not the peer's fault.
    if (!this.isOpen || peer !== this.peer) return;
    try {
      if (what === kind.control) this.#onControl(decodeControl(bytes));
      else this.#onPart(bytes, what);
    } catch (thrown) {
      this.lose(thrown);
    }
  }

  #onPart(bytes: Uint8Array, what: number): void {
    if (this.#peerPort < 0) throw this.#violation('a part before the connection was accepted');
    if (what !== kind.part && what !== kind.lastPart) throw this.#violation(`a message of kind ${what}`);
    const parts = this.#packet.add(bytes, what === kind.lastPart);
    if (parts !== undefined) this.deliver(parts);
  }

  #onControl(message: ControlMessage | undefined): void {
    if (message === undefined) throw this.#violation('a control message that is none');
    if (message.type === control.close) {
      // It cannot be told anything any more.
      this.#peerPort = -1;
      this.lose(new ShoalError('peer-lost', `${this.description} was closed by the peer`));
    } else if (this.onGreeting !== undefined) this.onGreeting(message);
    // Answers to questions asked twice come twice.
    else if (message.type !== control.accept) throw this.#violation(`a control message of type ${message.type}`);
  }

  #violation(what: string): ShoalError {
    return new ShoalError('protocol', `rank ${this.peer} sent ${what} over ${this.description}`);
  }
}

interface ControlMessage {
  readonly type: number;
  readonly port: number;
  readonly proof: Uint8Array;
}

function encodeControl(message: ControlMessage): Uint8Array {
  return controlLayout.encode({ ...message, version, reserved: 0 });
}

/** Decodes a control message; undefined for anything else. */
function decodeControl(bytes: Uint8Array): ControlMessage | undefined {
  if (bytes.length !== controlBytes) return undefined;
  const message = controlLayout.decode(bytes);
  const isOurs = message.version === version && message.reserved === 0 && message.port < firstListener;
  return isOurs && message.type >= control.connect && message.type <= control.close ? message : undefined;
}
