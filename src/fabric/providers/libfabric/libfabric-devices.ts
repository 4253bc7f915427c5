/** The devices that libfabric offers on this machine, and the choice among them. */
import { readdirSync } from 'node:fs';
import { messageOf } from '../../../base/errors.ts';
import type { Settings } from '../../../base/settings/settings.ts';
import { nativeUnavailableReason } from '../../../memory/native.ts';
import { loadNativeWithOfi, ofiAddressFormats, ofiTotalOrder, type NativeWithOfi, type OfiDeviceFacts } from './native-ofi.ts';
import type { WriteOrder } from './libfabric-connection-options.ts';

/** A choice among libfabric's providers and devices. */
export interface LibfabricChoice {
  /** Provider: `verbs`, `efa`, `tcp;ofi_rxm`, `shm`, …; '' for the best. */
  readonly provider?: string;
  /** Device: `mlx5_0`, `eth0`; '' for the provider's first. */
  readonly device?: string;
  /** Most operations under way on one connection. Default 128. */
  readonly queueDepth?: number;
  /** Service byte of IP, 0…255. Default 0. */
  readonly trafficClass?: number;
}

/** Providers that are chosen without being asked for, best first. */
const providersByWorth: readonly string[] = ['verbs;ofi_rxm', 'efa', 'tcp;ofi_rxm', 'shm'];
/** Short names that users give, and the full ones. */
const fullNames: Readonly<Record<string, string>> = { verbs: 'verbs;ofi_rxm', tcp: 'tcp;ofi_rxm' };
/** Providers over sockets: their endpoints may have any address of this host. */
const socketProvider = /^(tcp|net|udp|sockets)\b/;
const immediateBytes = 4;
const sequencedBytes = 8;

/** The reason why libfabric cannot be used here, or undefined when it can. */
export function libfabricUnavailable(choice: LibfabricChoice = {}): string | undefined {
  const native = loadNativeWithOfi();
  if (native === undefined) return nativeUnavailableReason();
  const chosen = chooseDevice(native, choice);
  return typeof chosen === 'string' ? chosen : undefined;
}

/** The choice of the settings. */
export function libfabricChoice(settings: Settings): LibfabricChoice {
  const {
    libfabricProvider: provider,
    libfabricDevice: device,
    libfabricQueueDepth: queueDepth,
    libfabricTrafficClass: trafficClass,
  } = settings;
  return { provider, device, queueDepth, trafficClass };
}

/** True if hardware is here that only libfabric drives; does not load the library. */
export function hasRdmaDevice(): boolean {
  try {
    return readdirSync('/sys/class/infiniband').length > 0;
  } catch {
    return false;
  }
}

/** Usable devices, best first, each device of a provider once. @throws Error of the addon, whose `code` is the errno's name. */
export function usableDevices(native: NativeWithOfi, { provider = '', device = '' }: LibfabricChoice = {}): OfiDeviceFacts[] {
  const wanted = fullNames[provider] ?? provider;
  const isUsable = (facts: OfiDeviceFacts): boolean =>
    facts.immediateBytes >= immediateBytes && facts.keyBytes <= 8 && (device === '' || facts.device === device);
  const usable = native.ofiDevices(wanted, device).filter(isUsable);
  const worth = (facts: OfiDeviceFacts): number => {
    const place = providersByWorth.indexOf(facts.provider);
    return place < 0 ? providersByWorth.length : place;
  };
  const seen = new Set<string>();
  return usable
    .filter((facts) => {
      const name = `${facts.provider} ${facts.device} ${facts.addressFormat}`;
      return !seen.has(name) && seen.add(name);
    })
    .sort((a, b) => worth(a) - worth(b) || (isIpv6(a) ? 1 : 0) - (isIpv6(b) ? 1 : 0));
}

/** The device to use, or the reason why there is none. */
export function chooseDevice(native: NativeWithOfi, choice: LibfabricChoice): OfiDeviceFacts | string {
  const { provider = '', device = '' } = choice;
  const wanted = [provider === '' ? '' : `provider '${provider}'`, device === '' ? '' : `device '${device}'`].filter(Boolean).join(' and ');
  try {
    const usable = usableDevices(native, choice);
    const known = provider === '' ? usable.filter((facts) => providersByWorth.includes(facts.provider)) : usable;
    if (known.length > 0) return known[0];
    const others = [...new Set(usableDevices(native).map((facts) => facts.provider))].join(', ') || 'none';
    return `libfabric ${native.ofiVersion()} has no ${wanted || 'provider'} with messages and writes with immediates (usable here: ${others})`;
  } catch (thrown) {
    return `libfabric: ${messageOf(thrown)}`;
  }
}

/** The way to keep order over a device, by what is in force once it is open. */
export function orderOf(facts: OfiDeviceFacts, maxWriteBytes: number): WriteOrder {
  if (facts.messageOrder === ofiTotalOrder && facts.orderedWriteBytes >= maxWriteBytes) return 'ordered';
  return facts.immediateBytes >= sequencedBytes ? 'sequenced' : 'fenced';
}

export function isSocketProvider({ provider }: OfiDeviceFacts): boolean {
  return socketProvider.test(provider);
}

export function isIpv6({ addressFormat }: OfiDeviceFacts): boolean {
  return addressFormat === ofiAddressFormats.ipv6;
}
