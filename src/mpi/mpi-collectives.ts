/** Backend `mpi` of groups: their collectives are Open MPI's.
 *
 *      announced ─▶ contracts agree ─▶ MPI_Iallreduce … on the group's communicator ─▶ done
 *
 *  MPI wants a communicator's operations started in one order on all ranks; contracts may be seen to agree in any. It adds in
 *  an order of its own: equal on all ranks, but not the bits of Shoal's algorithms. It must not know links or slots. */
import { assert, must } from '../base/assert.ts';
import { within } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import type { ExecutionContext } from '../collectives/executor.ts';
import type { Lowered } from '../collectives/lower.ts';
import { dtypeInfo, type DType } from '../memory/dtype.ts';
import type { Kernels } from '../memory/kernels.ts';
import { MpiEndpoint } from './mpi-endpoint.ts';
import { combineOpOf, reduceOpCode } from '../memory/reduce-op.ts';
import type { BufferName, Collective, Plan } from '../plan/ir.ts';
import type { CollectiveLibrary, CollectiveLibraryOptions } from '../call/collective-library.ts';
import { collectiveCode, type CollectiveCall } from '../call/contract.ts';
import type { GroupSpec } from '../call/group-spec.ts';
import type { Plans, PreparedPlan, RunningPlan } from '../call/planner.ts';

const elementsMost = 2 ** 31 - 1;
const nothing = new Uint8Array(0);

/** The code of a plan without steps. */
const noSteps: Lowered = {
  entry: new Float64Array(0),
  channels: [],
  calls: [],
  segments: [],
  scratchBytes: 0,
  signalCount: 0,
  mailboxBytes: 0,
  movements: [],
};

/** MPI for the groups of one world; started by the first that needs it. Ranks of that world are those of MPI's. */
export class MpiCollectives implements CollectiveLibrary {
  readonly #options: CollectiveLibraryOptions;
  #endpoint: Promise<MpiEndpoint> | undefined;
  #open: MpiEndpoint | undefined;

  constructor(options: CollectiveLibraryOptions) {
    this.#options = options;
  }

  async openGroup(spec: GroupSpec, timeoutMs: number): Promise<Plans> {
    if (this.#options.settings.encryption === 'on' && spec.topology.hosts.length > 1) {
      const why = "Open MPI's messages between hosts cannot be encrypted; set SHOAL_ENCRYPTION=off to allow that";
      throw new ShoalError('unsupported', `group '${spec.name}': ${why}`);
    }
    const text = `group '${spec.name}' has no MPI communicator after ${timeoutMs} ms; do all its ranks use backend 'mpi'?`;
    const made = this.#start().then(async (endpoint) => {
      await endpoint.createGroup(spec.id, spec.globalRanks);
      return new MpiPlans(spec, this.#options.kernels, endpoint);
    });
    return within(this.#options.clock, timeoutMs, made, () => {
      throw new ShoalError('timeout', text, { timeoutMs });
    });
  }

  closeGroup(spec: GroupSpec): void {
    this.#open?.freeGroup(spec.id);
  }

  close(): void {
    this.#open?.close();
  }

  async #start(): Promise<MpiEndpoint> {
    const { rank, size, settings } = this.#options;
    this.#endpoint ??= MpiEndpoint.open({ enabled: settings.native });
    const endpoint = await this.#endpoint;
    if (endpoint.rank !== rank || endpoint.size !== size) {
      endpoint.close();
      const message = `this process is rank ${rank} of ${size}, and rank ${endpoint.rank} of ${endpoint.size} for MPI; with backend 'mpi' start all ranks with mpirun and leave rank and worldSize to it`;
      throw new ShoalError('config', message, { rank });
    }
    this.#open = endpoint;
    // Operations under way keep the process alive by themselves.
    endpoint.ref(false);
    return endpoint;
  }
}

class MpiPlan implements PreparedPlan {
  readonly call: CollectiveCall;
  readonly plan: Plan;
  readonly computeType: DType;
  readonly lowered = noSteps;
  readonly hostPath = undefined;
  readonly isForNetworkPath = false;
  readonly free = [];

  constructor(call: CollectiveCall, plan: Plan) {
    this.call = call;
    this.plan = plan;
    const widened = call.op !== undefined && (call.dtype === 'float16' || call.dtype === 'bfloat16');
    this.computeType = widened ? 'float32' : call.dtype;
  }
}

class MpiPlans implements Plans {
  readonly #spec: GroupSpec;
  readonly #kernels: Kernels;
  readonly #endpoint: MpiEndpoint;
  /** Operations that MPI has not heard of, in the order of the calls. */
  readonly #waiting: MpiExecution[] = [];

  constructor(spec: GroupSpec, kernels: Kernels, endpoint: MpiEndpoint) {
    this.#spec = spec;
    this.#kernels = kernels;
    this.#endpoint = endpoint;
  }

  prepare(call: CollectiveCall): MpiPlan {
    const { kind, count, counts, splits, root } = call;
    if (count > elementsMost) {
      const message = `${kind} of ${count} elements: MPI counts to ${elementsMost}; use several calls or a wider dtype`;
      throw new ShoalError('unsupported', message);
    }
    const request = { collective: kind, topology: this.#spec.topology, count, counts, splits, root };
    const association = call.op === undefined ? 'none' : 'relaxed';
    return new MpiPlan(call, { request, algorithm: 'open-mpi', association, partials: true, programs: [] });
  }

  take(prepared: PreparedPlan): RunningPlan {
    assert(prepared instanceof MpiPlan, () => 'a group runs what it has prepared');
    const { rank, globalRanks, id } = this.#spec;
    const execution = new MpiExecution(prepared, {
      group: { id, rank, size: globalRanks.length },
      kernels: this.#kernels,
      endpoint: this.#endpoint,
      onReady: () => this.#startReady(),
    });
    this.#waiting.push(execution);
    return execution;
  }

  /** They are used once. */
  give(): void {}

  #startReady(): void {
    while (this.#waiting[0]?.ready) must(this.#waiting.shift(), () => 'there is one').start();
  }
}

interface MpiExecutionOptions {
  readonly group: { readonly id: number; readonly rank: number; readonly size: number };
  readonly kernels: Kernels;
  readonly endpoint: MpiEndpoint;
  readonly onReady: () => void;
}

/** One collective, handed to MPI when its turn comes. */
class MpiExecution implements RunningPlan {
  readonly lowered = noSteps;
  readonly #plan: MpiPlan;
  readonly #options: MpiExecutionOptions;
  #context: ExecutionContext | undefined;
  #outcome: 'success' | ShoalError | undefined;

  constructor(plan: MpiPlan, options: MpiExecutionOptions) {
    this.#plan = plan;
    this.#options = options;
  }

  /** Nothing comes before the announcement. */
  enter(): void {}

  bind(context: ExecutionContext): void {
    this.#context = context;
    this.#options.onReady();
  }

  get ready(): boolean {
    return this.#context !== undefined;
  }

  start(): void {
    const { endpoint, group } = this.#options;
    const { call, computeType } = this.#plan;
    const context = must(this.#context, () => 'only what is bound is started');
    const { input, output } = this.#buffers();
    const codes = {
      group: group.id,
      kind: collectiveCode(call.kind),
      dtype: dtypeInfo(computeType).code,
      op: call.op === undefined ? 0 : reduceOpCode(combineOpOf(call.op)),
      root: call.root ?? 0,
    };
    endpoint.collective({ ...codes, input, output, ...this.#counts() }, (error) => {
      this.#outcome = error ?? 'success';
      context.progress();
    });
  }

  /** @throws ShoalError what MPI said. */
  run(): 'done' | 'waiting' {
    if (this.#outcome === undefined) return 'waiting';
    if (this.#outcome !== 'success') throw this.#outcome;
    const { call, computeType } = this.#plan;
    if (call.op === 'avg') {
      const { output } = this.#buffers();
      const { kernels, group } = this.#options;
      if (output.length > 0) kernels.reduce(computeType, 'sum', [output], [output], [0], group.size);
    }
    return 'done';
  }

  /** MPI cannot take back what it has started. */
  abandon(): void {}

  /** Memory that this rank gives and gets; the same view where a result takes the place of an input. */
  #buffers(): { input: Uint8Array; output: Uint8Array } {
    const { kind, root } = this.#plan.call;
    const isRoot = root === this.#options.group.rank;
    switch (kind) {
      case 'barrier':
        return { input: nothing, output: nothing };
      case 'all-reduce':
      case 'broadcast':
        return { input: nothing, output: this.#view('data') };
      case 'reduce':
        return isRoot ? { input: nothing, output: this.#view('data') } : { input: this.#view('data'), output: nothing };
      case 'gather':
        return { input: this.#view('input'), output: isRoot ? this.#view('output') : nothing };
      case 'scatter':
        return { input: isRoot ? this.#view('input') : nothing, output: this.#view('output') };
      default:
        return { input: this.#view('input'), output: this.#view('output') };
    }
  }

  #view(buffer: BufferName): Uint8Array {
    const context = must(this.#context, () => 'only what is bound has memory');
    return context.view({ kind: 'buffer', rank: this.#options.group.rank, buffer });
  }

  /** Per rank, where they are uneven or MPI wants them always. */
  #counts(): { inputCounts: readonly number[]; outputCounts: readonly number[] } {
    const { rank, size } = this.#options.group;
    const { kind, counts, splits, count } = this.#plan.call;
    const givers: readonly Collective[] = ['scatter', 'reduce-scatter'];
    if (kind === 'all-to-all') {
      const first = splits ? splits[0][0] : count / size / size;
      if (!splits?.some((row) => row.some((each) => each !== first))) return { inputCounts: [first], outputCounts: [first] };
      return { inputCounts: splits[rank], outputCounts: splits.map((row) => row[rank]) };
    }
    const each = counts ?? (kind === 'reduce-scatter' ? new Array<number>(size).fill(count / size) : []);
    return givers.includes(kind) ? { inputCounts: each, outputCounts: [] } : { inputCounts: [], outputCounts: each };
  }
}
