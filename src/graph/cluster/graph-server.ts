/** A task of a cluster: what TensorFlow calls a server. It serves partitions of all tasks' sessions, and makes sessions of its own.
 *
 *      /job:worker/task:0 ── session ─▶ partitions on /job:worker/task:0, /job:ps/task:0, …
 *      /job:ps/task:0     ── join                     variables live here, whoever's session they are of */
import { setMaxListeners } from 'node:events';
import type { Clock } from '../../base/clock.ts';
import { failureOf, ShoalError } from '../../base/errors.ts';
import type { Logger } from '../../base/log.ts';
import type { Random } from '../../base/random.ts';
import type { ParameterKernels } from '../../memory/parameter-kernels.ts';
import { answerForWorker } from '../../metrics/worker-report.ts';
import type { Fabric, PeerIdentity } from '../../fabric/fabric.ts';
import type { Arbiter } from '../../scheduler/arbiter.ts';
import type { Store } from '../../store/store.ts';
import type { KernelTable } from '../execute/kernel.ts';
import { Session, withoutUndefined, type SessionOptions } from '../execute/session.ts';
import { structuralKernels, type FunctionTable } from '../execute/structural-kernels.ts';
import { VariableStore } from '../execute/variable-store.ts';
import { tableKernels } from '../kernels/table-kernels.ts';
import type { Device } from '../placement/devices.ts';
import { FabricCarrier } from '../rpc/fabric-carrier.ts';
import type { RpcLink } from '../rpc/rpc.ts';
import { taskName } from '../structure/device-name.ts';
import { kept } from '../structure/elements.ts';
import type { Graph } from '../structure/graph.ts';
import type { Value } from '../structure/value.ts';
import { ClusterBackend } from './cluster-backend.ts';
import { jobFailed, noteJoined, rankEnded } from '../../store/ended-ranks.ts';
import { MonitoredSession, type MonitoredSessionOptions } from './monitored-session.ts';
import { TaskTrace } from './task-trace.ts';
import { TaskTensors, type TensorAddress } from './task-tensors.ts';
import { WorkerService } from './worker-service.ts';

/** Tasks of each job: `{ worker: 3, ps: 2 }`. */
export type ClusterSpec = Readonly<Record<string, number>>;

export interface GraphServerOptions {
  readonly cluster: ClusterSpec;
  readonly job: string;
  readonly task: number;
  /** The store of the job that all tasks are processes of. */
  readonly store: Store;
  /** Called twice: calls and tensors have one each. The server closes them. */
  readonly createFabric: () => Fabric;
  /** World and rank of the fabrics' identities. */
  readonly identity: PeerIdentity;
  /** Bounds what this process sends, also besides. Default: nothing else is sent. */
  readonly arbiter?: Arbiter;
  /** Time limit for making a broken connection again. Default 2000. */
  readonly reconnectMs?: number;
  /** The class that exchanges tensors; benchmarks have another one. */
  readonly Tensors?: typeof TaskTensors;
  readonly clock: Clock;
  readonly random: Random;
  readonly parameterKernels: ParameterKernels;
  /** Kernels beside those of tables, optimisers, and operations that only move values. */
  readonly kernels?: KernelTable;
  /** Functions that `call`s of any task's graph may name. */
  readonly functions?: FunctionTable;
  /** Fusion at run time: receives of one sender gather for a moment and go as one request. Default false. */
  readonly recvSome?: boolean;
  /** Takes warnings of failures that no session of this process is told of. Default: they are dropped. */
  readonly log?: Logger;
  /** The timeline of this task. Default: nothing is recorded. */
  readonly trace?: TaskTrace;
  /** The rank of this process in its job, in which ranks are tasks in the cluster's order. What waits here for others then fails when one
   *  ends before it is done, and when the job fails. Default: nobody says so. */
  readonly rank?: number;
  /** True: `close` closes the store. */
  readonly closeStore?: boolean;
}

/** `SessionOptions` without those that the server itself brings: devices, kernels, clock. */
export type ClusterSessionOptions = Omit<SessionOptions, 'devices' | 'kernels' | 'clock' | 'rendezvousKeysMax'>;

/** Counters of the exchange of a task with others, since it started. */
export interface GraphServerStats {
  /** Requests for tensors of other tasks, fused ones once. */
  readonly requests: number;
  /** Tensors that came with them. */
  readonly tensors: number;
  /** All calls of other tasks, and the bytes of these and of those that were answered, in both directions. */
  readonly calls: number;
  /** Bytes of these calls and of those that were answered, in both directions. */
  readonly bytes: number;
  /** Bytes of tensors that this process has copied, beside the way itself: small ones that variables and programs keep. */
  readonly bytesCopied: number;
}

const foreverMs = 2 ** 31 - 1;
/** Time limit for the start of other tasks. */
const joinMs = 300_000;
const stepsPerStart = 2 ** 32;
const startsMax = 2 ** 21;

/** A task of a cluster, as TensorFlow's `Server`: it runs the partitions of every task's sessions that are on its device, keeps its
 *  variables from session to session, and makes sessions of its own. Made by `startGraphServer`.
 *
 *      await using server = await startGraphServer();
 *      if (server.job === 'ps') await server.join();
 *      else await train(await server.session(graph, { doFuseRecv: true })); */
export class GraphServer implements AsyncDisposable {
  /** Name of its job: `worker`, `ps`. */
  readonly job: string;
  /** Number of the task in its job, 0-based. */
  readonly task: number;
  readonly #options: GraphServerOptions;
  readonly #service: WorkerService;
  readonly #carrier: FabricCarrier;
  readonly #tensors: TaskTensors;
  readonly #trace: TaskTrace;
  readonly #keep: (value: Value) => Value;
  readonly #links = new Map<string, Promise<RpcLink>>();
  readonly #sessions = new Set<Session>();
  /** Ends steps, and what prepares them. */
  readonly #jobFailed = new AbortController();
  /** Ends what listens for the end of the job. */
  readonly #over = new AbortController();
  /** First of this process's step ids. */
  readonly #firstStep: number;
  #steps = 0;
  #handles = 0;
  #closed = false;

  private constructor(options: GraphServerOptions, firstStep: number) {
    const { job, task, clock, random, parameterKernels, kernels = {}, functions, recvSome = false, trace = new TaskTrace() } = options;
    this.job = job;
    this.task = task;
    this.#options = options;
    this.#trace = trace;
    const { createFabric, identity, arbiter, reconnectMs, Tensors = TaskTensors } = options;
    const connections = { ...identity, clock, random, ...(reconnectMs !== undefined && { reconnectMs }) };
    this.#carrier = new FabricCarrier({ ...connections, fabric: createFabric() });
    this.#tensors = new Tensors({
      ...connections,
      fabric: createFabric(),
      task: this.name,
      incarnation: new DataView(random.bytes(8).buffer).getBigUint64(0) >> 1n,
      arbiter,
      recvSome,
      trace,
      addressOf: async (task) => (await this.#recordOf(task)).tensors,
    });
    this.#keep = (value) => kept(value, this.#tensors.counters);
    this.#service = new WorkerService({
      core: this.#tensors.core,
      devices: this.#tensors.devices,
      clock,
      ...(options.log && { log: options.log }),
      kernels: { ...structuralKernels(new VariableStore(this.#keep), functions), ...tableKernels(parameterKernels), ...kernels },
    });
    this.#firstStep = firstStep;
    setMaxListeners(0, this.#jobFailed.signal);
  }

  /** Starts to serve, and tells the cluster. @throws ShoalError `usage` for a task that is not in the cluster. */
  static async start(options: GraphServerOptions): Promise<GraphServer> {
    checkCluster(options);
    // Every process that ever starts in the job has a number of its own, and so have the steps of its sessions.
    const start = await options.store.add('graph/starts', 1);
    const server = new GraphServer(options, (start % startsMax) * stepsPerStart);
    const [address, tensors] = await Promise.all([server.#carrier.listen(server.#service), server.#tensors.listen()]);
    const record: TaskRecord = { address, tensors, incarnation: String(server.#tensors.core.self.incarnation) };
    await options.store.set(recordKey(server.name), Buffer.from(JSON.stringify(record)));
    const { store, rank } = options;
    if (rank !== undefined) {
      const place = { group: 'graph', rank, size: tasksOf(options.cluster).length } as const;
      answerForWorker(store, place, () => server.#service.facts, server.#over.signal);
      jobFailed(store, rank, server.#over.signal).catch((thrown: unknown) => server.#fail(ShoalError.from(thrown)));
    }
    return server;
  }

  /** `/job:ps/task:1`. */
  get name(): string {
    return taskName(this.job, this.task);
  }

  /** Tasks of each job, the same on every task. */
  get cluster(): ClusterSpec {
    return this.#options.cluster;
  }

  /** The device of this task. */
  get device(): string {
    return deviceOf(this.name);
  }

  /** Counters of the exchange with other tasks so far. */
  get stats(): GraphServerStats {
    const { requests, tensors, bytes: tensorBytes } = this.#tensors.stats;
    const { calls, bytesSent, bytesReceived } = this.#carrier.stats;
    const { bytesWritten, bytesCopied } = this.#tensors.counters;
    const bytes = bytesSent + bytesReceived + tensorBytes + bytesWritten;
    return { requests, tensors, calls: calls + requests, bytes, bytesCopied };
  }

  /** A session over all devices of the cluster; nodes that do not say where run on this task. Waits until all tasks have started.
   *  @throws ShoalError `timeout` that names the tasks that have not. */
  async session(graph: Graph, options: ClusterSessionOptions = {}): Promise<Session> {
    if (this.#closed) throw new ShoalError('closed', `${this.name} is closed`);
    const devices = await this.#devices();
    const { clock } = this.#options;
    const backend = new ClusterBackend({
      clock,
      service: this.#service,
      linkTo: (task) => this.#linkTo(task),
      nextStepId: () => this.#firstStep + (this.#steps++ % stepsPerStart),
      nextHandle: () => `graph-${this.#handles++}`,
      interOpParallelism: options.interOpParallelism ?? 8,
      trace: this.#trace,
      devices: this.#tensors.devices,
      job: this.#jobFailed.signal,
      keep: this.#keep,
      onClose: () => void this.#sessions.delete(session),
    });
    const given = { ...options, devices, clock, defaultDevice: options.defaultDevice ?? this.device };
    const session: Session = new Session(graph, given, backend);
    this.#sessions.add(session);
    return session;
  }

  /** A session that goes on from its last save when a task of another job was restarted.
   *  @throws ShoalError `usage` for options, else as `session`. */
  monitoredSession(
    graph: Graph,
    { saver, path, init, isChief, saveSteps, recoveryMs, ...options }: MonitoredSessionOptions & ClusterSessionOptions,
  ): Promise<MonitoredSession> {
    const { cluster, store, clock } = this.#options;
    const others = tasksOf(cluster).filter((task) => !task.startsWith(`/job:${this.job}/`));
    const around = {
      store,
      clock,
      isFirst: this.task === 0,
      open: () => this.session(graph, options),
      incarnations: async () => (await this.#records(others)).map(({ incarnation }) => incarnation).join('-'),
      over: AbortSignal.any([this.#jobFailed.signal, this.#over.signal]),
    };
    return MonitoredSession.open(around, withoutUndefined({ saver, path, init, isChief, saveSteps, recoveryMs }));
  }

  /** Serves until every task of the cluster has joined or closed. */
  async join(): Promise<void> {
    await this.#done();
    const { cluster, store } = this.#options;
    await this.#unlessEnded((signal) => store.wait(tasksOf(cluster).map(doneKey), { timeoutMs: foreverMs, signal }));
  }

  /** Waits until all tasks of this job are here; every name once. @throws ShoalError `peer-lost` when one has joined or closed instead. */
  async barrier(name: string): Promise<void> {
    const { store, cluster } = this.#options;
    const key = `graph/barrier/${this.job}/${name}`;
    if ((await store.add(key, 1)) === cluster[this.job]) await store.set(`${key}/all`, Buffer.from('1'));
    const all = `${key}/all`;
    const others = tasksOf({ [this.job]: cluster[this.job] }).filter((task) => task !== this.name);
    await this.#unlessEnded((signal) =>
      Promise.race([
        store.wait([all], { timeoutMs: foreverMs, signal }),
        ...others.map((task) => this.#unlessDone(task, { name, all, signal })),
      ]),
    );
  }

  /** Resolves when the task is done and all have been at the barrier. */
  async #unlessDone(task: string, { name, all, signal }: { name: string; all: string; signal: AbortSignal }): Promise<void> {
    const { store } = this.#options;
    await store.wait([doneKey(task)], { timeoutMs: foreverMs, signal });
    if (await store.check([all])) return;
    throw new ShoalError('peer-lost', `${task} has joined or closed before it came to barrier '${name}'; see that task's own output`);
  }

  /** Ends the sessions and what is served for others. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#over.abort();
    for (const session of this.#sessions) session.close();
    await this.#done().catch(() => undefined);
    this.#service.close(new ShoalError('closed', `${this.name} is closed`));
    await this.#carrier.close();
    await this.#tensors.close();
    if (this.#options.closeStore === true) await this.#options.store.close();
    this.#trace.write();
  }

  /** The same as `close`, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** The job has failed: steps in flight may wait for what a process that has ended would have sent. */
  #fail(cause: ShoalError): void {
    const { cluster } = this.#options;
    const lost = cause.peer === undefined ? undefined : tasksOf(cluster)[cause.peer];
    const failure = lost === undefined ? cause : failureOf(`${lost} is lost`, cause);
    this.#jobFailed.abort(failure);
    this.#service.close(failure);
  }

  async #done(): Promise<void> {
    const { store, rank } = this.#options;
    await store.set(doneKey(this.name), Buffer.from('1'));
    // Its process may end now.
    if (rank !== undefined) await noteJoined(store, rank);
  }

  /** @throws ShoalError `peer-lost` when a process of the job ends before its task is done, as the launcher tells. */
  async #unlessEnded<T>(wait: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { store, rank } = this.#options;
    const over = new AbortController();
    setMaxListeners(0, over.signal);
    const ended = rank === undefined ? [] : [rankEnded(store, rank, { timeoutMs: foreverMs, signal: over.signal })];
    try {
      return await Promise.race([wait(over.signal), ...ended]);
    } finally {
      over.abort();
    }
  }

  async #devices(): Promise<Device[]> {
    const { cluster } = this.#options;
    const tasks = tasksOf(cluster);
    const records = await this.#records(tasks);
    const devices = tasks.map((task, k) => ({ name: deviceOf(task), incarnation: BigInt(records[k].incarnation) }));
    return [...devices.filter(({ name }) => name === this.device), ...devices.filter(({ name }) => name !== this.device)];
  }

  async #records(tasks: readonly string[]): Promise<TaskRecord[]> {
    const { store } = this.#options;
    const texts = await this.#unlessEnded((signal) => store.multiGet(tasks.map(recordKey), { timeoutMs: joinMs, signal }));
    return texts.map((text, k) => readRecord(tasks[k], text));
  }

  #linkTo(task: string): Promise<RpcLink> {
    const found = this.#links.get(task);
    if (found !== undefined) return found;
    const link = this.#recordOf(task).then(({ address }) => this.#carrier.connect(address, task));
    this.#links.set(task, link);
    // A task that comes back is another process at another address.
    const forget = (): void => {
      if (this.#links.get(task) === link) this.#links.delete(task);
    };
    link.then(({ lost }) => lost.then(forget), forget);
    return link;
  }

  async #recordOf(task: string): Promise<TaskRecord> {
    if (this.#closed) throw new ShoalError('closed', `${this.name} is closed`);
    if (!tasksOf(this.#options.cluster).includes(task)) throw new ShoalError('usage', `${task} is not in the cluster`);
    const [record] = await this.#records([task]);
    return record;
  }
}

interface TaskRecord {
  /** The address of the task for calls. */
  readonly address: string;
  readonly tensors: TensorAddress;
  readonly incarnation: string;
}

function readRecord(task: string, text: Uint8Array): TaskRecord {
  try {
    const record = JSON.parse(Buffer.from(text).toString()) as TaskRecord;
    if (typeof record.address === 'string' && typeof record.tensors === 'object' && /^\d{1,19}$/.test(record.incarnation)) return record;
  } catch {
    // The error below says so.
  }
  throw new ShoalError('protocol', `${task} published a malformed record; do all tasks run the same version?`);
}

function recordKey(task: string): string {
  return `graph/task${task}`;
}

function doneKey(task: string): string {
  return `graph/done${task}`;
}

function deviceOf(task: string): string {
  return `${task}/device:CPU:0`;
}

function tasksOf(cluster: ClusterSpec): string[] {
  return Object.entries(cluster).flatMap(([job, count]) => Array.from({ length: count }, (_, task) => taskName(job, task)));
}

function checkCluster({ cluster, job, task }: GraphServerOptions): void {
  for (const [name, count] of Object.entries(cluster)) {
    if (!/^[a-z][a-z0-9_]*$/i.test(name) || !Number.isSafeInteger(count) || count < 1)
      throw new ShoalError('usage', `a cluster has jobs and how many tasks each has, not '${name}': ${count}`);
  }
  const count = Object.hasOwn(cluster, job) ? cluster[job] : 0;
  if (!Number.isSafeInteger(task) || task < 0 || task >= count)
    throw new ShoalError('usage', `${taskName(job, task)} is not in the cluster: ${JSON.stringify(cluster)}`);
}
