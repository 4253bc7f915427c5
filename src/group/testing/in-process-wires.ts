/** Sockets and wires of in-process worlds: what native/wire.h does, between ranks of one thread. Messages take some turns of the event
 *  loop, the larger ones in two pieces; a socket takes so many bytes at a time. Neither order on a socket nor the end of a stream is lost.
 *  Which turns and which pieces, `random` says. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import type { Random } from '../../base/random.ts';
import type { GivenSocket, PeerIdentity, SocketSource } from '../../fabric/fabric.ts';
import type { TurnOf } from '../../fabric/testing/loopback.ts';
import { wireBuffers, wireResults, type NativeWire, type WatchHandle, type WireHandle } from '../../memory/native-wire.ts';

/** Most bytes that the other side has not taken; the rest waits at the sender. */
const socketBytesMax = 4096;

/** A part of a message: where its bytes go, and the signal that rises after the last. */
interface Piece {
  readonly turn: number;
  readonly bytes: Uint8Array;
  readonly put: { readonly buffer: number; readonly offset: number; readonly signal: number | undefined } | undefined;
}

/** One rank's end of a stream. */
class End {
  readonly owner: number;
  readonly changed = new Set<() => void>();
  readonly arrived = new Fifo<Piece>();
  readonly unsent = new Fifo<Piece>();
  readonly #random: Random;
  readonly #turn: TurnOf;
  readonly #underWay = new Fifo<Piece>();
  #other: End | undefined;
  #bytes = 0;
  #descriptors = 0;
  #delivering = false;
  /** Nothing more is sent. */
  closed = false;

  constructor(owner: number, random: Random, turn: TurnOf) {
    this.owner = owner;
    this.#random = random;
    this.#turn = turn;
  }

  static pair(owners: readonly [number, number], random: Random, turn: TurnOf): [End, End] {
    const [near, far] = owners.map((owner) => new End(owner, random, turn));
    near.#other = far;
    far.#other = near;
    return [near, far];
  }

  /** Calls back in a later turn of its owner. */
  soon(callback: () => void): void {
    this.#turn(this.owner, callback);
  }

  get other(): End {
    return must(this.#other, () => 'ends are made in pairs');
  }

  /** Everything that will come is there. */
  get ended(): boolean {
    return this.other.closed && this.other.#underWay.length === 0;
  }

  get hasRoom(): boolean {
    return this.#bytes < socketBytesMax;
  }

  post(piece: Piece): void {
    if (this.closed || this.other.closed) return;
    this.unsent.push(piece);
    this.flush();
  }

  flush(): void {
    while (this.hasRoom && this.unsent.length > 0) {
      const piece = must(this.unsent.shift(), () => 'it is not empty');
      this.#bytes += piece.bytes.length;
      this.#underWay.push(piece);
      this.#deliver();
    }
  }

  take(): Piece | undefined {
    const piece = this.arrived.shift();
    if (piece) this.other.#bytes -= piece.bytes.length;
    if (piece) this.other.#tell();
    return piece;
  }

  open(): this {
    this.#descriptors++;
    return this;
  }

  /** One descriptor of it. */
  close(): void {
    if (--this.#descriptors === 0) this.end();
  }

  end(): void {
    if (this.closed) return;
    this.closed = true;
    this.other.#tell();
  }

  #deliver(): void {
    if (this.#delivering) return;
    this.#delivering = true;
    this.other.soon(() => {
      this.#delivering = false;
      const count = 1 + this.#random.integer(this.#underWay.length);
      for (let k = 0; k < count; k++) this.other.arrived.push(must(this.#underWay.shift(), () => 'count is its length at most'));
      this.other.#tell();
      if (this.#underWay.length > 0) this.#deliver();
    });
  }

  #tell(): void {
    for (const each of this.changed) each();
  }
}

interface Wire {
  /** Sockets, by the peer's position among the others. */
  readonly descriptors: readonly number[];
  readonly ends: readonly End[];
  readonly own: readonly Uint8Array[];
  /** Announcement slots, by the peer's position and the turn. */
  readonly slots: readonly (readonly Uint8Array[])[];
  readonly announcedOffset: number;
  readonly signalsOffset: number;
  /** Memory that writes go to, by turn and code of the buffer. */
  readonly buffers: Uint8Array[][];
  arrivals: number;
}

interface Watch {
  readonly set: (on: boolean) => void;
  readonly close: () => void;
}

const signalBytes = 64;
const turns = 2;

/** A socket of this process, which has no congestion to control. */
const given = (descriptor: number): GivenSocket => ({ descriptor, review: () => undefined });

/** All sockets of a world. */
export class InProcessSockets {
  /** Announcements and puts, ever. */
  messages = 0;
  readonly #random: Random;
  readonly #turn: TurnOf;
  readonly #listening = new Map<string, { readonly source: SocketSource; readonly identity: PeerIdentity }>();
  readonly #open = new Map<number, End>();
  /** Descriptors of processes that were killed, which go on until the end of their turn. */
  readonly #lost = new Map<number, End>();
  #descriptors = 100;

  /** @param turn default: the next turn, in the order of the calls. */
  constructor(random: Random, turn: TurnOf = (_rank, callback) => void setImmediate(callback)) {
    this.#random = random;
    this.#turn = turn;
  }

  /** Descriptors that are open. */
  get open(): number {
    return this.#open.size;
  }

  /** The sockets of one rank, until `close`: then its streams end, as when its process does. */
  source(identity: PeerIdentity): SocketSource & { close(): void } {
    const candidate = candidateOf(identity.rank);
    const source: SocketSource & { close(): void } = {
      candidates: [candidate],
      onSocket: undefined,
      open: async ({ candidates }, { peer, tag }, take) => {
        const target = candidates.map((each) => this.#listening.get(each)).find((each) => each !== undefined);
        if (!target) throw new ShoalError('peer-lost', `rank ${peer.rank} has no sockets in this process`, { peer: peer.rank });
        const [near, far] = End.pair([identity.rank, target.identity.rank], this.#random, this.#turn).map((end) => this.#add(end));
        this.#turn(target.identity.rank, () => {
          target.source.onSocket?.(identity, tag, (takeOther) => given(takeOther(far)));
          this.#close(far);
        });
        const taken = take(near);
        this.#close(near);
        return given(taken);
      },
      close: () => {
        this.#listening.delete(candidate);
        for (const end of this.#open.values()) if (end.owner === identity.rank) end.end();
      },
    };
    this.#listening.set(candidate, { source, identity });
    return source;
  }

  /** Closes the rank's descriptors, as its killed process would. */
  crash(rank: number): void {
    this.#listening.delete(candidateOf(rank));
    for (const [descriptor, end] of this.#open) {
      if (end.owner !== rank) continue;
      end.end();
      this.#open.delete(descriptor);
      this.#lost.set(descriptor, end);
    }
  }

  /** The addon that runs them. */
  readonly native: NativeWire = {
    wireMemoryBytes: () => 0,
    takeSocket: (descriptor) => this.#add(this.#end(descriptor), this.#lost.has(descriptor) ? this.#lost : this.#open),
    socketRoundTrip: () => undefined,
    closeSocket: (descriptor) => this.#close(descriptor),
    createWire: (descriptors, _memory, own, peerSlots, scratch, [announcedOffset, , signalsOffset]) => {
      const wire: Wire = {
        descriptors,
        ends: descriptors.map((descriptor) => this.#end(descriptor)),
        own,
        slots: descriptors.map((_, peer) => peerSlots.slice(peer * turns, (peer + 1) * turns)),
        announcedOffset,
        signalsOffset,
        buffers: scratch.map((each) => [new Uint8Array(0), new Uint8Array(0), each]),
        arrivals: 0,
      };
      return wire as unknown as WireHandle;
    },
    wireBind: (handle, turn, data, output) => {
      const { buffers } = wireOf(handle);
      buffers[turn][wireBuffers.data] = data;
      buffers[turn][wireBuffers.output] = output;
    },
    wireAnnounce: (handle, turn, bytes, to) => {
      const { ends, own, announcedOffset } = wireOf(handle);
      this.messages++;
      const announcement = own[turn].slice(announcedOffset, announcedOffset + bytes);
      for (const [peer, end] of ends.entries()) if (((to >>> peer) & 1) !== 0) end.post({ turn, bytes: announcement, put: undefined });
    },
    wirePut: (handle, peer, turn, buffer, offset, bytes, targetBuffer, targetOffset, signal, announced) => {
      this.messages++;
      const wire = wireOf(handle);
      if (announced > 0) this.native.wireAnnounce(handle, turn, announced, 1 << peer);
      const source = wire.buffers[turn][buffer].slice(offset, offset + bytes);
      if (source.length !== bytes) throw new Error('shoal addon: wrong arguments');
      const cut = this.#random.integer(bytes + 1);
      const end = wire.ends[peer];
      if (cut > 0)
        end.post({ turn, bytes: source.subarray(0, cut), put: { buffer: targetBuffer, offset: targetOffset, signal: undefined } });
      end.post({ turn, bytes: source.subarray(cut), put: { buffer: targetBuffer, offset: targetOffset + cut, signal } });
    },
    wirePoll: (handle, turn, value) => {
      const wire = wireOf(handle);
      const reached = (peer: number): boolean => ((announcedIn(wire, peer, turn) - value) | 0) >= 0;
      let [there, ended] = [true, false];
      for (const [peer, end] of wire.ends.entries()) {
        end.flush();
        if (!reached(peer)) receive(wire, peer);
        if (reached(peer)) continue;
        there = false;
        ended ||= end.ended;
      }
      if (there) return wireResults.there;
      return ended ? wireResults.ended : wireResults.notYet;
    },
    wireProgress: (handle, from) => {
      const wire = wireOf(handle);
      const before = wire.arrivals;
      const sending = this.native.wireUnsent(handle);
      let ended = false;
      for (const [peer, end] of wire.ends.entries()) {
        end.flush();
        if (((from >>> peer) & 1) === 0) continue;
        receive(wire, peer);
        ended ||= end.ended;
      }
      if (wire.arrivals !== before || (sending && !this.native.wireUnsent(handle))) return wireResults.there;
      return ended ? wireResults.ended : wireResults.notYet;
    },
    wireUnsent: (handle) => wireOf(handle).ends.some((end) => end.unsent.length > 0 && !end.ended),
    closeWire: (handle) => {
      for (const descriptor of wireOf(handle).descriptors) this.#close(descriptor);
    },
    watchWire: (handle, onReadable) => watch(wireOf(handle), onReadable) as unknown as WatchHandle,
    watchDescriptor: () => {
      throw new Error('in-process sockets are watched by their wires');
    },
    setWatching: (handle, on) => watchOf(handle).set(on),
    closeWatch: (handle) => watchOf(handle).close(),
  };

  #add(end: End, ends = this.#open): number {
    ends.set(++this.#descriptors, end.open());
    return this.#descriptors;
  }

  #end(descriptor: number): End {
    return must(this.#open.get(descriptor) ?? this.#lost.get(descriptor), () => `descriptor ${descriptor} is open`);
  }

  #close(descriptor: number): void {
    this.#end(descriptor).close();
    if (!this.#open.delete(descriptor)) this.#lost.delete(descriptor);
  }
}

function candidateOf(rank: number): string {
  return `in-process://${rank}`;
}

function wireOf(handle: WireHandle): Wire {
  return handle as unknown as Wire;
}

function watchOf(handle: WatchHandle): Watch {
  return handle as unknown as Watch;
}

function word(view: Uint8Array, offset: number): Uint32Array {
  return new Uint32Array(view.buffer, view.byteOffset + offset, 1);
}

function announcedIn(wire: Wire, peer: number, turn: number): number {
  return Atomics.load(word(wire.slots[peer][turn], wire.announcedOffset), 0);
}

/** Puts what has come where it belongs. */
function receive(wire: Wire, peer: number): void {
  for (let piece = wire.ends[peer].take(); piece; piece = wire.ends[peer].take()) {
    const { turn, bytes, put } = piece;
    if (put) {
      wire.buffers[turn][put.buffer].set(bytes, put.offset);
      if (put.signal === undefined) continue;
      Atomics.add(word(wire.own[turn], wire.signalsOffset + put.signal * signalBytes), 0, 1);
    } else {
      const slot = wire.slots[peer][turn];
      slot.set(bytes.subarray(4), wire.announcedOffset + 4);
      Atomics.store(word(slot, wire.announcedOffset), 0, new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true));
    }
    wire.arrivals++;
  }
}

/** Calls back, a turn later, for as long as there is something to receive or to send, or a stream has ended. */
function watch({ ends }: Wire, onReadable: () => void): Watch {
  let [watching, scheduled] = [false, false];
  const isReady = (end: End): boolean => end.arrived.length > 0 || (end.unsent.length > 0 && end.hasRoom) || end.ended;
  const look = (): void => {
    if (!watching || scheduled || !ends.some(isReady)) return;
    scheduled = true;
    ends[0].soon(() => {
      scheduled = false;
      if (!watching) return;
      onReadable();
      // The end of a stream can be read for ever, and is told once.
      if (ends.some((end) => isReady(end) && !end.ended)) look();
    });
  };
  for (const end of ends) end.changed.add(look);
  return {
    set: (on) => {
      watching = on;
      look();
    },
    close: () => {
      watching = false;
      for (const end of ends) end.changed.delete(look);
    },
  };
}
