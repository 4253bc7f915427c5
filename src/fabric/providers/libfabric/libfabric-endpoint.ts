/** An endpoint of libfabric with its slots: messages to send and to receive, and operations under way. It must not know what
 *  messages mean. It calls its listener from `poll` only. */
import {
  ofiAgain,
  ofiEvents,
  ofiEventWords,
  type NativeWithOfi,
  type OfiDeviceFacts,
  type OfiDeviceHandle,
  type OfiEndpointHandle,
  type OfiRegistrationHandle,
} from './native-ofi.ts';

/** Bytes of a message with its header: as many as `shm` and `ofi_rxm` take at once, so that none overtakes another. */
export const slotBytes = 2048;
const batch = 64;

export interface EndpointListener {
  /** A message is in `received`, in this slot, which is given back with `repost`. */
  onReceived(slot: number, bytes: number): void;
  /** A write has announced this number. */
  onRemoteData(data: number): void;
  /** The operation is done: its source may change. */
  onTransmitted(slot: number): void;
  /** The operation in `slot` has failed; undefined: the endpoint has. */
  onFailed(slot: number | undefined, error: number): void;
}

export interface EndpointOptions extends Pick<OfiDeviceFacts, 'source' | 'receives' | 'transmits'> {
  readonly native: NativeWithOfi;
  readonly device: OfiDeviceHandle;
}

/** Bytes to write and their target, in libfabric's terms. */
export interface WriteRequest {
  readonly source: Uint8Array;
  readonly registration: OfiRegistrationHandle | undefined;
  readonly address: bigint;
  readonly key: bigint;
}

export class LibfabricEndpoint {
  readonly name: Uint8Array;
  /** Descriptor that is readable when there may be events to poll; −1: there is none. */
  readonly waitFd: number;
  readonly received: Buffer;
  readonly receivedView: DataView;
  readonly sending: Buffer;
  readonly sendingView: DataView;
  readonly #native: NativeWithOfi;
  readonly #handle: OfiEndpointHandle;
  readonly #free: number[];
  readonly #transmits: number;
  readonly #events = new Float64Array(batch * ofiEventWords);
  readonly #oneEvent = new Float64Array(ofiEventWords);
  #open = true;

  /** @throws Error of the addon, whose `code` is the errno's name. */
  constructor({ native, device, source, receives, transmits }: EndpointOptions) {
    this.#native = native;
    this.#transmits = transmits;
    this.received = Buffer.from(new ArrayBuffer(receives * slotBytes));
    this.receivedView = new DataView(this.received.buffer);
    this.sending = Buffer.from(new ArrayBuffer(transmits * slotBytes));
    this.sendingView = new DataView(this.sending.buffer);
    const opened = native.ofiEndpoint(device, source, slotBytes, new Uint8Array(this.received.buffer), new Uint8Array(this.sending.buffer));
    this.#handle = opened.handle;
    this.name = opened.name;
    this.waitFd = opened.waitFd;
    this.#free = Array.from({ length: transmits }, (_, k) => transmits - 1 - k);
    for (let slot = 0; slot < receives; slot++) this.repost(slot);
  }

  get open(): boolean {
    return this.#open;
  }

  /** Number of operations that are not done. */
  get underWay(): number {
    return this.#transmits - this.#free.length;
  }

  /** Adds the peer's address. @returns libfabric's status. */
  connect(name: Uint8Array): number {
    return this.#native.ofiPeer(this.#handle, name);
  }

  /** A slot for a message or a write; undefined when all are under way. `giveBack` returns an unused one. */
  takeSlot(): number | undefined {
    return this.#free.pop();
  }

  giveBack(slot: number): void {
    this.#free.push(slot);
  }

  /** Sends the message in the slot. @returns libfabric's status. */
  send(slot: number, bytes: number): number {
    return this.#native.ofiSend(this.#handle, slot, bytes);
  }

  /** Writes a part of the request. `data` is −1 for none. @returns libfabric's status. */
  write(
    slot: number,
    { source, registration, address, key }: WriteRequest,
    part: { readonly from: number; readonly bytes: number; readonly to: number; readonly data: number; readonly delivered: boolean },
  ): number {
    const { from, bytes, to, data, delivered } = part;
    return this.#native.ofiWrite(this.#handle, slot, source, from, bytes, registration, address, key, to, data, delivered);
  }

  repost(slot: number): void {
    if (!this.#open) return;
    const status = this.#native.ofiReceive(this.#handle, slot);
    // The endpoint has room for all receives, so one that cannot be posted now can be after the next poll.
    if (status !== 0) this.#unposted.push(slot);
  }
  readonly #unposted: number[] = [];

  /** Handles the next events and returns their number. 0: the descriptor will tell of the next; −1: it will not. */
  poll(listener: EndpointListener, most: 'one' | 'many'): number {
    if (!this.#open) return 0;
    for (let left = this.#unposted.length; left > 0; left--) this.repost(this.#unposted.shift()!);
    const events = most === 'one' ? this.#oneEvent : this.#events;
    const count = this.#native.ofiPoll(this.#handle, events);
    for (let k = 0; k < count && this.#open; k++) this.#dispatch(listener, events, k * ofiEventWords);
    return count;
  }

  /** Ends the endpoint: it reads and writes no memory any more. */
  close(): void {
    if (!this.#open) return;
    this.#open = false;
    this.#native.ofiClose(this.#handle);
  }

  #dispatch(listener: EndpointListener, events: Float64Array, at: number): void {
    const slot = events[at + 1];
    switch (events[at]) {
      case ofiEvents.received:
        listener.onReceived(slot, events[at + 2]);
        break;
      case ofiEvents.transmitted:
        this.giveBack(slot);
        listener.onTransmitted(slot);
        break;
      case ofiEvents.remoteData:
        if (slot >= 0) this.repost(slot);
        listener.onRemoteData(events[at + 3]);
        break;
      default:
        if (slot >= 0) this.giveBack(slot);
        if (slot <= -2) this.repost(-2 - slot);
        else listener.onFailed(slot >= 0 ? slot : undefined, events[at + 2]);
    }
  }
}

export function mustWait(status: number): boolean {
  return status === ofiAgain;
}
