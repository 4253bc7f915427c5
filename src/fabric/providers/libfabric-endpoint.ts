/** An endpoint of libfabric with its slots: messages to send and to receive, and operations under way. It must not know what messages
 *  mean. Nothing is called back but from `poll`. */
import type { Native } from '../../memory/native.ts';
import {
  ofiAgain,
  ofiEvents,
  ofiEventWords,
  type OfiDeviceHandle,
  type OfiEndpointHandle,
  type OfiRegistrationHandle,
} from '../../memory/native-ofi.ts';

/** A message with its header: what `shm` and `ofi_rxm` take at once, so that none overtakes another. */
export const slotBytes = 2048;
const batch = 64;

export interface EndpointListener {
  /** `at`: of the message in `received`. The slot is given back with `repost`. */
  onReceived(slot: number, bytes: number): void;
  /** Data that a write has announced. */
  onRemoteData(data: number): void;
  /** The operation is done: its source may change. */
  onTransmitted(slot: number): void;
  /** `slot` of an operation, or undefined: of the endpoint. */
  onFailed(slot: number | undefined, error: number): void;
}

export interface EndpointOptions {
  readonly native: Native;
  readonly device: OfiDeviceHandle;
  readonly source: string;
  readonly receives: number;
  readonly transmits: number;
}

/** Bytes to write and where they go, in libfabric's terms. */
export interface WriteRequest {
  readonly source: Uint8Array;
  readonly registration: OfiRegistrationHandle | undefined;
  readonly address: bigint;
  readonly key: bigint;
}

export class LibfabricEndpoint {
  readonly name: Uint8Array;
  /** Readable when there may be something to poll; −1: nobody will say. */
  readonly waitFd: number;
  readonly received: Buffer;
  readonly receivedView: DataView;
  readonly sending: Buffer;
  readonly sendingView: DataView;
  readonly #native: Native;
  readonly #handle: OfiEndpointHandle;
  readonly #free: number[];
  readonly #transmits: number;
  readonly #events = new Float64Array(batch * ofiEventWords);
  readonly #oneEvent = new Float64Array(ofiEventWords);
  #open = true;

  /** @throws NativeError. */
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

  /** Operations that are not done. */
  get underWay(): number {
    return this.#transmits - this.#free.length;
  }

  /** Status. */
  connect(name: Uint8Array): number {
    return this.#native.ofiPeer(this.#handle, name);
  }

  /** For a message or a write; undefined: all are under way. `giveBack` when it is not used. */
  takeSlot(): number | undefined {
    return this.#free.pop();
  }

  giveBack(slot: number): void {
    this.#free.push(slot);
  }

  /** Status; of what is in the slot. */
  send(slot: number, bytes: number): number {
    return this.#native.ofiSend(this.#handle, slot, bytes);
  }

  /** Status. `data`: −1 for none. */
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
    // Room for as many was asked for: what cannot be posted now can be after the next poll.
    if (status !== 0) this.#unposted.push(slot);
  }
  readonly #unposted: number[] = [];

  /** What has happened, `most` events at a time; how many there were. 0: the descriptor tells of the next; −1: it does not. */
  poll(listener: EndpointListener, most: 'one' | 'many'): number {
    if (!this.#open) return 0;
    for (let left = this.#unposted.length; left > 0; left--) this.repost(this.#unposted.shift()!);
    const events = most === 'one' ? this.#oneEvent : this.#events;
    const count = this.#native.ofiPoll(this.#handle, events);
    for (let k = 0; k < count && this.#open; k++) this.#dispatch(listener, events, k * ofiEventWords);
    return count;
  }

  /** Nothing reads or writes memory for it any more. */
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
