/** The ends of peers on this host, seen before their sockets close: the kernel gives a process's memory back first, which takes tens of
 *  milliseconds, but before that marks the locks that its threads hold (native/lives.cc). Each process that has peers holds one. */
import type { LivesHandle, Native } from '../../memory/native.ts';
import type { WatchHandle } from '../../memory/native-wire.ts';

/** Bytes of a lock. */
export const lockBytes = 4;
/** The bit of a lock whose process has ended (FUTEX_OWNER_DIED). */
const isEnded = 0x4000_0000;

/** A socket whose peer holds a lock. */
interface Socket {
  /** Undefined when it is closed. */
  readonly descriptor: number | undefined;
}

export class Lives {
  readonly #native: Native;
  readonly #own: Uint32Array;
  readonly #peers = new Map<Uint32Array, Socket>();
  /** Undefined without peers, because a watch keeps the event loop alive. */
  #open: { readonly timer: number; readonly watch: WatchHandle; readonly handle: LivesHandle } | undefined;

  /** @param own lock of this process: one word of memory that peers map. */
  constructor(native: Native, own: Uint32Array) {
    this.#native = native;
    this.#own = own;
  }

  /** Ends what `socket` receives as soon as the process that holds `lock` has ended. The lock stays mapped until `delete`. */
  add(lock: Uint32Array, socket: Socket): void {
    this.#peers.set(lock, socket);
    if (this.#open === undefined) this.#begin();
    if (this.#open) this.#native.watchLives(this.#open.handle, [...this.#peers.keys()]);
  }

  delete(lock: Uint32Array): void {
    if (!this.#peers.delete(lock) || this.#open === undefined) return;
    if (this.#peers.size > 0) return this.#native.watchLives(this.#open.handle, [...this.#peers.keys()]);
    const { timer, handle, watch } = this.#open;
    this.#open = undefined;
    this.#native.closeLives(handle);
    this.#native.closeWatch(watch);
    this.#native.closeTimer(timer);
  }

  /** Without a descriptor or a thread to spare, sockets alone tell. */
  #begin(): void {
    const native = this.#native;
    let timer: number | undefined;
    let watch: WatchHandle | undefined;
    try {
      const opened = (timer = native.createTimer());
      watch = native.watchDescriptor(opened, () => this.#look(opened));
      native.setWatching(watch, true);
      this.#open = { timer, watch, handle: native.createLives(this.#own, timer) };
    } catch {
      if (watch !== undefined) native.closeWatch(watch);
      if (timer !== undefined) native.closeTimer(timer);
    }
  }

  #look(timer: number): void {
    this.#native.setTimer(timer, 0);
    for (const [lock, { descriptor }] of this.#peers)
      if ((Atomics.load(lock, 0) & isEnded) !== 0 && descriptor !== undefined) this.#native.endReading(descriptor);
  }
}
