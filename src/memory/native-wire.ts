/** The addon's face to express wires, typed: sockets on which announcements travel from the slots of one process to mirrors in
 *  others. What it does is written in native/lane_wire.cc. */
declare const opaque: unique symbol;
/** A wire; only functions of the addon look inside. */
export interface WireHandle {
  readonly [opaque]: 'wire';
}
/** Of an event loop over the sockets of a wire. */
export interface WatchHandle {
  readonly [opaque]: 'watch';
}

/** What `wirePoll` returns. */
export const wireResults = { there: 1, notYet: 0, ended: -1 } as const;

export interface NativeWire {
  /** Size of the memory that the wires of a process share; zeros at the start, aligned to 64 bytes. */
  wireMemoryBytes(peers: number, payloadBytesMax: number): number;
  /** A descriptor of our own of the same socket. */
  takeSocket(descriptor: number): number;
  /** For one that no wire took. */
  closeSocket(descriptor: number): void;
  /** The descriptors are the wire's from now on, and closed with it. Slots are two per rank. The caller keeps all views alive. */
  createWire(
    descriptors: readonly number[],
    memory: Uint8Array,
    ownSlots: readonly Uint8Array[],
    peerSlots: readonly Uint8Array[],
    announcedOffset: number,
    payloadBytesMax: number,
  ): WireHandle;
  /** Sends `bytes` of the own slot, from its announcement on, to every peer. */
  wireSend(wire: WireHandle, turn: number, bytes: number): void;
  /** Until every peer's slot `turn` has announced `value`: looks for `spinNs`, then sleeps `sleepMs` at most. */
  wirePoll(wire: WireHandle, turn: number, value: number, spinNs: number, sleepMs: number): number;
  closeWire(wire: WireHandle): void;
  /** `onReadable` is called while something can be read, once `setWatching` is on. To be closed before its wire. */
  watchWire(wire: WireHandle, onReadable: () => void): WatchHandle;
  setWatching(watch: WatchHandle, on: boolean): void;
  closeWatch(watch: WatchHandle): void;
}
