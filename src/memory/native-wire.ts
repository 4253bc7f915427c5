/** The addon's face to network path wires, typed: sockets on which announcements travel from the slots of one process to mirrors in
 *  others. What it does is written in native/wire.h. */
declare const opaque: unique symbol;
/** A wire; only functions of the addon look inside. */
export interface WireHandle {
  readonly [opaque]: 'wire';
}
/** Of an event loop over the sockets of a wire, or over one descriptor. */
export interface WatchHandle {
  readonly [opaque]: 'watch';
}

/** Codes of buffers. */
export const wireBuffers = { data: 0, input: 0, output: 1, scratch: 2 } as const;

/** What `wirePoll` and `wireProgress` return. */
export const wireResults = { there: 1, notYet: 0, ended: -1 } as const;

/** Sets of peers are bits of a number, by position among the others; a wire has 32 at most. */
export interface NativeWire {
  /** Size of the memory that the wires of a process share; zeros at the start, aligned to 64 bytes. */
  wireMemoryBytes(peers: number, payloadBytesMax: number, putBytesMax: number): number;
  /** A descriptor of our own of the same socket. */
  takeSocket(descriptor: number): number;
  /** The shortest round trip that the kernel has seen, microseconds; undefined when it has seen none. */
  socketRoundTrip(descriptor: number): number | undefined;
  /** For one that no wire took. */
  closeSocket(descriptor: number): void;
  /** The descriptors are the wire's from now on, and closed with it. Slots are two per rank, scratch is for either turn. `layout`:
   *  offset of the announcement in a slot, most bytes from there on; offset of the signals, their number; most bytes of a put.
   *  The caller keeps all views alive. */
  createWire(
    descriptors: readonly number[],
    memory: Uint8Array,
    ownSlots: readonly Uint8Array[],
    peerSlots: readonly Uint8Array[],
    scratch: readonly Uint8Array[],
    layout: Float64Array,
  ): WireHandle;
  /** Where puts of other ranks go, and from where own ones come. */
  wireBind(wire: WireHandle, turn: number, data: Uint8Array, output: Uint8Array): void;
  /** Sends `bytes` of the own slot, from the announcement on, to a set of peers. */
  wireAnnounce(wire: WireHandle, turn: number, bytes: number, to: number): void;
  /** Sends bytes of a buffer into a peer's, then raises its signal. Buffers by code. Peers by position among the others. `announced`:
   *  bytes of the own slot's announcement that go before, in the same packet; 0: none. */
  wirePut(
    wire: WireHandle,
    peer: number,
    turn: number,
    buffer: number,
    offset: number,
    bytes: number,
    targetBuffer: number,
    targetOffset: number,
    signal: number,
    announced: number,
  ): void;
  /** Until every peer's slot `turn` has announced `value`: looks for `spinNs`, then sleeps `sleepMs` at most. */
  wirePoll(wire: WireHandle, turn: number, value: number, spinNs: number, sleepMs: number): number;
  /** Until something has come from a set of peers, whatever it is, or the kernel has taken what it had not before. */
  wireProgress(wire: WireHandle, from: number, spinNs: number, sleepMs: number): number;
  /** The kernel has not taken all that was sent. */
  wireUnsent(wire: WireHandle): boolean;
  closeWire(wire: WireHandle): void;
  /** `onReadable` is called while something can be read, once `setWatching` is on. To be closed before its wire. */
  watchWire(wire: WireHandle, onReadable: () => void): WatchHandle;
  /** The same for one descriptor, which stays its owner's: a duplicate is watched. */
  watchDescriptor(descriptor: number, onReadable: () => void): WatchHandle;
  setWatching(watch: WatchHandle, on: boolean): void;
  closeWatch(watch: WatchHandle): void;
}
