/** The addon's interface to libfabric, typed: flat functions over a library that is found at run time. Their behaviour is
 *  described in native/ofi.cc. A status is 0 or a negative error number. */
import { loadNative, type Native, type NativeOptions } from '../../../memory/native.ts';

declare const opaque: unique symbol;
interface Handle<Name extends string> {
  readonly [opaque]: Name;
}
/** A provider on one network device. */
export type OfiDeviceHandle = Handle<'ofi device'>;
/** Memory of this process that a device reads, or peers write to. */
export type OfiRegistrationHandle = Handle<'ofi registration'>;
/** One end of one connection. */
export type OfiEndpointHandle = Handle<'ofi endpoint'>;

/** A provider's description of one device. */
export interface OfiDeviceFacts {
  /** Name of the provider: `tcp;ofi_rxm`, `shm`, `verbs;ofi_rxm`. */
  readonly provider: string;
  readonly fabric: string;
  /** Name of the device: `eth0`, `mlx5_0`. */
  readonly device: string;
  /** Address of the device, if it is an IP address. */
  readonly source: string;
  readonly addressFormat: number;
  /** Bits of `ofiOrder` that hold both ways. */
  readonly messageOrder: number;
  /** Longest write that later writes do not overtake. */
  readonly orderedWriteBytes: number;
  /** Required registration, as bits FI_MR_…. */
  readonly registrationModes: number;
  readonly keyBytes: number;
  /** Bytes that a write can announce. */
  readonly immediateBytes: number;
  readonly maxMessageBytes: number;
  readonly transmits: number;
  readonly receives: number;
}

/** libfabric's codes of address formats. */
export const ofiAddressFormats = { ipv4: 2, ipv6: 3, text: 9 } as const;
/** FI_ORDER_WAW, WAS, SAW and SAS together: no operation overtakes another. */
export const ofiTotalOrder = 0x1b0;
/** FI_MR_LOCAL: memory that is sent from must be registered as well. */
export const ofiLocalRegistration = 4;

/** Kinds of events. `ofiPoll` writes four words per event: kind, slot, bytes or error, data. */
export const ofiEvents = { received: 1, transmitted: 2, remoteData: 3, failed: 4 } as const;
export const ofiEventWords = 4;
/** EAGAIN: the caller polls, then tries again. */
export const ofiAgain = -11;

export interface NativeOfi {
  /** Version of the library, such as `1.17`. @throws Error of code `ENOENT`, with the reason, when there is no library. */
  ofiVersion(): string;
  /** Devices of a provider and of a name; empty texts for all. */
  ofiDevices(provider: string, device: string): readonly OfiDeviceFacts[];
  /** Opens a device. @throws Error of code `ENODATA` when there is none of the kind. */
  ofiOpen(
    provider: string,
    device: string,
    addressFormat: number,
    transmits: number,
    receives: number,
    trafficClass: number,
    ordered: boolean,
  ): OfiDeviceFacts & { readonly handle: OfiDeviceHandle };
  /** Closes the device, together with the last endpoint and registration on it. */
  ofiCloseDevice(device: OfiDeviceHandle): void;
  /** Registers memory. `key` is a wish. The caller keeps the view's buffer until `ofiRelease`. */
  ofiRegister(
    device: OfiDeviceHandle,
    view: Uint8Array,
    remote: boolean,
    key: bigint,
  ): { readonly handle: OfiRegistrationHandle; readonly address: bigint; readonly key: bigint };
  ofiRevoke(registration: OfiRegistrationHandle): void;
  ofiRelease(registration: OfiRegistrationHandle): void;
  /** Makes an endpoint. The areas are rows of slots of `slotBytes`. waitFd: −1 where there is none. */
  ofiEndpoint(
    device: OfiDeviceHandle,
    source: string,
    slotBytes: number,
    receiveArea: Uint8Array,
    sendArea: Uint8Array,
  ): { readonly handle: OfiEndpointHandle; readonly name: Uint8Array; readonly waitFd: number };
  ofiPeer(endpoint: OfiEndpointHandle, name: Uint8Array): number;
  ofiReceive(endpoint: OfiEndpointHandle, slot: number): number;
  ofiSend(endpoint: OfiEndpointHandle, slot: number, bytes: number): number;
  ofiWrite(
    endpoint: OfiEndpointHandle,
    slot: number,
    source: Uint8Array,
    offset: number,
    bytes: number,
    registration: OfiRegistrationHandle | undefined,
    address: bigint,
    key: bigint,
    targetOffset: number,
    data: number,
    delivered: boolean,
  ): number;
  /** Reads events and returns their number; −1: no event yet, but more to do: poll again. */
  ofiPoll(endpoint: OfiEndpointHandle, events: Float64Array): number;
  ofiClose(endpoint: OfiEndpointHandle): void;
}

/** The addon with its functions for libfabric. */
export type NativeWithOfi = Native & NativeOfi;

/** The addon, where it can be loaded. */
export function loadNativeWithOfi(options: NativeOptions = { enabled: true }): NativeWithOfi | undefined {
  return loadNative(options) as NativeWithOfi | undefined;
}
