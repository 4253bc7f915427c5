/** How the main thread opens the express of a group, once the comm thread has told of it. */
import { systemClock } from '../base/clock.ts';
import type { Native } from '../memory/native.ts';
import { parseSelection } from '../collectives/select.ts';
import type { Region, RegionAllocator } from '../memory/region.ts';
import type { StepMachine } from '../memory/step-machine.ts';
import { createStepMachine } from '../memory/step-machine/create-step-machine.ts';
import type { TraceRecorder } from '../trace/recorder.ts';
import type { CommClient } from './comm-client.ts';
import type { WorldInfo, WorldPlan } from './comm-protocol.ts';
import { expressPath } from './express.ts';
import { ExpressCaller } from './express-caller.ts';
import { ExpressWire } from './express-wire.ts';
import type { GroupSpec } from './group-spec.ts';
import { laneBlock } from './host-lane.ts';
import { groupRules, PlanRunner, type PlanRunnerOptions } from './plan-runner.ts';
import type { WorldHandle } from './process-group.ts';
import type { TensorMemory } from './tensor-memory.ts';
import { signalMaxOf } from './wire.ts';

interface ExpressOpener {
  readonly plan: WorldPlan;
  readonly client: CommClient;
  readonly allocator: RegionAllocator;
  readonly native: Native | undefined;
  readonly trace: TraceRecorder;
  readonly memory: TensorMemory;
  readonly info: WorldInfo;
}

/** Makes the synchronous path of groups over several hosts whose ranks have agreed on one. */
export function expressOpener(opening: ExpressOpener): WorldHandle['openExpress'] {
  const { plan, client, allocator, native, trace, memory, info } = opening;
  const { settings } = plan;
  const machine = createStepMachine({ native, clock: systemClock });
  return (spec) => {
    const share = client.express(spec.id);
    if (!share || !native) return undefined;
    const { rank, globalRanks } = spec;
    const viewOf = (region: Region): Uint8Array => new Uint8Array(region.buffer, 0, region.bytes);
    const shape = { slotCount: settings.inFlightMax, signalMax: signalMaxOf(globalRanks.length) };
    const own = laneBlock(spec, viewOf(allocator.open(share.own)), shape);
    const descriptors = share.descriptors.map((descriptor) => native.takeSocket(descriptor));
    const expressMemory = viewOf(allocator.open(share.memory));
    const firstSlot = settings.inFlightMax;
    return new ExpressCaller({
      spec,
      client,
      machine,
      trace,
      own,
      firstSlot,
      wire: new ExpressWire({ native, rank, own, firstSlot, signalCount: shape.signalMax, memory: expressMemory, descriptors }),
      bytesMax: settings.syncBytesMax,
      spinNs: settings.syncSpinMicroseconds * 1000,
      plans: new PlanRunner({
        ...planning(plan, spec, machine),
        model: info.model,
        loadStore: globalRanks.map(() => false),
        express: expressPath(globalRanks.length, settings.syncBytesMax, share.rates),
      }),
      view: ({ regionId, offset, bytes }) => new Uint8Array(memory.lookUp(regionId).region.buffer, offset, bytes),
    });
  };
}

/** What plans of a group are chosen and built by, here as in the comm thread. */
export function planning({ settings, tuning }: WorldPlan, spec: GroupSpec, machine: StepMachine): Omit<PlanRunnerOptions, 'loadStore'> {
  const { order, stagingBytes, sliceBytes, algorithms: rules } = settings;
  return {
    machine,
    overrides: groupRules(spec.backend, parseSelection(rules)),
    tuning: tuning?.tuning,
    order,
    rank: spec.rank,
    topology: spec.topology,
    stagingBytes,
    sliceBytes,
  };
}
