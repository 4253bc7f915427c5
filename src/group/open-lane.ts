/** How the main thread opens the lane of a group, once the comm thread has told where the control blocks are. */
import { allowedCpus } from '../base/allowed-cpus.ts';
import type { RegionAllocator } from '../memory/region.ts';
import type { TraceRecorder } from '../trace/recorder.ts';
import { usesMpi } from './call-arguments.ts';
import type { CommClient } from './comm-client.ts';
import type { WorldPlan } from './comm-protocol.ts';
import { HostLane, laneBlock } from './host-lane.ts';
import { planning, PlanRunner, type WorldPlanning } from './plan-runner.ts';
import type { WorldHandle } from './process-group.ts';
import { signalMaxOf } from './wire.ts';

interface LaneOpener {
  readonly plan: WorldPlan;
  readonly client: CommClient;
  readonly allocator: RegionAllocator;
  readonly trace: TraceRecorder;
  readonly plans: WorldPlanning;
}

/** Makes the synchronous path of groups that have one. All conditions are the same on every rank of the group. */
export function laneOpener({ plan, client, allocator, trace, plans }: LaneOpener): WorldHandle['openLane'] {
  const { settings } = plan;
  const cpus = allowedCpus().count;
  return (spec) => {
    const shares = client.laneBlocks(spec.id);
    const size = spec.globalRanks.length;
    if (!shares || settings.syncBytesMax === 0 || settings.contract === 'strict' || usesMpi(spec.backend, plan.backend)) return undefined;
    const signalMax = signalMaxOf(size);
    const blocks = shares.map((share) => {
      const region = allocator.open(share);
      return laneBlock(spec, new Uint8Array(region.buffer, 0, region.bytes), { slotCount: settings.inFlightMax, signalMax });
    });
    const yields = size > cpus;
    return new HostLane({
      spec,
      client,
      machine: plans.machine,
      trace,
      blocks,
      slotCount: settings.inFlightMax,
      bytesMax: settings.syncBytesMax,
      // Yielding ranks take turns on the CPUs: their time to arrive grows with their number.
      spinNs: settings.syncSpinMicroseconds * 1000 * (yields ? size : 1),
      yields,
      plans: new PlanRunner({ ...planning(plans, spec), loadStore: spec.globalRanks.map(() => true) }),
    });
  };
}
