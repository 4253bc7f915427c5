/** Runs steps of a graph, one executor per device: TensorFlow's Session. A step computes what its fetches need, from what
 *  it is fed; each kind of step, by its feeds and fetches, is placed, pruned and partitioned once. */
import { describeForeign } from '../../memory/foreign-value.ts';
import { checkedGraph } from '../structure/check-arguments.ts';
import { setMaxListeners } from 'node:events';
import { BoundedCache } from '../../base/collections/bounded-cache.ts';
import { systemClock, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import {
  abortSignal,
  anyList,
  anyNumber,
  anyObject,
  anyText,
  anything,
  checkFields,
  checkOptions,
  describeValue,
  flag,
  optionTable,
} from '../../base/schema.ts';
import { StepRendezvous } from '../../rendezvous/carriers/step-rendezvous.ts';
import { partitionGraph, type PartitionedGraph } from '../partition/partition-graph.ts';
import { prune } from '../partition/prune.ts';
import type { FuseOptions, UnfusedReceive } from '../passes/fuse-recv.ts';
import { DeviceSet, type Device } from '../placement/devices.ts';
import { place, type Placement } from '../placement/place.ts';
import type { Graph } from '../structure/graph.ts';
import { Node, Output } from '../structure/graph-node.ts';
import { formatShape } from '../structure/shape.ts';
import { fits, formatValue, isValue, type Value } from '../structure/value.ts';
import { DeviceValues } from './device-values.ts';
import { Executor } from './executor.ts';
import type { KernelTable } from './kernel.ts';
import { runStep, type StepOutcome } from './step.ts';
import { structuralKernels } from './structural-kernels.ts';
import { VariableStore } from './variable-store.ts';
import type { StepOptions } from './step.ts';

/** Devices, kernels and limits of a session. */
export interface SessionOptions {
  /** Devices in order of preference. */
  readonly devices: readonly (string | Device)[];
  /** Default: the first. */
  readonly defaultDevice?: string;
  /** Kernels beside those of operations that only move values, which they may replace. */
  readonly kernels?: KernelTable;
  /** Default false. */
  readonly doFuseRecv?: boolean;
  /** Options for the fusing of receives, with `doFuseRecv`. */
  readonly fuse?: FuseOptions;
  /** Time limit of a step. Default 5 minutes. */
  readonly timeoutMs?: number;
  /** Kernels of one device at a time in one step; with 1 a step always runs in the same order. Default 8. */
  readonly interOpParallelism?: number;
  /** Steps at a time. Default 64. */
  readonly stepsMax?: number;
  /** Kinds of steps that are kept prepared. Default 64. */
  readonly preparedMax?: number;
  /** Keys of one step. Default 1,000,000. */
  readonly rendezvousKeysMax?: number;
  /** Time of limits. Default: the system's. */
  readonly clock?: Clock;
}

const sessionOptionKeys = optionTable<SessionOptions>({
  devices: anyList,
  defaultDevice: anyText,
  kernels: anyObject,
  doFuseRecv: flag,
  fuse: anyObject,
  timeoutMs: anyNumber,
  interOpParallelism: anyNumber,
  stepsMax: anyNumber,
  preparedMax: anyNumber,
  rendezvousKeysMax: anyNumber,
  clock: anything,
});

/** Options of one step. */
export interface RunOptions {
  /** Default: the session's. */
  readonly timeoutMs?: number;
  /** Ends the step with `aborted`. */
  readonly signal?: AbortSignal;
}

const runOptionKeys = optionTable<RunOptions>({ timeoutMs: anyNumber, signal: abortSignal });

/** An output, also by name: `x:0`. */
export type Feeds = readonly (readonly [Output | string, Value])[];

/** An output gives its value; a node, also by name without a slot, runs and gives undefined. */
export type Fetch = Output | Node | string;

export type Fetched<F extends readonly Fetch[]> = {
  -readonly [K in keyof F]: F[K] extends Output ? Value : F[K] extends Node ? undefined : Value | undefined;
};

/** The arguments of one step. */
export type PreparedRun = Pick<StepOptions, 'feeds' | 'fetchCount' | 'timeoutMs' | 'signals'>;

/** A kind of step, ready to be run any number of times. */
export interface PreparedStep {
  /** @throws ShoalError what failed first. */
  run(run: PreparedRun): Promise<StepOutcome>;
  /** No more steps of it. */
  release(): void;
}

/** Where partitions run: this process, or the tasks of a cluster. */
export interface StepBackend {
  prepare(partitioned: PartitionedGraph): Promise<PreparedStep>;
  /** The session is closed. */
  close(): void;
}

/** Runs steps of a graph on devices, as TensorFlow's `Session`; variables keep their values from step to step. For several processes see
 *  `GraphServer.session`.
 *
 *      const session = new Session(g.finish(), { devices: ['/job:local/task:0/device:CPU:0'], kernels: tensorflowKernels(tf) });
 *      const [loss] = await session.run([[x, batch]], [lossOutput, trainNode]); */
export class Session {
  readonly #graph: Graph;
  readonly #options: Required<Omit<SessionOptions, 'devices' | 'defaultDevice' | 'fuse'>>;
  readonly #fuse: FuseOptions | undefined;
  readonly #devices: DeviceSet;
  readonly #placement: Placement;
  readonly #backend: StepBackend;
  /** Prepared steps, by feeds and fetches. */
  readonly #prepared: BoundedCache<string, PreparedKind>;
  readonly #closing = new AbortController();
  readonly #stats = { steps: 0, requests: 0 };
  #stepsInFlight = 0;

  /** @param backend default: all devices are in this process.
   *  @throws ShoalError `usage` for options, and for devices that the graph asks for and that are not there. */
  constructor(graph: Graph, options: SessionOptions, backend?: StepBackend) {
    checkedGraph('Session', graph);
    checkFields('Session', options, sessionOptionKeys);
    const { devices, defaultDevice, fuse, ...rest } = options;
    this.#graph = graph;
    this.#options = { ...defaults, ...withoutUndefined(rest) };
    for (const key of ['interOpParallelism', 'stepsMax', 'preparedMax', 'rendezvousKeysMax', 'timeoutMs'] as const) {
      if (!(this.#options[key] >= 1))
        throw new ShoalError('usage', `Session: option '${key}' must be at least 1, not ${this.#options[key]}`);
    }
    this.#fuse = fuse;
    // One for every step in flight.
    setMaxListeners(0, this.#closing.signal);
    this.#devices = new DeviceSet(devices);
    this.#placement = place(graph, this.#devices, defaultDevice);
    this.#prepared = new BoundedCache(this.#options.preparedMax, ({ step }) => release(step));
    this.#backend = backend ?? new LocalBackend(this.#options);
  }

  /** Counters since it began, and the receives that it could not fuse. */
  get stats(): Readonly<SessionStats> {
    return { ...this.#stats, unfused: [...this.#prepared.values()].flatMap(({ unfused }) => unfused) };
  }

  /** One step. Steps may overlap, up to `stepsMax`.
   *  @throws ShoalError `usage` for feeds and fetches that do not exist or do not fit, and for a fetch that is dead; else see `runStep`. */
  async run<const F extends readonly Fetch[]>(feeds: Feeds, fetches: F, options: RunOptions = {}): Promise<Fetched<F>> {
    checkOptions('run', options, runOptionKeys);
    const fed = feeds.map(([target, value]) => this.#checkFeed(target, value));
    const { wanted, outputs, targets } = this.#wanted(fetches);
    const prepared = await this.#prepare(fed, outputs, targets);
    const values = feeds.map(([, value]) => value);
    const { results } = await this.#step(prepared, values, outputs.length, options);
    outputs.forEach(({ name }, index) => {
      if (results[index] === undefined) throw new ShoalError('usage', `fetch '${name}' is dead: it is on a branch that was not taken`);
    });
    let next = 0;
    return wanted.map((each) => (each instanceof Output ? results[next++] : undefined)) as Fetched<F>;
  }

  /** The partitions that such a step runs, to look at. */
  partitions(feeds: readonly (Output | string)[], fetches: readonly Fetch[]): PartitionedGraph {
    const { outputs, targets } = this.#wanted(fetches);
    const fed = feeds.map((feed) => this.#output(feed));
    return this.#partition(fed, outputs, targets);
  }

  /** Ends the steps in flight with `closed`; there will be no more. */
  close(): void {
    if (this.#closing.signal.aborted) return;
    this.#closing.abort(closed());
    for (const { step } of this.#prepared.values()) release(step);
    this.#prepared.clear();
    this.#backend.close();
  }

  async #step(prepared: PreparedStep, feeds: readonly Value[], fetchCount: number, options: RunOptions): Promise<StepOutcome> {
    const { timeoutMs, stepsMax } = this.#options;
    if (this.#closing.signal.aborted) throw closed();
    if (this.#stepsInFlight >= stepsMax) {
      throw new ShoalError('usage', `run: ${stepsMax} steps are in flight already; await some, or raise stepsMax`);
    }
    this.#stepsInFlight++;
    // The caller's signal may serve any number of steps: Node.js warns of one with more than ten listeners.
    const signals = [this.#closing.signal, ...(options.signal ? [AbortSignal.any([options.signal])] : [])];
    try {
      const outcome = await prepared.run({ feeds, fetchCount, timeoutMs: options.timeoutMs ?? timeoutMs, signals });
      this.#stats.steps++;
      this.#stats.requests += outcome.requests;
      return outcome;
    } catch (thrown) {
      if (this.#closing.signal.aborted && options.signal?.aborted !== true) throw closed(thrown);
      throw thrown;
    } finally {
      this.#stepsInFlight--;
    }
  }

  #prepare(feeds: readonly Output[], fetches: readonly Output[], targets: readonly Node[]): Promise<PreparedStep> {
    if (this.#closing.signal.aborted) throw closed();
    const signature = [feeds, fetches, targets].map((each) => each.map(({ name }) => name).join(' ')).join(' | ');
    const found = this.#prepared.get(signature);
    if (found !== undefined) return found.step;
    const partitioned = this.#partition(feeds, fetches, targets);
    const prepared = this.#prepared.put(signature, { step: this.#backend.prepare(partitioned), unfused: partitioned.unfused });
    prepared.step.catch(() => {
      if (this.#prepared.get(signature) === prepared) this.#prepared.delete(signature);
    });
    return prepared.step;
  }

  #partition(feeds: readonly Output[], fetches: readonly Output[], targets: readonly Node[]): PartitionedGraph {
    if (new Set(feeds).size < feeds.length)
      throw new ShoalError('usage', `run: something is fed twice: ${feeds.map(({ name }) => name).join(' ')}`);
    const pruned = prune(this.#graph, this.#placement, { feeds, fetches, targets });
    return partitionGraph(pruned, { devices: this.#devices, doFuseRecv: this.#options.doFuseRecv, fuse: this.#fuse });
  }

  #checkFeed(target: Output | string, value: Value): Output {
    const output = this.#output(target);
    if (!isValue(value))
      throw new ShoalError('usage', `feed '${output.name}' must be a value with dtype, shape and data, not ${describeForeign(value)}`);
    if (fits(value, output.dtype, output.shape)) return output;
    const expected = `${output.dtype}${formatShape(output.shape)}`;
    throw new ShoalError('usage', `feed '${output.name}' must be ${expected}, but is ${formatValue(value)}`);
  }

  #output(given: Output | string): Output {
    if (typeof given === 'string') return this.#graph.output(given);
    if (given instanceof Output && this.#graph.has(given.node)) return given;
    throw new ShoalError('usage', `run: ${describeValue(given)} is not an output of this session's graph`);
  }

  #wanted(fetches: readonly Fetch[]): { wanted: readonly (Output | Node)[]; outputs: readonly Output[]; targets: readonly Node[] } {
    const wanted = fetches.map((fetch) => this.#fetch(fetch));
    const outputs = wanted.filter((each) => each instanceof Output);
    return { wanted, outputs, targets: wanted.filter((each) => each instanceof Node) };
  }

  #fetch(given: Fetch): Output | Node {
    if (given instanceof Node && this.#graph.has(given)) return given;
    if (typeof given !== 'string') return this.#output(given as Output);
    return given.includes(':') ? this.#graph.output(given) : this.#graph.node(given);
  }
}

/** Counters of a session since it began. */
export interface SessionStats {
  /** Steps that ended well. */
  readonly steps: number;
  /** Requests for tensors that their receives made; a fused one counts once. */
  readonly requests: number;
  /** Receives that `doFuseRecv` left alone, and why, for every kind of step that is prepared. */
  readonly unfused: readonly UnfusedReceive[];
}

/** A kind of step as the session keeps it. */
interface PreparedKind {
  readonly step: Promise<PreparedStep>;
  readonly unfused: readonly UnfusedReceive[];
}

/** All devices are in this process. */
class LocalBackend implements StepBackend {
  readonly #options: Required<Pick<SessionOptions, 'clock' | 'interOpParallelism' | 'rendezvousKeysMax'>>;
  readonly #kernels: KernelTable;
  readonly #devices = new DeviceValues();
  #stepId = 0;

  constructor(options: Required<Pick<SessionOptions, 'clock' | 'interOpParallelism' | 'rendezvousKeysMax' | 'kernels'>>) {
    this.#options = options;
    this.#kernels = { ...structuralKernels(new VariableStore()), ...options.kernels };
  }

  async prepare({ partitions }: PartitionedGraph): Promise<PreparedStep> {
    const { clock, interOpParallelism, rendezvousKeysMax: keysMax } = this.#options;
    const executors = partitions.map(({ graph }) => new Executor(graph, { kernels: this.#kernels, interOpParallelism }));
    const run = async (given: PreparedRun): Promise<StepOutcome> => {
      const stepId = ++this.#stepId;
      const rendezvous = new StepRendezvous<Value>(stepId, { keysMax });
      const running = runStep(executors, { ...given, stepId, clock, devices: this.#devices, rendezvous });
      let failure: ShoalError | undefined;
      const outcome = await running.finally(() => (failure = this.#devices.end(stepId)));
      if (failure !== undefined) throw failure;
      return outcome;
    };
    return { run, release: () => {} };
  }

  close(): void {
    this.#devices.close();
  }
}

function release(prepared: Promise<PreparedStep>): void {
  void prepared.then((step) => step.release()).catch(() => undefined);
}

const defaults = {
  kernels: {},
  doFuseRecv: false,
  timeoutMs: 300_000,
  interOpParallelism: 8,
  stepsMax: 64,
  preparedMax: 64,
  rendezvousKeysMax: 1_000_000,
  clock: systemClock,
};

export function withoutUndefined<T extends object>(options: T): T {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as T;
}

function closed(cause?: unknown): ShoalError {
  return new ShoalError('closed', 'the session is closed', { cause });
}
