/** One task's part of other tasks' sessions: graphs that are registered here, steps of them, and the tensors that others fetch from here.
 *
 *      register ─▶ run (step) ─▶ endStep            before a step has begun here, its receives are parked
 *                    └▶ abortStep, caller gone */
import type { Clock } from '../../base/clock.ts';
import { silentLogger, type Logger } from '../../base/log.ts';
import { errorCodes, ShoalError } from '../../base/errors.ts';
import type { WorkerFacts } from '../../metrics/worker-report.ts';
import type { WorkerCore } from '../../rendezvous/carriers/worker-core.ts';
import type { DeviceValues } from '../execute/device-values.ts';
import { Executor } from '../execute/executor.ts';
import type { KernelTable } from '../execute/kernel.ts';
import { runStep, type StepOutcome } from '../execute/step.ts';
import type { Pieces, RpcCall, RpcService } from '../rpc/rpc.ts';
import type { Graph } from '../structure/graph.ts';
import type { Value } from '../structure/value.ts';
import { graphOf } from '../wire/graphs.ts';
import { decodeMessage, encodeMessage } from '../wire/messages.ts';
import { anyList, count, integer, list, number, object, parse, text, type ValueOf } from '../../base/schema.ts';
import type { PreparedRun } from '../execute/session.ts';

// ── calls between tasks ────────────────────────────────────────────────────────────────────────────────────────────

export const Method = { register: 1, deregister: 2, run: 3, endStep: 4, abortStep: 5 } as const;

const stepId = count;
const name = text(10_000);

const registerSchema = object({
  handle: name,
  interOpParallelism: integer({ min: 1 }),
  /** Graphs as data; their values are the values of the message. */
  partitions: list(object({ device: name, nodes: anyList })),
});

const handleSchema = object({ handle: name });

const runSchema = object({
  handle: name,
  stepId,
  timeoutMs: number({ above: 0 }),
  fetchCount: count,
  /** The number of the feed that each value of the message is. */
  feeds: list(count),
});

export const ranSchema = object({
  requests: integer(),
  /** The number of the fetch that each value of the message is. */
  fetches: list(count),
});

const stepSchema = object({ stepId });

const abortSchema = object({ stepId, code: name, message: name });

export interface WorkerServiceOptions {
  /** The steps of this task, and the tensors that it exchanges with others. */
  readonly core: WorkerCore<Value, Value>;
  /** The memory of devices, which the tensors are sent from. */
  readonly devices: DeviceValues;
  readonly clock: Clock;
  readonly kernels: KernelTable;
  /** Takes warnings of what fails at the end of other tasks' steps. Default: they are dropped. */
  readonly log?: Logger;
  /** Graphs that others may have registered here. Default 4096. */
  readonly graphsMax?: number;
}

/** Partitions of one kind of step, on the devices of this task. */
export interface TaskGraph {
  readonly executors: readonly Executor[];
  readonly caller: string;
}

/** A step with its feeds, of which only those of this task's devices are looked at. */
export interface TaskStep extends PreparedRun {
  readonly stepId: number;
  readonly caller: string;
}

/** Sessions of this very process. */
export const ownCaller = 'own';

export class WorkerService implements RpcService {
  readonly #options: Required<WorkerServiceOptions>;
  readonly #graphs = new Map<string, TaskGraph>();
  /** Steps that have begun and not ended. */
  readonly #running = new Map<number, { readonly abort: AbortController; readonly caller: string; readonly sinceMs: number }>();
  #steps = 0;

  constructor(options: WorkerServiceOptions) {
    this.#options = { log: silentLogger, graphsMax: 4096, ...options };
  }

  /** `/job:ps/task:1`. */
  get task(): string {
    return this.#options.core.self.device;
  }

  /** The state of this task's part of the steps. */
  get facts(): WorkerFacts {
    const [first] = this.#running;
    const oldest = first && { text: `step ${first[0]} of ${this.task}`, seconds: (this.#options.clock.now() - first[1].sinceMs) / 1000 };
    return { calls: this.#steps, pending: this.#running.size, failure: undefined, oldest, servers: [] };
  }

  // ── called by sessions of this process, and for those of others ────────────────────────────────────────────────

  /** @throws ShoalError `unsupported` for operations without a kernel, `usage` for devices of another task. */
  makeExecutors(partitions: readonly { readonly device: string; readonly graph: Graph }[], interOpParallelism: number): Executor[] {
    return partitions.map(({ device, graph }) => {
      if (!device.startsWith(`${this.task}/`)) throw new ShoalError('usage', `${device} is not a device of ${this.task}`);
      return new Executor(graph, { kernels: this.#options.kernels, interOpParallelism });
    });
  }

  /** Runs a step. The tensors that it sends stay until `endStep`. @throws ShoalError what failed first; the step is over here then. */
  async runStep(executors: readonly Executor[], { stepId, timeoutMs, fetchCount, feeds, signals, caller }: TaskStep): Promise<StepOutcome> {
    const { core, clock, devices } = this.#options;
    const rendezvous = core.beginStep(stepId);
    const abort = new AbortController();
    this.#running.set(stepId, { abort, caller, sinceMs: clock.now() });
    this.#steps++;
    try {
      const all = [...signals, abort.signal];
      return await runStep(executors, { stepId, feeds, fetchCount, timeoutMs, clock, signals: all, devices, rendezvous });
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      this.abortStep(stepId, error);
      throw error;
    }
  }

  /** @returns what failed at the end. */
  endStep(stepId: number): ShoalError | undefined {
    this.#running.delete(stepId);
    this.#options.core.endStep(stepId);
    return this.#options.devices.end(stepId);
  }

  /** Ends a step with the cause. A step that has not begun here will not begin. */
  abortStep(stepId: number, cause: ShoalError): void {
    const running = this.#running.get(stepId);
    this.#running.delete(stepId);
    running?.abort.abort(cause);
    this.#options.core.endStep(stepId, cause);
    this.#options.devices.end(stepId);
  }

  /** Ends the steps here; no more will begin. */
  close(cause: ShoalError): void {
    for (const stepId of this.#running.keys()) this.abortStep(stepId, cause);
    this.#options.core.endSteps(cause);
  }

  // ── calls of other tasks ───────────────────────────────────────────────────────────────────────────────────────

  readonly callerGone = (caller: string): void => {
    for (const [handle, graph] of this.#graphs) if (graph.caller === caller) this.#graphs.delete(handle);
    const cause = new ShoalError('peer-lost', `${this.task}: the process whose session ran the step is gone`);
    for (const [stepId, running] of this.#running) if (running.caller === caller) this.abortStep(stepId, cause);
  };

  readonly handle = async (call: RpcCall): Promise<Pieces> => {
    const { fields, values } = decodeMessage(call.body);
    switch (call.method) {
      case Method.register:
        return this.#register(call, fields, values);
      case Method.deregister:
        this.#graphs.delete(graphKey(call, parse('a request to forget a graph', handleSchema, fields).handle));
        return encodeMessage({});
      case Method.run:
        return this.#run(call, fields, values);
      case Method.endStep: {
        const failure = this.endStep(parse('the end of a step', stepSchema, fields).stepId);
        // The session has its results already.
        if (failure !== undefined) this.#options.log.warn(`${this.task}: ${failure.message}`);
        return encodeMessage({});
      }
      case Method.abortStep: {
        const { stepId, code, message } = parse('the end of a step', abortSchema, fields);
        this.abortStep(stepId, new ShoalError(errorCodes.find((each) => each === code) ?? 'aborted', message));
        return encodeMessage({});
      }
      default:
        throw new ShoalError('protocol', `there is no method ${call.method}`);
    }
  };

  #register(call: RpcCall, fields: unknown, values: readonly Value[]): Pieces {
    const { handle, interOpParallelism, partitions } = parse('a graph', registerSchema, fields);
    if (this.#graphs.size >= this.#options.graphsMax)
      throw new ShoalError('out-of-memory', `${this.task} has ${this.#graphs.size} graphs of sessions already; close some`);
    const graphs = partitions.map(({ device, nodes }) => ({ device, graph: graphOf(nodes, values) }));
    const executors = this.makeExecutors(graphs, interOpParallelism);
    this.#graphs.set(graphKey(call, handle), { executors, caller: call.caller });
    return encodeMessage({});
  }

  async #run(call: RpcCall, fields: unknown, values: readonly Value[]): Promise<Pieces> {
    const { handle, stepId, timeoutMs, fetchCount, feeds } = parse('a request for a step', runSchema, fields);
    const graph = this.#graphs.get(graphKey(call, handle));
    if (graph === undefined) throw new ShoalError('usage', `${this.task} has no such graph; has its process restarted?`);
    const fed: Value[] = [];
    feeds.forEach((feed, k) => {
      const value = values[k];
      if (value === undefined || feed > feedsMax) throw new ShoalError('protocol', 'a feed is missing');
      fed[feed] = value;
    });
    if (fetchCount > feedsMax) throw new ShoalError('protocol', `${fetchCount} fetches`);
    const step = { stepId, timeoutMs, fetchCount, feeds: fed, signals: [call.signal], caller: call.caller };
    const { results, requests } = await this.runStep(graph.executors, step);
    const fetches = results.flatMap((value, fetch) => (value === undefined ? [] : [fetch]));
    const ran = { requests, fetches } satisfies ValueOf<typeof ranSchema>;
    const alive = fetches.map((fetch) => results[fetch]!);
    return encodeMessage(ran, alive);
  }
}

const feedsMax = 1_000_000;

/** Handles are the callers' own: nobody reaches another's graphs. */
function graphKey({ caller }: { readonly caller: string }, handle: string): string {
  return `${caller} ${handle}`;
}
