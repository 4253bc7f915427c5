/** From a call to something that runs: selects the algorithm, builds the plan, lowers this rank's program, and keeps the
 *  results, because training asks for the same operations again and again. Bounded: least recently used plans go first. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Settings } from '../../base/settings/settings.ts';
import { stagingBlockBytes } from '../../collectives/algorithms/host-staged.ts';
import { algorithmNamed, buildPlan, whyUnsupported } from '../../collectives/build.ts';
import { Execution } from '../../collectives/executor.ts';
import { lowerProgram, lowerWhole, runsWhole, type Lowered, type LoweredWhole, type LoweringOptions } from '../../collectives/lower.ts';
import type { NetworkPathSpec } from '../../collectives/network-path.ts';
import { limitsInElements, networkLimits, type TransferLimits } from '../../collectives/predict.ts';
import { parseSelection, selectAlgorithm, type SelectionInput, type SelectionRule } from '../../collectives/select.ts';
import { tunedRules } from '../../collectives/tuning.ts';
import type { Tuning } from '../../collectives/tuning-format.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import type { StepMachine } from '../../memory/step-machine.ts';
import type { CostModel } from '../../plan/cost.ts';
import type { Collective, Plan, PlanRequest, Program } from '../../plan/ir.ts';
import type { Topology } from '../../plan/topology.ts';
import { planKey, type CollectiveCall } from './contract.ts';
import type { GroupSpec } from './group-spec.ts';

const plansMax = 256;

interface PreparedPlan {
  readonly plan: Plan;
  readonly computeType: DType;
  readonly lowered: Lowered;
  /** The operation as one piece of code, where all ranks share memory. */
  readonly hostPath: HostPathPlans | undefined;
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

/** What turns the calls of a group into something that runs. */
export interface Plans {
  /** The plan for a call. @throws ShoalError `usage` or `unsupported` when there is none. */
  prepare(call: CollectiveCall): PreparedPlan;
  /** Something that runs the plan, in use by no other operation; in the order of the calls. */
  take(prepared: PreparedPlan): RunningPlan;
  /** The operation has ended well. */
  give(prepared: PreparedPlan, execution: RunningPlan): void;
}

export interface PlanRunnerOptions {
  readonly machine: StepMachine;
  /** The user's rules. */
  readonly overrides: readonly SelectionRule[];
  readonly order: 'canonical' | 'relaxed';
  readonly rank: number;
  readonly topology: Topology;
  /** Per rank: its memory can be loaded and stored from here. */
  readonly loadStore: readonly boolean[];
  /** Of the settings of the same names; the same on all ranks. Default: what the settings have. */
  readonly stagingBytes?: number;
  readonly sliceBytes?: number;
  readonly groupHosts?: Settings['groupHosts'];
  /** What was measured on worlds like this one; the same on all ranks. Default: nothing. */
  readonly tuning?: Tuning;
  /** Rates of this world; the same on all ranks. Default: none, the table of rules decides. */
  readonly model?: CostModel;
  /** When it is for the group's network path. */
  readonly networkPath?: NetworkPathSpec;
}

/** What a world gives to the plans of its groups: the same on all ranks, and on both threads of each. */
export interface WorldPlanning extends Pick<PlanRunnerOptions, 'machine' | 'tuning' | 'model'> {
  readonly settings: Pick<Settings, 'order' | 'stagingBytes' | 'sliceBytes' | 'groupHosts'>;
  /** The user's rules. */
  readonly selection: readonly SelectionRule[];
}

/** What plans of a group are chosen and built by, whichever way its calls take. */
export function planOptions(
  world: WorldPlanning,
  { backend, rank, topology }: GroupSpec,
): Omit<PlanRunnerOptions, 'loadStore' | 'networkPath'> {
  const { machine, tuning, model, settings, selection } = world;
  const { order, stagingBytes, sliceBytes, groupHosts } = settings;
  return { machine, overrides: groupRules(backend, selection), tuning, model, order, rank, topology, stagingBytes, sliceBytes, groupHosts };
}

/** Plans of a group's network fast path: ranks reach nobody's memory but by sending. */
export function networkPlans(world: WorldPlanning, group: GroupSpec, networkPath: NetworkPathSpec): PlanRunner {
  return new PlanRunner({ ...planOptions(world, group), loadStore: group.globalRanks.map(() => false), networkPath });
}

/** The rules of a group: its own backend's before those of its world; `auto`: none. */
function groupRules(backend: string | undefined, world: readonly SelectionRule[]): readonly SelectionRule[] {
  if (backend === undefined) return world;
  return backend === 'auto' ? [] : [...parseSelection(`*:${backend}`), ...world];
}

/** Plans of one group. */
export class PlanRunner implements Plans {
  readonly #options: PlanRunnerOptions;
  readonly #loadStore: boolean;
  readonly #limits: TransferLimits;
  readonly #tuned: readonly SelectionRule[];
  readonly #predictions = new Map<string, string>();
  readonly #prepared = new Map<string, PreparedPlan>();

  constructor(options: PlanRunnerOptions) {
    this.#options = options;
    const { stagingBytes, sliceBytes, groupHosts = 'auto', tuning, topology, order } = options;
    this.#loadStore = options.loadStore.every(Boolean);
    const grouped = groupHosts === 'auto' ? {} : { groupHosts: groupHosts === 'all' ? topology.hosts.length : Number(groupHosts) };
    this.#limits = { ...networkLimits(topology, options.model), stagingBytes, sliceBytes, ...grouped };
    this.#tuned = tunedRules(tuning, { topology, loadStore: this.#loadStore, order });
  }

  /** The plan for a call. @throws ShoalError `usage` or `unsupported` when there is none. */
  prepare(call: CollectiveCall): PreparedPlan {
    const key = planKey(call);
    const known = this.#prepared.get(key);
    if (known) {
      this.#prepared.delete(key);
      this.#prepared.set(key, known);
      return known;
    }
    const prepared = this.#build(call);
    this.#prepared.set(key, prepared);
    if (this.#prepared.size > plansMax) for (const oldest of this.#prepared.keys()) return this.#drop(oldest, prepared);
    return prepared;
  }

  /** The algorithm that an operation of so many bytes takes. */
  algorithmOf(collective: Collective, bytes: number): string {
    return selectAlgorithm(this.#selection(collective, bytes));
  }

  /** An execution for the plan, not in use by any other operation. */
  take(prepared: PreparedPlan): Execution {
    return prepared.free.pop() ?? new Execution(prepared.lowered, this.#options.machine, this.#options.loadStore.length);
  }

  give(prepared: PreparedPlan, execution: Execution): void {
    prepared.free.push(execution);
  }

  #drop(key: string, prepared: PreparedPlan): PreparedPlan {
    this.#prepared.delete(key);
    return prepared;
  }

  #build(call: CollectiveCall): PreparedPlan {
    const { rank, topology, loadStore, networkPath } = this.#options;
    const { kind: collective, count, counts, splits, root } = call;
    const elementBytes = dtypeInfo(call.dtype).bytes;
    const request: PlanRequest = { collective, topology, count, counts, splits, root, elementBytes, ...this.#limitsOf(call.dtype) };
    const selection = this.#selection(collective, count * elementBytes);
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
    const hostPath = direct ? hostPathPlans(program, lowering, { algorithm, request, selection }) : undefined;
    return { plan, computeType, lowered: lowerProgram(program, lowering), hostPath, free: [] };
  }

  #selection(collective: Collective, bytes: number): SelectionInput {
    const { overrides, order, topology, model, networkPath } = this.#options;
    return {
      collective,
      bytes,
      topology,
      loadStore: this.#loadStore,
      order,
      overrides,
      tuned: this.#tuned,
      model,
      networkPath,
      limits: this.#limits,
      predictions: this.#predictions,
    };
  }

  /** What the settings allow, in elements; 16-bit floats may be widened while they are summed. */
  #limitsOf(dtype: DType): Partial<PlanRequest> {
    const bytes = dtype === 'float16' || dtype === 'bfloat16' ? 4 : dtypeInfo(dtype).bytes;
    return limitsInElements(this.#limits, this.#options.topology, bytes);
  }
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
  if (!hasPrivate) return { algorithms, shared, private: undefined, hasPrivate };
  let made: LoweredWhole | undefined;
  const make = (): LoweredWhole => {
    const { programs } = buildPlan(staged.name, request, { onlyRank: program.rank });
    const whole = lowerWhole(programs[program.rank], { ...lowering, scratchBytesMax: stagingBlockBytes });
    return must(whole, () => `${staged.name} runs whole`);
  };
  return {
    algorithms,
    shared,
    hasPrivate,
    get private() {
      made ??= make();
      return made;
    },
  };
}

/** Calls are of the host path for all ranks or for none: where the programs of ranks differ, as in a tree, some could run whole and
 *  others not, and the ranks would wait for each other in different places. */
function allRunWhole(algorithm: string, request: PlanRequest, lowering: LoweringOptions): boolean {
  if (algorithmNamed(algorithm).alike) return true;
  return buildPlan(algorithm, request).programs.every((program) => runsWhole(program, lowering));
}

export type { PreparedPlan };
