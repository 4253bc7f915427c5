/** `inproc://name`: threads of one process, the same thread included. A pipe is two rings in shared memory; a
 *  BroadcastChannel per end, which any thread can open by name, is what wakes a sleeping event loop.
 *
 *    dealer's thread                                      router's thread
 *      ring →  ════════ packets ════════════════════════▶   polls while busy, else sleeps and is woken
 *      ◀══════════════════════════════════════════ ring ←
 *      channel `shoal-inproc:<world>:<name>`: dial(memory) ──▶  accepts by a flag in the memory; ◀── listening
 *
 *  While packets come fast, a thread spins for some microseconds instead of sleeping: waking one costs tens. It does so
 *  for peers in other threads only, and the more it is in vain, the shorter.
 *  Everything in the process is trusted. A thread that ends without closing is not noticed; what is sent to it waits. */
import { createHash } from 'node:crypto';
import net from 'node:net';
import { BroadcastChannel, threadId } from 'node:worker_threads';
import { allowedCpus } from '../../../base/files/allowed-cpus.ts';
import { messageOf, ShoalError } from '../../../base/errors.ts';
import { Fifo } from '../../../base/collections/fifo.ts';
import type { Backend, BackendOptions, Listener, Pipe, PipeConnectOptions, PipeHandlers } from '../../backend.ts';
import { BackendPipe, type BackendPipeOptions } from '../backend-pipe.ts';
import { dial } from '../dial.ts';
import { ringBytes, RingReader, RingWriter } from './inproc-ring.ts';

const headerBytes = 64;
const state = { index: 0, dialled: 0, accepted: 1, closed: 2 } as const;
const dialerThread = 1;
const acceptorThread = 2;
/** Loads per look, a few microseconds. */
const spinLoads = 512;
/** The number of looks in vain before a thread sleeps: at most; and after it was woken, which says that looking was in vain,
 *  for instance because both threads are on one processor. */
const looksMost = 32;
const looksAfterWake = 3;
/** Looks between two turns of the event loop. */
const looksPerTurn = 8;
const packetsPerTurn = 256;
/** A pipe that knows so many begins anew, so that they can be collected. */
const referencedMemories = 4096;
const closeSuffix = 'closed';

type Announcement = { readonly kind: 'dial'; readonly id: string; readonly memory: SharedArrayBuffer } | { readonly kind: 'listening' };

/** Notes that come over the channel of a pipe beside wake-ups. */
type Note = 0 | typeof closeSuffix | { readonly slot: number; readonly memory: SharedArrayBuffer };

export class InprocBackend implements Backend {
  readonly #options: BackendOptions;
  readonly #pipes = new Set<InprocPipe>();
  readonly #listeners = new Set<Listener>();

  constructor(options: BackendOptions) {
    this.#options = options;
  }

  async listen(url: string, onPipe: (pipe: Pipe) => void): Promise<Listener> {
    const channelName = this.#channelName(url);
    const lock = await lockName(url, channelName);
    const channel = new BroadcastChannel(channelName);
    onPost(channel, (data) => {
      const announcement = data as Announcement;
      if (announcement.kind !== 'dial') return;
      const flags = new Int32Array(announcement.memory, 0, headerBytes / 4);
      if (Atomics.compareExchange(flags, state.index, state.dialled, state.accepted) !== state.dialled) return;
      Atomics.store(flags, acceptorThread, threadId);
      onPipe(this.#open(announcement.memory, announcement.id, 'acceptor', url));
    });
    channel.postMessage({ kind: 'listening' } satisfies Announcement);
    const listener = {
      url,
      close: async (): Promise<void> => {
        this.#listeners.delete(listener);
        channel.close();
        await lock.release();
      },
    };
    this.#listeners.add(listener);
    return listener;
  }

  async connect(url: string, { timeoutMs, signal }: PipeConnectOptions): Promise<Pipe> {
    const channel = new BroadcastChannel(this.#channelName(url));
    const memory = new SharedArrayBuffer(headerBytes + 2 * ringBytes);
    const id = Buffer.from(this.#options.random.bytes(12)).toString('hex');
    const flags = new Int32Array(memory, 0, headerBytes / 4);
    flags[dialerThread] = threadId;
    const pipe = this.#open(memory, id, 'dialer', url);
    const late = (): string => `nobody in this process has bound ${url} within ${timeoutMs} ms`;
    try {
      await dial({ url, clock: this.#options.clock, timeoutMs, signal, late }, (finish) => {
        pipe.onAccepted = finish;
        const announce = (): void => channel.postMessage({ kind: 'dial', id, memory } satisfies Announcement);
        onPost(channel, (data) => {
          if ((data as Announcement).kind === 'listening') announce();
        });
        announce();
      });
      return pipe;
    } catch (error) {
      // A router that comes later does not accept it.
      await pipe.close(0);
      throw error;
    } finally {
      channel.close();
    }
  }

  async close(): Promise<void> {
    await Promise.all([...[...this.#listeners].map((each) => each.close()), ...[...this.#pipes].map((pipe) => pipe.close(0))]);
  }

  #open(memory: SharedArrayBuffer, id: string, role: 'dialer' | 'acceptor', url: string): InprocPipe {
    const { clock } = this.#options;
    const spins = allowedCpus().count > 1;
    const pipe = new InprocPipe({ memory, id, role, url, clock, spins, onEnded: () => this.#pipes.delete(pipe) });
    this.#pipes.add(pipe);
    return pipe;
  }

  #channelName(url: string): string {
    const name = /^inproc:\/\/([\w.-]{1,64})$/.exec(url)?.[1];
    if (name === undefined)
      throw new ShoalError('usage', `'${url}' is not like inproc://router: a name of letters, digits, '.', '_' and '-'`);
    return `shoal-inproc:${this.#options.world}:${name}`;
  }
}

function onPost(channel: BroadcastChannel, callback: (data: unknown) => void): void {
  // Node's types say EventEmitter, but it is an EventTarget.
  const target = channel as unknown as { addEventListener(type: 'message', listener: (event: { data: unknown }) => void): void };
  target.addEventListener('message', ({ data }) => callback(data));
}

/** A name has one listener in the process: the kernel decides, so that threads need not talk about it. */
async function lockName(url: string, name: string): Promise<{ release(): Promise<void> }> {
  if (process.platform !== 'linux') return { release: async () => undefined };
  const server = net.createServer((socket) => socket.destroy());
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) =>
      reject(
        error.code === 'EADDRINUSE'
          ? new ShoalError('system', `${url} is bound in this process already`, { cause: error })
          : new ShoalError('system', `${url} cannot be bound: ${messageOf(error)}`, { cause: error }),
      ),
    );
    server.listen({ path: `\0shoal-${process.pid}-${createHash('sha256').update(name).digest('hex')}` }, resolve);
  });
  server.unref();
  return { release: () => new Promise((resolve) => server.close(() => resolve())) };
}

interface InprocPipeOptions extends Omit<BackendPipeOptions, 'description'> {
  readonly memory: SharedArrayBuffer;
  readonly id: string;
  readonly role: 'dialer' | 'acceptor';
  readonly url: string;
  /** There is another processor for the peer to run on. */
  readonly spins: boolean;
}

class InprocPipe extends BackendPipe {
  override readonly pointers = true;
  /** The router has taken the dial. */
  onAccepted: (() => void) | undefined;
  readonly #options: InprocPipeOptions;
  readonly #flags: Int32Array;
  readonly #reader: RingReader;
  readonly #writer: RingWriter;
  /** Ours, on which the peer wakes us; and the peer's. */
  readonly #bell: BroadcastChannel;
  readonly #peerBell: BroadcastChannel;
  readonly #backlog = new Fifo<{ parts: readonly Uint8Array[]; references: readonly number[] }>();
  /** Memory that has been sent by reference, and that of the peer. */
  readonly #sentMemories = new Map<ArrayBufferLike, number>();
  readonly #memories = new Map<number, SharedArrayBuffer>();
  /** A packet whose memory is not here yet. */
  #held: { parts: Uint8Array[]; references: readonly number[] } | undefined;
  #polling = false;
  /** The number of looks that have been worth it lately; and of those left before we sleep. */
  #patience = looksMost / 2;
  #looks = 0;
  #looksThisTurn = 0;

  constructor(options: InprocPipeOptions) {
    const { memory, id, role, url, clock, onEnded } = options;
    super({ description: url, clock, onEnded });
    this.#options = options;
    const [own, other] = role === 'dialer' ? [0, 1] : [1, 0];
    this.#flags = new Int32Array(memory, 0, headerBytes / 4);
    this.#writer = new RingWriter(memory, headerBytes + own * ringBytes);
    this.#reader = new RingReader(memory, headerBytes + other * ringBytes);
    this.#bell = new BroadcastChannel(`shoal-inproc-bell:${id}:${own}`);
    this.#peerBell = new BroadcastChannel(`shoal-inproc-bell:${id}:${other}`);
    onPost(this.#bell, (data) => this.#onNote(data as Note));
    if (role === 'acceptor') this.#peerBell.postMessage(0);
    this.#reader.sleep();
  }

  override setHandlers(handlers: PipeHandlers): void {
    super.setHandlers(handlers);
    this.#poll();
  }

  override send(parts: readonly Uint8Array[], pointers: readonly Uint8Array[] = []): void {
    if (!this.isOpen) return;
    const references = this.#references(pointers);
    if (references === undefined) return;
    if (this.#backlog.length > 0) {
      this.#backlog.push({ parts, references });
      return;
    }
    this.#writer.begin(parts, references);
    if (!this.#writer.continue()) {
      // Its place in the backlog says that it is being written.
      this.#backlog.push({ parts, references });
      this.#writeBacklog();
    }
    if (this.#writer.mustWake) this.#peerBell.postMessage(0);
    this.#look();
  }

  protected override get isSending(): boolean {
    return this.#backlog.length > 0 && this.#peerAlive();
  }

  protected override release(): undefined {
    Atomics.store(this.#flags, state.index, state.closed);
    this.#peerBell.postMessage(closeSuffix satisfies Note);
    this.#bell.close();
    // The note is in the peer's queue once posted; closing does not take it back.
    this.#peerBell.close();
  }

  #peerAlive(): boolean {
    return Atomics.load(this.#flags, state.index) === state.accepted;
  }

  #onNote(note: Note): void {
    if (this.onAccepted !== undefined && this.#peerAlive()) {
      this.onAccepted();
      this.onAccepted = undefined;
    }
    if (!this.isOpen) return;
    if (typeof note === 'object') this.#memories.set(note.slot, note.memory);
    this.#drain();
    // Woken, we are awake until we say otherwise, also when only part of a packet came.
    this.#patience = Math.max(this.#patience, looksAfterWake);
    this.#look();
    if (note === closeSuffix) this.lose(new ShoalError('peer-lost', `the other end of ${this.description} was closed`));
  }

  /** Looks now and then until nothing comes any more, then sleeps. */
  #poll(): void {
    if (this.#polling || !this.isOpen) return;
    this.#polling = true;
    this.#reader.wake();
    const look = (): void => {
      this.#polling = false;
      if (!this.isOpen) return;
      const elsewhere = this.#options.spins && this.#flags[dialerThread] !== this.#flags[acceptorThread];
      if (elsewhere && this.#looks > 0) this.#reader.spin(spinLoads);
      if (this.#drain()) {
        this.#patience = Math.min(looksMost, this.#patience + 2);
        this.#look();
      } else if (elsewhere && this.#looks > 0) {
        this.#looks--;
        this.#poll();
      } else if (!this.#reader.sleep()) this.#poll();
      else this.#patience >>= 1;
    };
    // A turn of the event loop costs as much as an answer takes; but everything else must have its turns. The tick is
    // asked for from a microtask, so that it comes after all that the application does with what has come.
    if (this.#looks > 0 && this.#looksThisTurn++ < looksPerTurn) queueMicrotask(() => process.nextTick(look));
    else {
      this.#looksThisTurn = 0;
      setImmediate(look);
    }
  }

  /** Something happened: more is likely soon. */
  #look(): void {
    this.#looks = this.#patience;
    this.#poll();
  }

  /** @returns something came. */
  #drain(): boolean {
    let came = false;
    if (this.#backlog.length > 0) this.#writeBacklog();
    for (let k = 0; k < packetsPerTurn && this.isOpen; k++) {
      const packet = this.#held ?? this.#reader.next();
      if (packet === undefined) break;
      this.#held = undefined;
      const pointers = this.#resolve(packet.references);
      if (pointers === undefined) {
        this.#held = packet;
        break;
      }
      came = true;
      this.deliver(packet.parts, pointers);
    }
    if (this.#reader.mustWake && this.isOpen) this.#peerBell.postMessage(0);
    return came;
  }

  #writeBacklog(): void {
    while (this.#backlog.length > 0) {
      while (!this.#writer.continue()) {
        if (this.#writer.mustWake) this.#peerBell.postMessage(0);
        if (!this.#writer.waitForRoom()) return;
      }
      this.#backlog.shift();
      const next = this.#backlog.peek();
      if (next !== undefined) this.#writer.begin(next.parts, next.references);
    }
    if (this.#writer.mustWake) this.#peerBell.postMessage(0);
    this.flushed();
  }

  /** Slot, offset, bytes each; the memory itself goes over the channel the first time. Undefined when the pipe has ended
   *  because it knows too many memories: the next one begins with none. */
  #references(pointers: readonly Uint8Array[]): number[] | undefined {
    const references: number[] = [];
    // One packet may refer to more.
    const most = this.#sentMemories.size === 0 ? Infinity : referencedMemories;
    for (const pointer of pointers) {
      let slot = this.#sentMemories.get(pointer.buffer);
      if (slot === undefined) {
        slot = this.#sentMemories.size;
        if (slot >= most) {
          // It ends here and there; what was not received is sent again over the next pipe.
          this.lose(new ShoalError('peer-lost', `${this.description} has passed ${most} shared memories and begins anew`));
          return undefined;
        }
        this.#sentMemories.set(pointer.buffer, slot);
        this.#peerBell.postMessage({ slot, memory: pointer.buffer as SharedArrayBuffer } satisfies Note);
      }
      references.push(slot, pointer.byteOffset, pointer.byteLength);
    }
    return references;
  }

  #resolve(references: readonly number[]): Uint8Array[] | undefined {
    const pointers: Uint8Array[] = [];
    for (let k = 0; k < references.length; k += 3) {
      const memory = this.#memories.get(references[k]);
      if (memory === undefined) return undefined;
      pointers.push(new Uint8Array(memory, references[k + 1], references[k + 2]));
    }
    return pointers;
  }
}
