/** How the main thread opens the network path of a group, once the comm thread has told of it. */
import type { Settings } from '../../base/settings/settings.ts';
import type { NativeWire } from '../../memory/native-wire.ts';
import type { Region, RegionAllocator } from '../../memory/region.ts';
import type { TraceRecorder } from '../../trace/recorder.ts';
import type { CommClient } from '../thread/comm-client.ts';
import { networkPathSpec } from '../fast/network-path.ts';
import type { NetworkPathShare } from '../engine/comm-protocol.ts';
import { NetworkPathCaller } from '../dispatch/network-path-caller.ts';
import { NetworkPathWire } from '../fast/network-path-wire.ts';
import { hostPathBlock } from '../dispatch/host-path-caller.ts';
import type { Planner, WorldPlanning } from '../call/planner.ts';
import type { GroupSpec } from '../call/group-spec.ts';
import type { OpenFastPath } from '../dispatch/fast-path.ts';
import type { TensorMemory } from '../dispatch/tensor-memory.ts';
import { signalMaxOf } from '../links/wire.ts';

export interface NetworkPathOpening {
  readonly settings: Settings;
  readonly client: CommClient;
  readonly allocator: RegionAllocator;
  readonly native: NativeWire | undefined;
  readonly trace: TraceRecorder;
  readonly memory: TensorMemory;
  readonly planning: WorldPlanning;
}

/** The network fast path of a group over several hosts whose ranks have agreed on one, for which the planner plans from now on;
 *  undefined where it has none. */
export function openNetworkPath(opening: NetworkPathOpening, spec: GroupSpec, planner: Planner): OpenFastPath | undefined {
  const { settings, client, allocator, native, trace, memory, planning } = opening;
  const share = client.networkPath(spec.id);
  if (!share || !native) return undefined;
  const { rank, globalRanks } = spec;
  const shape = { slotCount: settings.inFlightMax, signalMax: signalMaxOf(globalRanks.length) };
  const { regions, descriptors } = openShare(share, allocator, native);
  const [ownView, networkPathMemory] = regions.map(({ buffer, bytes }) => new Uint8Array(buffer, 0, bytes));
  const own = hostPathBlock(spec, ownView, shape);
  const firstSlot = settings.inFlightMax;
  const networkPath = networkPathSpec(globalRanks.length, settings.syncBytesMax, share.rates);
  planner.openNetworkPath(networkPath);
  const fast = new NetworkPathCaller({
    spec,
    client,
    machine: planning.machine,
    trace,
    own,
    regions,
    firstSlot,
    wire: new NetworkPathWire({ native, rank, own, firstSlot, signalCount: shape.signalMax, memory: networkPathMemory, descriptors }),
    spinNs: settings.syncSpinMicroseconds * 1000,
    view: ({ regionId, offset, bytes }) => new Uint8Array(memory.lookUp(regionId).region.buffer, offset, bytes),
  });
  return { fast, networkBytesMax: networkPath.bytesMax };
}

/** All or nothing. @throws ShoalError `out-of-memory` when descriptors or memory are used up. */
function openShare(share: NetworkPathShare, allocator: RegionAllocator, native: NativeWire): { regions: Region[]; descriptors: number[] } {
  const regions: Region[] = [];
  const descriptors: number[] = [];
  try {
    for (const each of [share.own, share.memory]) regions.push(allocator.open(each));
    for (const descriptor of share.descriptors) descriptors.push(native.takeSocket(descriptor));
    return { regions, descriptors };
  } catch (thrown) {
    for (const region of regions) region.close();
    for (const descriptor of descriptors) native.closeSocket(descriptor);
    throw thrown;
  }
}
