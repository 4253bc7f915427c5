/** Runs the steps of a session on the tasks of a cluster: partitions are registered with the tasks of their devices once, then every step
 *  is one request per task. The first that fails ends the step on all of them, with its cause. */
import { groupBy } from '../../base/collections/lists.ts';
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { isOnDevice } from '../../memory/device/device-tensor.ts';
import type { DeviceValues } from '../execute/device-values.ts';
import type { PreparedRun, PreparedStep, StepBackend } from '../execute/session.ts';
import { endTogether, type StepOutcome } from '../execute/step.ts';
import type { Flow } from '../execute/step-state.ts';
import type { Partition, PartitionedGraph } from '../partition/partition-graph.ts';
import type { RpcLink } from '../rpc/rpc.ts';
import { taskOf } from '../structure/device-name.ts';
import type { Value } from '../structure/value.ts';
import { graphData } from '../wire/graphs.ts';
import { decodeMessage, encodeMessage } from '../wire/messages.ts';
import { parse } from '../../base/schema.ts';
import type { TaskTrace } from './task-trace.ts';
import { Method, ownCaller, ranSchema, type WorkerService } from './worker-service.ts';

export interface ClusterBackendOptions {
  readonly clock: Clock;
  /** The service of this process, whose partitions run without requests. */
  readonly service: WorkerService;
  readonly linkTo: (task: string) => Promise<RpcLink>;
  /** Differs for every step of every session in the cluster. */
  readonly nextStepId: () => number;
  readonly nextHandle: () => string;
  readonly interOpParallelism: number;
  readonly trace: TaskTrace;
  /** The memory of this process's devices, which fed tensors may be in. */
  readonly devices: DeviceValues;
  /** Aborted when the job has failed, with the reason. */
  readonly job: AbortSignal;
  /** Makes of a value one that may outlive its step. */
  readonly keep: (value: Value) => Value;
  /** The session is closed. */
  readonly onClose: () => void;
}

/** Beyond a step's time, until those who do not answer are given up: they say better what they wait for. */
const marginMs = 1000;

export class ClusterBackend implements StepBackend {
  readonly #options: ClusterBackendOptions;

  constructor(options: ClusterBackendOptions) {
    this.#options = options;
  }

  close(): void {
    this.#options.onClose();
  }

  async prepare({ partitions }: PartitionedGraph): Promise<PreparedStep> {
    const shares = [...groupBy(partitions, ({ device }) => taskOf(device.name))].map(([task, own]) => this.#share(task, own));
    try {
      return clusterStep(await unlessAborted(this.#options.job, () => Promise.all(shares)), this.#options);
    } catch (thrown) {
      // Tasks that have registered their part, or still do, need not keep it.
      for (const share of shares) share.then((made) => made.release()).catch(() => undefined);
      throw thrown;
    }
  }

  async #share(task: string, partitions: readonly Partition[]): Promise<Share> {
    return task === this.#options.service.task ? this.#ownShare(partitions) : this.#remoteShare(task, partitions);
  }

  #ownShare(partitions: readonly Partition[]): Share {
    const { service, interOpParallelism } = this.#options;
    const graphs = partitions.map(({ device, graph }) => ({ device: device.name, graph }));
    const executors = service.makeExecutors(graphs, interOpParallelism);
    return {
      task: service.task,
      run: (stepId, run) => service.runStep(executors, { ...run, stepId, caller: ownCaller }),
      end: (stepId) => service.endStep(stepId),
      abort: (stepId, cause) => service.abortStep(stepId, cause),
      release: () => {},
    };
  }

  async #remoteShare(task: string, partitions: readonly Partition[]): Promise<Share> {
    const { linkTo, nextHandle, interOpParallelism, devices } = this.#options;
    const handle = nextHandle();
    const values: Value[] = [];
    const graphs = partitions.map(({ device, graph }) => ({ device: device.name, nodes: graphData(graph, values) }));
    const link = await linkTo(task);
    await link.call(Method.register, encodeMessage({ handle, interOpParallelism, partitions: graphs }, values));
    // Nothing depends on the answer: a task that is gone has no step either.
    const tell = (method: number, fields: unknown): undefined => void link.call(method, encodeMessage(fields)).catch(() => undefined);
    const [feedIndexes, fetchIndexes] = [indexesOf(partitions, 'argument'), indexesOf(partitions, 'return')];
    return {
      task,
      run: async (stepId, { feeds, fetchCount, timeoutMs, signals: [signal] }) => {
        const given = feedIndexes.map((feed) => feeds[feed]);
        const fed = given.some(isOnDevice) ? await Promise.all(given.map((value) => devices.toHost(value))) : given;
        const body = encodeMessage({ handle, stepId, timeoutMs, fetchCount, feeds: feedIndexes }, fed);
        const answer = decodeMessage(await link.call(Method.run, body, { signal }));
        const { requests, fetches } = parse(`the answer of ${task}`, ranSchema, answer.fields);
        const results: Flow[] = [];
        fetches.forEach((fetch, k) => {
          if (!fetchIndexes.includes(fetch))
            throw new ShoalError('protocol', `${task} answered fetch ${fetch}, which it was not asked for`);
          results[fetch] = answer.values[k];
        });
        return { requests, results };
      },
      end: (stepId) => tell(Method.endStep, { stepId }),
      abort: (stepId, { code, message }) => tell(Method.abortStep, { stepId, code, message: message.slice(0, messageMax) }),
      release: () => tell(Method.deregister, { handle }),
    };
  }
}

/** The part of a step that one task does. */
interface Share {
  readonly task: string;
  run(stepId: number, run: PreparedRun): Promise<StepOutcome>;
  /** @returns what failed at the end, as far as this process knows. */
  end(stepId: number): ShoalError | undefined;
  abort(stepId: number, cause: ShoalError): void;
  release(): void;
}

const messageMax = 4000;

/** One step after the other, of all tasks together. */
function clusterStep(shares: readonly Share[], options: ClusterBackendOptions): PreparedStep {
  const { clock, nextStepId, trace, job, keep } = options;
  const run = async (given: PreparedRun): Promise<StepOutcome> => {
    const startMs = trace.now();
    const { timeoutMs, signals } = given;
    const stepId = nextStepId();
    const unanswered = new Set(shares);
    const timedOut = (): ShoalError => {
      const tasks = [...unanswered].map(({ task }) => task).join(', ');
      return new ShoalError('timeout', `step ${stepId} did not end within ${timeoutMs} ms: no answer from ${tasks}`, { timeoutMs });
    };
    const onEnd = (cause: ShoalError): void => {
      for (const share of shares) share.abort(stepId, cause);
    };
    const end = { stepId, clock, timeoutMs: timeoutMs + marginMs, signals: [...signals, job], timedOut, onEnd };
    const all = await endTogether(end, (ending, fail) => {
      const outcomes = shares.map(async (share) => {
        const outcome = await share.run(stepId, { ...given, signals: [ending] });
        unanswered.delete(share);
        return outcome;
      });
      for (const outcome of outcomes) outcome.catch((thrown: unknown) => fail(ShoalError.from(thrown)));
      return Promise.all(outcomes);
    });
    const failure = shares.map((share) => share.end(stepId)).find((each) => each !== undefined);
    if (failure !== undefined) throw failure;
    const results: Flow[] = Array.from({ length: given.fetchCount });
    for (const outcome of all)
      outcome.results.forEach((value, fetch) => {
        if (value !== undefined) results[fetch] ??= keep(value);
      });
    const requests = all.reduce((sum, outcome) => sum + outcome.requests, 0);
    trace.step(stepId, startMs, requests);
    return { results, requests };
  };
  return { run, release: () => shares.forEach((share) => share.release()) };
}

function indexesOf(partitions: readonly Partition[], control: 'argument' | 'return'): number[] {
  return partitions.flatMap(({ graph }) =>
    graph.nodes.filter((node) => node.control === control).map(({ attributes }) => attributes.index as number),
  );
}

/** @throws the reason of the signal, also when it is aborted meanwhile. */
async function unlessAborted<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  signal.throwIfAborted();
  let end!: () => void;
  const aborted = new Promise<never>((_, reject) => signal.addEventListener('abort', (end = () => reject(ShoalError.from(signal.reason)))));
  try {
    return await Promise.race([aborted, work()]);
  } finally {
    signal.removeEventListener('abort', end);
  }
}
