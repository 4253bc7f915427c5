/** The planner makes something that runs from a call: it selects the algorithm, builds the plan, lowers this rank's program, and keeps the
 *  results, because training asks for the same operations again and again. Bounded: least recently used plans go first.
 *  A thread has one for each group, whichever path the calls take. */
import { must } from '../base/assert.ts';
import { BoundedCache } from '../base/collections/bounded-cache.ts';
import { ShoalError } from '../base/errors.ts';
import type { Settings } from '../base/settings/settings.ts';
import { stagingBlockBytes } from '../collectives/algorithms/host-staged.ts';
import { algorithmNamed, buildPlan, whyUnsupported } from '../collectives/build.ts';
import { Execution } from '../collectives/executor.ts';
import { lowerProgram, lowerWhole, runsWhole, type Lowered, type LoweredWhole, type LoweringOptions } from '../collectives/lower.ts';
import { fitsNetworkPath, type NetworkPathSpec } from '../collectives/network-path.ts';
import { limitsInElements, networkLimits, type TransferLimits } from '../collectives/predict.ts';
import { parseSelection, selectAlgorithm, type SelectionInput, type SelectionRule } from '../collectives/select.ts';
import { tunedRules } from '../collectives/tuning.ts';
import type { Tuning } from '../collectives/tuning-format.ts';
import { dtypeInfo, type DType } from '../memory/dtype.ts';
import type { StepMachine } from '../memory/step-machine.ts';
import type { CostModel } from '../plan/cost.ts';
import type { Collective, Plan, PlanRequest, Program } from '../plan/ir.ts';
import { planKey, type CollectiveCall } from './contract.ts';
import type { GroupSpec } from './group-spec.ts';

const plansMax = 256;

export interface PreparedPlan {
  readonly plan: Plan;
  readonly computeType: DType;
  readonly lowered: Lowered;
  /** The operation as one piece of code, where all ranks share memory. */
  readonly hostPath: HostPathPlans | undefined;
  /** It is for the network path, which can run it: the same answer on every rank. */
  readonly isForNetworkPath: boolean;
  /** Executions not in use. */
  readonly free: Execution[];
}

/** A call as the host path runs it. */
export interface HostPathPlans {
  /** The algorithm of either code. */
  readonly algorithms: Readonly<Record<'shared' | 'private', string>>;
  /** When all ranks reach all buffers. */
  readonly shared: LoweredWhole;
  /** When some rank's buffers are private; undefined: there is no such plan, and buffers must be made shared first. */
  readonly private: LoweredWhole | undefined;
  /** Whether there is one, which costs less to know. */
  readonly hasPrivate: boolean;
}

/** A plan on its way through an operation, as the executor runs it. */
export type RunningPlan = Pick<Execution, 'lowered' | 'enter' | 'bind' | 'run' | 'abandon'>;

/** The plans of a group, which turn its calls into something that runs. */
export interface Plans {
  /** The plan for a call. @throws ShoalError `usage` or `unsupported` when there is none. */
  prepare(call: CollectiveCall): PreparedPlan;
  /** Something that runs the plan, in use by no other operation; in the order of the calls. */
  take(prepared: PreparedPlan): RunningPlan;
  /** The operation has ended well. */
  give(prepared: PreparedPlan, execution: RunningPlan): void;
}

/** The part of a world that plans of its groups depend on: the same on all ranks, and on both threads of each. */
export interface WorldPlanning {
  readonly machine: StepMachine;
  readonly settings: Pick<Settings, 'order' | 'stagingBytes' | 'sliceBytes' | 'groupHosts'>;
  /** The user's rules. */
  readonly selection: readonly SelectionRule[];
  /** Measurements of worlds like this one. Default: nothing. */
  readonly tuning?: Tuning | undefined;
  /** Rates of this world. Default: none, the table of rules decides. */
  readonly model?: CostModel | undefined;
}

/** The rules of a group: its own backend's before those of its world; `auto`: none. */
function groupRules(backend: string | undefined, world: readonly SelectionRule[]): readonly SelectionRule[] {
  if (backend === undefined) return world;
  return backend === 'auto' ? [] : [...parseSelection(`*:${backend}`), ...world];
}

/** The reach of ranks on a path, and the rules by which plans are selected there. */
interface Reach {
  /** Prefix of the keys of cached plans. */
  readonly keyPrefix: string;
  readonly loadStore: readonly boolean[];
  readonly tuned: readonly SelectionRule[];
  readonly predictions: Map<string, string>;
  readonly networkPath: NetworkPathSpec | undefined;
}

/** Plans of one group. */
export class Planner implements Plans {
  readonly #world: WorldPlanning;
  readonly #group: GroupSpec;
  /** The group's rules. */
  readonly #overrides: readonly SelectionRule[];
  readonly #limits: TransferLimits;
  /** The reach on the engine and on the host path, where all ranks map all memory. */
  readonly #reach: Reach;
  /** The reach on the network path. */
  #networkReach: Reach | undefined;
  readonly #prepared = new BoundedCache<string, PreparedPlan>(plansMax);

  /** @param loadStore per rank: its memory can be loaded and stored from here. Default: of a group of one host, as the hosts of a topology
   *  are ranks that map each other's memory. */
  constructor(world: WorldPlanning, group: GroupSpec, loadStore?: readonly boolean[]) {
    this.#world = world;
    this.#group = group;
    const { stagingBytes, sliceBytes, groupHosts } = world.settings;
    const { backend, topology } = group;
    this.#overrides = groupRules(backend, world.selection);
    const grouped = groupHosts === 'auto' ? {} : { groupHosts: groupHosts === 'all' ? topology.hosts.length : Number(groupHosts) };
    this.#limits = { ...networkLimits(topology, world.model), stagingBytes, sliceBytes, ...grouped };
    this.#reach = this.#reachOf('', loadStore ?? group.globalRanks.map(() => topology.hosts.length === 1));
  }

  /** The group's ranks have agreed on a network path, on which they reach nobody's memory but by sending. */
  openNetworkPath(spec: NetworkPathSpec): void {
    const loadStore = this.#group.globalRanks.map(() => false);
    this.#networkReach = this.#reachOf('network ', loadStore, spec);
  }

  #reachOf(keyPrefix: string, loadStore: readonly boolean[], networkPath?: NetworkPathSpec): Reach {
    const { tuning, settings } = this.#world;
    const { topology } = this.#group;
    const tuned = tunedRules(tuning, { topology, loadStore: loadStore.every(Boolean), order: settings.order });
    return { keyPrefix, loadStore, tuned, predictions: new Map(), networkPath };
  }

  /** The plan for a call. @throws ShoalError `usage` or `unsupported` when there is none. */
  prepare(call: CollectiveCall, path: 'engine' | 'network' = 'engine'): PreparedPlan {
    const reach = path === 'network' ? must(this.#networkReach, () => 'the group has a network path') : this.#reach;
    const key = reach.keyPrefix + planKey(call);
    return this.#prepared.get(key) ?? this.#prepared.put(key, this.#build(call, reach));
  }

  /** The algorithm that an operation of so many bytes takes. */
  algorithmOf(collective: Collective, bytes: number): string {
    return selectAlgorithm(this.#selection(collective, bytes, this.#networkReach ?? this.#reach));
  }

  /** An execution for the plan, not in use by any other operation. */
  take(prepared: PreparedPlan): Execution {
    return prepared.free.pop() ?? new Execution(prepared.lowered, this.#world.machine, this.#group.globalRanks.length);
  }

  give(prepared: PreparedPlan, execution: Execution): void {
    prepared.free.push(execution);
  }

  #build(call: CollectiveCall, reach: Reach): PreparedPlan {
    const { rank, topology } = this.#group;
    const { loadStore, networkPath } = reach;
    const { kind: collective, count, counts, splits, root } = call;
    // A call that scales a copy moves elements of the accumulator's type.
    const elementBytes = call.op === 'premul' ? accumulatedBytes(call.dtype) : dtypeInfo(call.dtype).bytes;
    const request: PlanRequest = { collective, topology, count, counts, splits, root, elementBytes, ...this.#limitsOf(call.dtype) };
    const selection = { ...this.#selection(collective, count * elementBytes, reach), request };
    const algorithm = selectAlgorithm(selection);
    // A network path looks at what all ranks send; its plans are small.
    const small = networkPath !== undefined && selection.bytes <= networkPath.bytesMax;
    const plan = buildPlan(algorithm, request, small ? {} : { onlyRank: rank });
    // Partial sums that travel, and products, are of the accumulator's type.
    const widened = plan.partials || call.op === 'premul';
    const computeType = widened && (call.dtype === 'float16' || call.dtype === 'bfloat16') ? 'float32' : call.dtype;
    const program = plan.programs[rank];
    if (!program) throw new ShoalError('usage', `plan '${plan.algorithm}' has no program for rank ${rank}`);
    const lowering = { dtype: computeType, op: call.op, size: loadStore.length, loadStore };
    // Premul scales a copy, and what is computed in a wider type is converted to one: work for the comm thread.
    const direct = computeType === call.dtype && call.op !== 'premul';
    const hostPath = direct && !networkPath ? hostPathPlans(program, lowering, { algorithm, request, selection }) : undefined;
    const isForNetworkPath = direct && networkPath !== undefined && fitsNetworkPath(plan, elementBytes, networkPath);
    return { plan, computeType, lowered: lowerProgram(program, lowering), hostPath, isForNetworkPath, free: [] };
  }

  #selection(collective: Collective, bytes: number, { loadStore, tuned, predictions, networkPath }: Reach): SelectionInput {
    const { settings, model } = this.#world;
    return {
      collective,
      bytes,
      topology: this.#group.topology,
      loadStore: loadStore.every(Boolean),
      order: settings.order,
      overrides: this.#overrides,
      tuned,
      model,
      networkPath,
      limits: this.#limits,
      predictions,
    };
  }

  /** The limits of the settings, in elements; 16-bit floats may be widened while they are summed. */
  #limitsOf(dtype: DType): Partial<PlanRequest> {
    return limitsInElements(this.#limits, this.#group.topology, accumulatedBytes(dtype));
  }
}

function accumulatedBytes(dtype: DType): number {
  return dtype === 'float16' || dtype === 'bfloat16' ? 4 : dtypeInfo(dtype).bytes;
}

/** The code for private buffers is made when it is first asked for. */
function hostPathPlans(
  program: Program,
  lowering: LoweringOptions,
  { algorithm, request, selection }: { algorithm: string; request: PlanRequest; selection: SelectionInput },
): HostPathPlans | undefined {
  const ownBuffersOnly = algorithmNamed(algorithm).ownBuffersOnly === true;
  const limited = { ...lowering, scratchBytesMax: ownBuffersOnly ? stagingBlockBytes : 0 };
  const shared = lowerWhole(program, limited);
  if (!shared || !allRunWhole(algorithm, request, limited)) return undefined;
  if (ownBuffersOnly) return { algorithms: { shared: algorithm, private: algorithm }, shared, private: shared, hasPrivate: true };
  const staged = algorithmNamed(selectAlgorithm({ ...selection, buffers: 'private' }));
  const hasPrivate = staged.ownBuffersOnly === true && whyUnsupported(staged, request) === undefined;
  const algorithms = { shared: algorithm, private: staged.name };
  let made: LoweredWhole | undefined;
  return {
    algorithms,
    shared,
    hasPrivate,
    get private() {
      if (made !== undefined || !hasPrivate) return made;
      const { programs } = buildPlan(staged.name, request, { onlyRank: program.rank, loops: true });
      const whole = lowerWhole(programs[program.rank], { ...lowering, scratchBytesMax: stagingBlockBytes });
      return (made = must(whole, () => `${staged.name} runs whole`));
    },
  };
}

/** Calls are of the host path for all ranks or for none: where the programs of ranks differ, as in a tree, some could run whole and
 *  others not, and the ranks would wait for each other in different places. */
function allRunWhole(algorithm: string, request: PlanRequest, lowering: LoweringOptions): boolean {
  if (algorithmNamed(algorithm).alike) return true;
  return buildPlan(algorithm, request).programs.every((program) => runsWhole(program, lowering));
}
