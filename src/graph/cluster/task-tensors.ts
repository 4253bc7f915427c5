/** The tensors that one task exchanges with others: a worker of rendezvous, whose steps are those of the graph. A connection to another
 *  task is made by the first receive from it, and serves both ways. What a step sends stays until the step ends: it costs nothing, as a
 *  step keeps its values that long, and can be given again when a connection breaks. Of loops only what was sent last stays. */
import type { Clock } from '../../base/clock.ts';
import type { Random } from '../../base/random.ts';
import type { Fabric, FabricAddress, PeerIdentity } from '../../fabric/fabric.ts';
import { WorkerCore } from '../../rendezvous/carriers/worker-core.ts';
import { WorkerNetwork, type WorkerNetworkOptions } from '../../rendezvous/carriers/worker-network.ts';
import { failureOf, type ShoalError } from '../../base/errors.ts';
import { isOnDevice } from '../../memory/device/device-tensor.ts';
import { ArenaMemory } from '../../rendezvous/protocol/arena-memory.ts';
import { tensorCounters, type TensorCounters } from '../../rendezvous/protocol/counters.ts';
import type { FusedWaiter, PieceSink, SlotOutcome, TensorCarrier } from '../../rendezvous/protocol/tensor-carrier.ts';
import type { Cancel, Waiter } from '../../rendezvous/table/rendezvous.ts';
import { checkTensorValue, type TensorDType, type TensorValue } from '../../rendezvous/value/tensor-value.ts';
import { Arbiter } from '../../scheduler/arbiter.ts';
import { taskOf } from '../structure/device-name.ts';
import type { Value } from '../structure/value.ts';
import { DeviceValues } from '../execute/device-values.ts';
import { Reference } from '../execute/variable-store.ts';
import { connectMs } from '../rpc/fabric-carrier.ts';
import { elementsOf } from '../structure/elements.ts';
import { ReceiveWindow } from './receive-window.ts';
import type { RequestWatch, TaskTrace } from './task-trace.ts';

export interface TaskTensorsOptions extends PeerIdentity {
  /** `/job:ps/task:1`. */
  readonly task: string;
  /** New with every start of the process. */
  readonly incarnation: bigint;
  /** Carries the tensors; closed with them. */
  readonly fabric: Fabric;
  readonly clock: Clock;
  readonly random: Random;
  /** The arbiter of all that this process sends. Default: one for tensors alone. */
  readonly arbiter?: Arbiter | undefined;
  readonly trace: TaskTrace;
  /** True: fusion at run time. */
  readonly recvSome: boolean;
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

export interface ReceiveStats {
  /** Number of requests that were sent. */
  requests: number;
  /** Number of tensors that came. */
  tensors: number;
  bytes: number;
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
  /** The memory of devices that tensors are sent from and received in. */
  readonly devices = new DeviceValues();
  /** The cost of tensors: requests, writes, bytes copied. */
  readonly counters: TensorCounters = tensorCounters();
  readonly stats: ReceiveStats = { requests: 0, tensors: 0, bytes: 0 };
  readonly #options: TaskTensorsOptions;
  readonly #network: WorkerNetwork;
  readonly #tasks = new Map<string, string>();

  constructor(options: TaskTensorsOptions) {
    this.#options = options;
    const { task, rank, incarnation, fabric, world, clock, random, trace, arbiter = new Arbiter() } = options;
    this.core = new WorkerCore<Value, Value>(
      { rank, device: task, incarnation },
      {
        values: { check: (value) => value, received: (value) => value },
        workerOf: (device) => this.#taskOf(device),
        find: (worker) => new TaskReceives(worker, this.carrierTo(worker), this, options),
        keeps: true,
        prepare: (value) => (isOnDevice(value) ? this.devices.staged(value) : tensorOf(value)),
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
      connectMs,
      reconnectMs: options.reconnectMs ?? 2000,
      sent,
      protocol: (_, connection) => ({
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
      onLost: (worker, cause) => this.core.detach(worker, cause),
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
    this.devices.close();
  }

  /** The way to a task. */
  protected carrierTo(task: string): TensorCarrier {
    const { addressOf, fabric } = this.#options;
    return this.#network.reach(task, async (...given) => {
      const { rank, tensors } = await addressOf(task);
      return this.#network.dialOf(fabric, tensors, rank)(...given);
    });
  }

  #taskOf(device: string): string {
    let task = this.#tasks.get(device);
    if (task === undefined) this.#tasks.set(device, (task = device.startsWith('/') ? taskOf(device) : device));
    return task;
  }
}

/** A value as it is written from its memory into the receiver's. The elements are not copied. @throws ShoalError `unsupported` when they
 *  cannot be read at once, `usage` when they are not what the value says. */
function tensorOf(given: Value): TensorValue {
  const value = given instanceof Reference ? given.read() : given;
  const { dtype, shape } = value;
  const data = dtype === 'string' ? (value.data as readonly string[]) : elementsOf(value);
  return checkTensorValue({ dtype: dtype as TensorDType, shape, data });
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

/** Keys of one request at most. */
const keysMax = 100_000;

/** A key that waits for its request, or for its tensor. */
interface Item {
  readonly stepId: number;
  readonly key: string;
  readonly startMs: number;
  readonly settle: (outcome: SlotOutcome) => void;
  cancel: Cancel;
}

/** Receives from one other task, for all steps of this one: counts and records them. *Direct*: a request per receive, answered when all its
 *  keys are there (RecvTensor, FuseRecvTensor). *recvSome*: receives gather for a moment and go as one request; the sender gives what is
 *  ready, each key by itself. */
class TaskReceives implements TensorCarrier {
  readonly #task: string;
  readonly #carrier: TensorCarrier;
  readonly #tensors: TaskTensors;
  readonly #options: TaskTensorsOptions;
  readonly #window: ReceiveWindow<Item>;

  constructor(task: string, carrier: TensorCarrier, tensors: TaskTensors, options: TaskTensorsOptions) {
    this.#task = task;
    this.#carrier = carrier;
    this.#tensors = tensors;
    this.#options = options;
    this.#window = new ReceiveWindow<Item>({ clock: options.clock, itemsMax: keysMax, send: (items) => this.#request(items) });
  }

  recv(stepId: number, key: string, waiter: Waiter<TensorValue>, sink?: PieceSink): Cancel {
    const { trace, recvSome } = this.#options;
    const fail = (cause: ShoalError): void => waiter.fail(this.#named(cause));
    const startMs = trace.now();
    if (recvSome) return this.#gather(stepId, key, (outcome) => ('cause' in outcome ? fail(outcome.cause) : waiter.receive(outcome.value)));
    this.#count(stepId);
    const receive = (value: TensorValue | undefined): void => {
      this.#came(stepId, key, startMs, { value });
      trace.request('RecvTensor', this.#task, startMs, 1);
      waiter.receive(value);
    };
    return this.#carrier.recv(stepId, key, { fail, receive }, sink);
  }

  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    const { trace, recvSome } = this.#options;
    const startMs = trace.now();
    if (recvSome) {
      const outcomes: SlotOutcome[] = [];
      let missing = keys.length;
      const cancels = keys.map((key, slot) =>
        this.#gather(stepId, key, (outcome) => {
          outcomes[slot] = outcome;
          if (--missing === 0) waiter.receive(outcomes);
        }),
      );
      return () => cancels.forEach((cancel) => cancel());
    }
    this.#count(stepId);
    return this.#carrier.recvFused(stepId, keys, {
      fail: (cause) => waiter.fail(this.#named(cause)),
      receive: (outcomes) => {
        outcomes.forEach((outcome, slot) => this.#came(stepId, keys[slot], startMs, outcome));
        trace.request('FuseRecvTensor', this.#task, startMs, keys.length);
        waiter.receive(outcomes);
      },
    });
  }

  endStep(stepId: number): void {
    this.#carrier.endStep(stepId);
  }

  close(): Promise<void> {
    return this.#carrier.close();
  }

  #gather(stepId: number, key: string, settle: Item['settle']): Cancel {
    const item: Item = { stepId, key, settle, startMs: this.#options.trace.now(), cancel: () => void this.#window.remove(item) };
    this.#window.add(item);
    return () => item.cancel();
  }

  #request(items: readonly Item[]): void {
    const { clock, trace } = this.#options;
    this.#count(items[0].stepId);
    const startMs = clock.now();
    let missing = items.length;
    let isFirst = true;
    for (const item of items) {
      const { stepId, key, startMs: askedMs, settle } = item;
      const came = (outcome: SlotOutcome): void => {
        if (isFirst) this.#window.observeRoundTrip(clock.now() - startMs);
        isFirst = false;
        this.#came(stepId, key, askedMs, outcome);
        if (--missing === 0) trace.request('RecvSome', this.#task, startMs, items.length);
        settle(outcome);
      };
      item.cancel = this.#carrier.recv(stepId, key, { receive: (value) => came({ value }), fail: (cause) => came({ cause }) });
    }
  }

  #count(stepId: number): void {
    this.#tensors.stats.requests++;
    this.#tensors.core.countRequest(stepId);
  }

  #came(stepId: number, key: string, startMs: number, outcome: SlotOutcome): void {
    const { stats } = this.#tensors;
    const data = 'value' in outcome ? outcome.value?.data : undefined;
    const bytes = ArrayBuffer.isView(data) ? data.byteLength : 0;
    stats.tensors++;
    stats.bytes += bytes;
    this.#options.trace.received(key, stepId, startMs, bytes);
  }

  #named(cause: ShoalError): ShoalError {
    return cause.code === 'peer-lost' ? failureOf(`${this.#task} is lost`, cause) : cause;
  }
}
