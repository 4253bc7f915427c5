/** The facts that `shoal info` prints, as plain data. */
import { cpus, hostname, networkInterfaces, release, totalmem } from 'node:os';
import { allowedCpus, type AllowedCpus } from '../../../base/files/allowed-cpus.ts';
import { messageOf } from '../../../base/errors.ts';
import { describeSettings, resolveSettings, type Environment, type SettingRow } from '../../../base/settings/settings.ts';
import { packageVersion } from '../../../base/packages/version.ts';
import { hostIdentity } from '../../../base/files/host-identity.ts';
import { offeredAddresses } from '../../../fabric/interfaces.ts';
import { fabricProviders } from '../../../fabric/providers.ts';
import {
  chooseDevice,
  libfabricChoice,
  usableDevices,
  type LibfabricChoice,
} from '../../../fabric/providers/libfabric/libfabric-devices.ts';
import { detectWorld, launchVariables, type WorldSpec } from '../../../store/environment.ts';
import { clusterVariables } from '../../../graph/cluster/environment.ts';
import { placeVariables } from '../../../launch/rank-environment.ts';
import { loadNativeWithOfi, type NativeWithOfi } from '../../../fabric/providers/libfabric/native-ofi.ts';
import { nativeUnavailableReason } from '../../../memory/native.ts';
import { availableMemory } from '../../../memory/regions/available-memory.ts';

/** Incremented when a field changes its meaning or goes away. */
export const infoSchemaVersion = 1;

export interface Info {
  readonly schema: number;
  readonly versions: Readonly<Record<string, string>>;
  readonly host: {
    readonly name: string;
    /** Processes with the same identity may share memory. */
    readonly identity: string;
    readonly system: string;
    readonly processor: string;
    readonly processors: number;
    readonly allowed: AllowedCpus;
    readonly memoryBytes: number;
    /** Memory that this process may still take; null when unknown. */
    readonly availableBytes: number | null;
    readonly limitedBy: string;
  };
  readonly native: { readonly loaded: boolean; readonly instructions: string | null; readonly reason: string | null };
  readonly fabrics: readonly {
    readonly name: string;
    readonly description: string;
    readonly available: boolean;
    readonly reason: string | null;
  }[];
  /** Its providers with what the fabric needs, best first; `used`: what the settings choose. */
  readonly libfabric: {
    readonly version: string | null;
    readonly reason: string | null;
    readonly devices: readonly { readonly provider: string; readonly device: string; readonly address: string; readonly used: boolean }[];
  };
  /** `offered`: peers on other hosts are given this address. */
  readonly interfaces: readonly { readonly name: string; readonly address: string; readonly offered: boolean }[];
  /** The environment's word about this process. */
  readonly world: {
    readonly source: WorldSpec['source'] | null;
    readonly rank: number | null;
    readonly size: number | null;
    readonly error: string | null;
  };
  readonly settings: readonly SettingRow[];
  /** Things that are probably not what the user meant. */
  readonly warnings: readonly string[];
}

/** @throws ShoalError `config` when a setting is malformed. */
export function gatherInfo(environment: Environment): Info {
  const resolved = resolveSettings(environment, { reserved: [...launchVariables, ...placeVariables, ...clusterVariables] });
  const { settings } = resolved;
  const native = loadNativeWithOfi({ enabled: settings.native });
  const warnings = [...resolved.warnings];
  const memory = availableMemory();
  return {
    schema: infoSchemaVersion,
    versions: { shoal: packageVersion, node: process.versions.node, v8: process.versions.v8, libuv: process.versions.uv },
    host: {
      name: hostname(),
      identity: settings.hostId || hostIdentity(),
      system: `${process.platform} ${release()} ${process.arch}`,
      processor: cpus()[0]?.model.trim() ?? 'unknown',
      processors: cpus().length,
      allowed: allowedCpus(),
      memoryBytes: totalmem(),
      availableBytes: Number.isFinite(memory.bytes) ? memory.bytes : null,
      limitedBy: memory.limitedBy,
    },
    native: {
      loaded: native !== undefined,
      instructions: native?.isa ?? null,
      reason: nativeUnavailableReason({ enabled: settings.native }) ?? null,
    },
    fabrics: fabricProviders.map(({ name, description, unavailable }) => {
      const excluded = settings.fabrics.length > 0 && !settings.fabrics.includes(name) ? 'not listed in SHOAL_FABRICS' : undefined;
      const reason = excluded ?? unavailable(settings) ?? null;
      return { name, description, available: reason === null, reason };
    }),
    libfabric: libfabricOf(native, libfabricChoice(settings)),
    interfaces: interfacesOf(settings.interfaces, warnings),
    world: worldOf(environment),
    settings: describeSettings(resolved),
    warnings,
  };
}

function libfabricOf(native: NativeWithOfi | undefined, choice: LibfabricChoice): Info['libfabric'] {
  if (native === undefined) return { version: null, reason: 'the native addon is not loaded', devices: [] };
  try {
    const version = native.ofiVersion();
    const chosen = chooseDevice(native, choice);
    const devices = usableDevices(native).map(({ provider, device, source, addressFormat }) => ({
      provider,
      device,
      address: source,
      used:
        typeof chosen !== 'string' && chosen.provider === provider && chosen.device === device && chosen.addressFormat === addressFormat,
    }));
    return { version, reason: typeof chosen === 'string' ? chosen : null, devices };
  } catch (thrown) {
    return { version: null, reason: messageOf(thrown), devices: [] };
  }
}

function interfacesOf(filter: readonly string[], warnings: string[]): Info['interfaces'] {
  const interfaces = networkInterfaces();
  let offered = new Set<string>();
  try {
    offered = new Set(offeredAddresses(interfaces, filter).map(({ address }) => address));
  } catch (error) {
    warnings.push(messageOf(error));
  }
  return Object.entries(interfaces).flatMap(([name, addresses = []]) =>
    addresses.map(({ address }) => ({ name, address, offered: offered.has(address) })),
  );
}

function worldOf(environment: Environment): Info['world'] {
  try {
    const { source, rank, worldSize } = detectWorld(environment, { parentPid: process.ppid });
    return { source, rank, size: worldSize, error: null };
  } catch (error) {
    return { source: null, rank: null, size: null, error: messageOf(error) };
  }
}
