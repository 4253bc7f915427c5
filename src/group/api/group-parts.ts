/** The parts that a group shares with the scheduled groups made of it. */
import { systemClock } from '../../base/clock.ts';
import type { SettlingWork } from '../../comm/caller/work.ts';
import { Planner } from '../../call/planner.ts';
import { worldGroupId } from '../../membership/group-numbers.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { Kernels } from '../../memory/kernels.ts';
import type { Tensor } from '../../memory/tensor.ts';
import { CallChecks } from '../caller/call-checks.ts';
import { CallDispatch } from '../caller/call-dispatch.ts';
import { DeviceCalls, type DeviceCallsOptions } from '../caller/device/device-calls.ts';
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

/** @param openPieceGroup as in `DeviceCallsOptions`. */
export function createParts(world: WorldHandle, spec: GroupSpec, openPieceGroup: DeviceCallsOptions['openPieceGroup']): GroupParts {
  const { client } = world;
  const planner = new Planner({ ...world.planning, model: world.info.model }, spec);
  const checks = new CallChecks({ rank: spec.rank, size: spec.globalRanks.length }, world.settings.timeoutMs);
  const announce = (name: string, timeoutMs: number): SettlingWork => dispatch.start(checks.barrier('barrier', { name, timeoutMs }));
  const devices = (): DeviceCalls => (parts.devices ??= new DeviceCalls({ clock: systemClock, spec, client, announce, openPieceGroup }));
  const dispatch = new CallDispatch({ world, spec, planner, path: world.openFastPath(spec, planner), devices });
  const parts: GroupParts = {
    planner,
    dispatch,
    checks,
    signals: new CallSignals(client, spec),
    blocks: new Map(),
    devices: undefined,
    kernels: undefined,
    destroyed: undefined,
    successor: undefined,
    ownsWorld: spec.id === worldGroupId || spec === world.info.spec,
  };
  return parts;
}
