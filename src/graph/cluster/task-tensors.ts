/** The tensors that one task exchanges with others: a worker of rendezvous, whose steps are those of the graph. A connection to another task
 *  is made by the first receive from it, and serves both ways. What a step sends stays until the step ends: it costs nothing, as a step
 *  keeps its values that long, and can be given again when a connection breaks. */
import type { Clock } from '../../base/clock.ts';
import type { Random } from '../../base/random.ts';
import type { Fabric, FabricAddress } from '../../fabric/fabric.ts';
import { WorkerCore } from '../../rendezvous/carriers/worker-core.ts';
import { WorkerNetwork, type WorkerNetworkOptions } from '../../rendezvous/carriers/worker-network.ts';
import { ArenaMemory } from '../../rendezvous/protocol/arena-memory.ts';
import { tensorCounters, type TensorCounters } from '../../rendezvous/protocol/counters.ts';
import type { TensorCarrier } from '../../rendezvous/protocol/tensor-carrier.ts';
import { Arbiter } from '../../scheduler/arbiter.ts';
import { taskOf } from '../structure/device-name.ts';
import type { Value } from '../structure/value.ts';
import { tensorOf } from '../wire/tensors.ts';
import { TaskReceives, type ReceiveStats } from './task-receives.ts';
import type { RequestWatch, TaskTrace } from './task-trace.ts';

export interface TaskTensorsOptions {
  /** `/job:ps/task:1`. */
  readonly task: string;
  readonly rank: number;
  /** New with every start of the process. */
  readonly incarnation: bigint;
  /** Carries the tensors; closed with them. */
  readonly fabric: Fabric;
  /** World of the fabric's identities. */
  readonly world: string;
  readonly clock: Clock;
  readonly random: Random;
  /** The arbiter of all that this process sends. Default: one for tensors alone. */
  readonly arbiter?: Arbiter | undefined;
  readonly trace: TaskTrace;
  /** True: fusion at run time. */
  readonly recvSome: boolean;
  readonly connectMs?: number | undefined;
  /** Time limit for making a broken connection again. Default 2000. */
  readonly reconnectMs?: number | undefined;
  /** @returns what `listen` of that task gave. */
  readonly addressOf: (task: string) => Promise<TensorAddress>;
}

/** The way to a task's tensors, as text for the job's store. */
export interface TensorAddress {
  readonly rank: number;
  readonly tensors: FabricAddress;
}

/** Steps have time limits, which end their receives. */
const foreverMs = 2 ** 31 - 1;
/** Tensors of one connection that are asked for. All of them may be written at once, and a connection has so many operations pending. */
const requestsMax = 100_000;
/** A place of its own for each, and those that are not forgotten yet. */
const regionsMax = 2 * requestsMax;
/** Places for tensors that are asked for and have not come. */
const tensorBytesMax = 2 ** 32;

export class TaskTensors {
  readonly core: WorkerCore<Value, Value>;
  /** The cost of tensors: requests, writes, bytes copied. */
  readonly counters: TensorCounters = tensorCounters();
  readonly stats: ReceiveStats = { requests: 0, tensors: 0, bytes: 0 };
  readonly #options: TaskTensorsOptions;
  readonly #network: WorkerNetwork;
  readonly #receives = new Map<string, TaskReceives>();
  readonly #tasks = new Map<string, string>();

  constructor(options: TaskTensorsOptions) {
    this.#options = options;
    const { task, rank, incarnation, fabric, world, clock, random, trace, arbiter = new Arbiter() } = options;
    this.core = new WorkerCore<Value, Value>(
      { rank, device: task, incarnation },
      {
        values: { check: (value) => value, received: (value) => value },
        workerOf: (device) => this.#taskOf(device),
        find: (worker) => this.#receivesFrom(worker),
        keeps: true,
        prepare: tensorOf,
        onDropped: () => undefined,
      },
    );
    const budget = { bytesMax: tensorBytesMax, bytes: 0 };
    const { sent, onAnswered } = trace.enabled ? watched(this.core, trace) : { sent: this.core.sent, onAnswered: undefined };
    this.#network = new WorkerNetwork({
      self: this.core.self,
      fabrics: [fabric],
      world,
      clock,
      random,
      connectMs: options.connectMs ?? 10_000,
      reconnectMs: options.reconnectMs ?? 2000,
      sent,
      channel: (_, connection) => ({
        memory: new ArenaMemory({ register: (region) => fabric.register(region), budget }),
        counters: this.counters,
        arbiter,
        resource: fabric.capabilities.loadStore ? 'memory' : 'network',
        timeoutMs: foreverMs,
        // Kernels that run one after the other give one write together, and receives that follow each other one message.
        atEndOfTurn: (callback) => void setImmediate(callback),
        // Places are in arenas, one behind the other: small tensors that are ready together are one write, announced by one record.
        announcesApart: fabric.capabilities.loadStore || connection.gather !== undefined,
        limits: { requestsMax, regionsMax },
        ...(onAnswered && { onAnswered }),
      }),
      onLost: (worker, _, cause) => {
        const receives = this.#receives.get(worker);
        this.#receives.delete(worker);
        if (receives !== undefined) this.core.detach(receives, cause);
      },
    });
  }

  async listen(): Promise<TensorAddress> {
    const [tensors] = await this.#network.listen();
    return { rank: this.#options.rank, tensors };
  }

  /** Ends the connections; the steps end before. */
  async close(): Promise<void> {
    await this.core.close();
    await this.#network.close();
  }

  /** The way to a task. */
  protected carrierTo(task: string): TensorCarrier {
    const { addressOf, fabric } = this.#options;
    return this.#network.reach(task, async (timeoutMs, signal) => {
      const { rank, tensors } = await addressOf(task);
      return this.#network.dialOf(fabric, tensors, rank)(timeoutMs, signal);
    });
  }

  #receivesFrom(task: string): TaskReceives {
    const { clock, recvSome, trace } = this.#options;
    const receives = new TaskReceives({
      task,
      carrier: this.carrierTo(task),
      clock,
      recvSome,
      trace,
      stats: this.stats,
      onRequest: (stepId) => this.core.countRequest(stepId),
    });
    this.#receives.set(task, receives);
    return receives;
  }

  #taskOf(device: string): string {
    let task = this.#tasks.get(device);
    if (task === undefined) this.#tasks.set(device, (task = device.startsWith('/') ? taskOf(device) : device));
    return task;
  }
}

/** Records how long the requests of other tasks wait here. */
function watched(
  { sent }: WorkerCore<Value, Value>,
  trace: TaskTrace,
): Pick<WorkerNetworkOptions, 'sent'> & { onAnswered(stepId: number, key: string): void } {
  const watches = new Map<string, RequestWatch>();
  return {
    sent: {
      giveBack: (...given) => sent.giveBack(...given),
      take(stepId, key, waiter, asker) {
        const name = `${stepId} ${key}`;
        const watch = trace.watch(stepId, key);
        watches.set(name, watch);
        const cancel = sent.take(
          stepId,
          key,
          {
            receive(value) {
              watch.ready();
              waiter.receive(value);
            },
            fail(cause) {
              watch.ready();
              waiter.fail(cause);
            },
          },
          asker,
        );
        return () => {
          watches.delete(name);
          cancel();
        };
      },
    },
    onAnswered(stepId, key) {
      const name = `${stepId} ${key}`;
      watches.get(name)?.left();
      watches.delete(name);
    },
  };
}
