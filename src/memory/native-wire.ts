/** The addon's interface to network path wires, typed: sockets on which announcements travel from the slots of one process to
 *  mirrors in others. Their behaviour is described in native/wire.h. */
declare const opaque: unique symbol;
/** Handle of a wire; only functions of the addon look inside. */
export interface WireHandle {
  readonly [opaque]: 'wire';
}
/** Handle of an event loop that watches the sockets of a wire, or one descriptor. */
export interface WatchHandle {
  readonly [opaque]: 'watch';
}

/** Codes of buffers. */
export const wireBuffers = { data: 0, input: 0, output: 1, scratch: 2 } as const;

/** Results of `wirePoll` and `wireProgress`. */
export const wireResults = { there: 1, notYet: 0, ended: -1, forged: -2 } as const;

/** Functions of the addon. Sets of peers are bits of a number, by position among the others; a wire has at most 32. */
export interface NativeWire {
  /** Size of the memory that the wires of a process share; zeros at the start, aligned to 64 bytes. */
  wireMemoryBytes(peers: number, payloadBytesMax: number, putBytesMax: number): number;
  /** Duplicates a descriptor of a socket. */
  takeSocket(descriptor: number): number;
  /** The shortest round trip that the kernel has seen, microseconds; undefined when it has seen none. */
  socketRoundTrip(descriptor: number): number | undefined;
  /** Closes a descriptor that no wire has taken. */
  closeSocket(descriptor: number): void;
  /** Makes a wire. The descriptors are the wire's from now on, and closed with it. Slots are two per rank, scratch is for either
   *  turn. `layout`: offset of the announcement in a slot, most bytes from there on; offset of the signals, their number; most
   *  bytes of a put. The caller keeps all views alive. */
  createWire(
    descriptors: readonly number[],
    memory: Uint8Array,
    ownSlots: readonly Uint8Array[],
    peerSlots: readonly Uint8Array[],
    scratch: readonly Uint8Array[],
    layout: Float64Array,
  ): WireHandle;
  /** Sets the memory that other ranks' puts go into, and that own puts come from. */
  wireBind(wire: WireHandle, turn: number, data: Uint8Array, output: Uint8Array): void;
  /** Sends `bytes` of the own slot, from the announcement on, to a set of peers. */
  wireAnnounce(wire: WireHandle, turn: number, bytes: number, to: number): void;
  /** Sends bytes of a buffer into a peer's, then raises its signal. Buffers by code. Peers by position among the others.
   *  `announced`: bytes of the own slot's announcement that go before, in the same packet; 0: none. */
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
  /** Waits until every peer's slot `turn` has announced `value`, at most `spinNs`. */
  wirePoll(wire: WireHandle, turn: number, value: number, spinNs: number): number;
  /** Waits until anything has come from a set of peers, or the kernel has taken bytes that it had not taken before; at most `spinNs`. */
  wireProgress(wire: WireHandle, from: number, spinNs: number): number;
  /** True while the kernel has not taken all bytes that were sent. */
  wireUnsent(wire: WireHandle): boolean;
  closeWire(wire: WireHandle): void;
  /** Makes a watch: `onReadable` is called while something can be read, once `setWatching` is on. Must be closed before its wire. */
  watchWire(wire: WireHandle, onReadable: () => void): WatchHandle;
  /** The same for one descriptor, which stays its owner's: a duplicate is watched. */
  watchDescriptor(descriptor: number, onReadable: () => void): WatchHandle;
  setWatching(watch: WatchHandle, on: boolean): void;
  closeWatch(watch: WatchHandle): void;
}
