/** How the main thread opens the host path of a group, once the comm thread has told where the control blocks are. */
import { usesMpi } from '../call/group-spec.ts';
import { allowedCpus } from '../../base/files/allowed-cpus.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Region, RegionAllocator, RegionShare } from '../../memory/region.ts';
import type { TraceRecorder } from '../../trace/recorder.ts';
import type { CommClient } from '../thread/comm-client.ts';
import type { WorldPlan } from '../engine/comm-protocol.ts';
import { HostPathCaller, hostPathBlock } from '../dispatch/host-path-caller.ts';
import type { WorldPlanning } from '../call/planner.ts';
import type { GroupSpec } from '../call/group-spec.ts';
import type { OpenFastPath } from '../dispatch/fast-path.ts';
import type { TensorMemory } from '../dispatch/tensor-memory.ts';
import { signalMaxOf } from '../links/wire.ts';

export interface HostPathOpening {
  readonly plan: WorldPlan;
  readonly client: CommClient;
  readonly allocator: RegionAllocator;
  readonly trace: TraceRecorder;
  readonly memory: TensorMemory;
  readonly planning: WorldPlanning;
}

/** The host fast path of a group; undefined where it has none. All conditions are the same on every rank of the group. */
export function openHostPath(opening: HostPathOpening, spec: GroupSpec): OpenFastPath | undefined {
  const { plan, client, allocator, trace, memory, planning } = opening;
  const { settings } = plan;
  const shares = client.hostPathBlocks(spec.id);
  const size = spec.globalRanks.length;
  if (!shares || settings.syncBytesMax === 0 || settings.contract === 'strict' || usesMpi(spec.backend, plan.backend)) return undefined;
  const signalMax = signalMaxOf(size);
  const regions = openAll(allocator, shares);
  if (!regions) return undefined;
  const blocks = regions.map(({ buffer, bytes }) =>
    hostPathBlock(spec, new Uint8Array(buffer, 0, bytes), { slotCount: settings.inFlightMax, signalMax }),
  );
  const yields = size > allowedCpus().count;
  const fast = new HostPathCaller({
    spec,
    client,
    machine: planning.machine,
    trace,
    memory,
    blocks,
    regions,
    slotCount: settings.inFlightMax,
    // Yielding ranks take turns on the CPUs: their time to arrive grows with their number.
    spinNs: settings.syncSpinMicroseconds * 1000 * (yields ? size : 1),
    yields,
  });
  return { fast, hostBytesMax: settings.syncBytesMax };
}

/** Undefined when some rank has left or died since it told: its comm thread knows which, and says so to every call.
 *  @throws ShoalError `out-of-memory` when descriptors or memory are used up. */
function openAll(allocator: RegionAllocator, shares: readonly RegionShare[]): Region[] | undefined {
  const regions: Region[] = [];
  try {
    for (const share of shares) regions.push(allocator.open(share));
    return regions;
  } catch (thrown) {
    for (const region of regions) region.close();
    const error = ShoalError.from(thrown);
    if (error.code === 'unsupported') return undefined;
    throw error;
  }
}
