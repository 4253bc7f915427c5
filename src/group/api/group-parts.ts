/** The parts that a group shares with the scheduled groups made of it. */
import { Planner } from '../../call/planner.ts';
import { worldGroupId } from '../../membership/group-numbers.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { Tensor } from '../../memory/tensor.ts';
import { CallChecks } from '../caller/call-checks.ts';
import { CallDispatch } from '../caller/call-dispatch.ts';
import type { DeviceCalls } from '../caller/device/device-calls.ts';
import type { TensorBlock } from '../caller/tensor-block.ts';
import type { ProcessGroup } from '../caller/types.ts';
import type { WorldHandle } from '../caller/world-handle.ts';
import { CallSignals } from './call-signals.ts';

export interface GroupParts {
  readonly planner: Planner;
  readonly dispatch: CallDispatch;
  readonly checks: CallChecks;
  readonly signals: CallSignals;
  readonly blocks: Map<Tensor, TensorBlock>;
  /** Made by the first call on a device's memory. */
  devices: DeviceCalls | undefined;
  /** Made by the first call that computes on this thread. */
  kernels: Kernels | undefined;
  destroyed: Promise<void> | undefined;
  /** The group that this one is shrunk to. */
  successor: Promise<ProcessGroup> | undefined;
  /** The world ends with the group. */
  ownsWorld: boolean;
}

/** @param devices makes them for the first call that needs them. */
export function createParts(world: WorldHandle, spec: GroupSpec, devices: () => DeviceCalls): GroupParts {
  const planner = new Planner(world.planning, spec);
  return {
    planner,
    dispatch: new CallDispatch({ world, spec, planner, path: world.openFastPath(spec, planner), devices }),
    checks: new CallChecks({ rank: spec.rank, size: spec.globalRanks.length }, world.settings.timeoutMs),
    signals: new CallSignals(world.client, spec),
    blocks: new Map(),
    devices: undefined,
    kernels: undefined,
    destroyed: undefined,
    successor: undefined,
    ownsWorld: spec.id === worldGroupId || spec === world.info.spec,
  };
}
