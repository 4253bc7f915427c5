/** A process that sends tensors to others and receives theirs, by name and step, without a process group: it listens, is told where
 *  others are, and runs the protocol on the thread that made it. */
import { setServedTimer } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { isCount } from '../base/bytes.ts';
import { anyList, anyNumber, anyText, anything, checkFields, describeValue, optionTable } from '../base/schema.ts';
import type { Fabric, FabricOptions } from '../fabric/fabric.ts';
import type { WorkerIdentity } from './carriers/tensor-connection.ts';
import { checkStepId, WorkerCore } from './carriers/worker-core.ts';
import { WorkerNetwork } from './carriers/worker-network.ts';
import { WorkerDevices } from './device/worker-devices.ts';
import { systemEnvironment, type RendezvousEnvironment } from './environment.ts';
import type { TensorCounters } from './protocol/counters.ts';
import { defaultSlabBytes, PooledMemory } from './protocol/pooled-memory.ts';
import { formatWorkerAddress, parseWorkerAddress } from './worker-address.ts';
import { tensorKey, WorkerStep } from './worker-step.ts';

/** The identity of a worker, and the resources that it may use. */
export interface RendezvousWorkerOptions {
  /** Its number among the workers of the job. */
  readonly rank: number;
  /** The job's secret, known to all its workers and to nobody else. */
  readonly secret: string | Uint8Array;
  /** Name of the job. Default `rendezvous`. */
  readonly world?: string;
  /** The device that its tensors are sent from. Default `/job:worker/task:<rank>/device:CPU:0`. */
  readonly device?: string;
  /** Carriers of tensors, in order of preference: `shm`, `tcp`, `libfabric`. Default: shm where it is possible, and tcp. */
  readonly carriers?: readonly string[];
  /** Addresses to listen on; `0.0.0.0` offers every interface. Default: 127.0.0.1. */
  readonly listenHosts?: readonly string[];
  /** Time limit of a receive, of a send until it is asked for, and of a connect. Default 5 minutes. */
  readonly timeoutMs?: number;
  /** Time limit for making a broken connection again; then its worker is lost. Default 2 seconds. */
  readonly reconnectMs?: number;
  /** Bound on the bytes of received tensors, those that are kept for the next ones included; at least 4 MiB. Default 4 GiB. */
  readonly memoryBytesMax?: number;
  /** Steps at a time. Default 1,024. */
  readonly stepsMax?: number;
  /** Requests that wait for their step to begin. Default 65,536. */
  readonly parkedMax?: number;
}

const optionKeys = optionTable<RendezvousWorkerOptions>({
  rank: anyNumber,
  secret: anything,
  world: anyText,
  device: anyText,
  carriers: anyList,
  listenHosts: anyList,
  timeoutMs: anyNumber,
  reconnectMs: anyNumber,
  memoryBytesMax: anyNumber,
  stepsMax: anyNumber,
  parkedMax: anyNumber,
});

/** The step from which a tensor is asked for, and how many steps ahead. */
export interface StandingOptions {
  /** The first step to ask for; later ones follow by ones. */
  readonly firstStep: number;
  /** Steps that are asked for ahead. Default 8. */
  readonly depth?: number;
}

const standingKeys = optionTable<StandingOptions>({ firstStep: anyNumber, depth: anyNumber });
const gibibyte = 2 ** 30;

type Settled = Required<Omit<RendezvousWorkerOptions, 'stepsMax' | 'parkedMax' | 'carriers' | 'secret'>> &
  Pick<RendezvousWorkerOptions, 'stepsMax' | 'parkedMax' | 'carriers'> & { readonly secret: Uint8Array };

/** A process that sends tensors to others by name and step, into their memory, as TensorFlow's rendezvous does; it needs no process
 *  group.
 *
 *      const worker = await RendezvousWorker.start({ rank: 0, secret });
 *      const other = await worker.connect(address);           // what the other's `address` says
 *      const step = worker.beginStep(1);
 *      await step.send(other, 'weights', new Float32Array(1024));
 *      using gradient = await step.recv(other, 'gradient');
 *      step.end(); */
export class RendezvousWorker {
  readonly #options: Settled;
  readonly #environment: RendezvousEnvironment;
  readonly #core: WorkerCore;
  readonly #fabrics: Fabric[] = [];
  readonly #network: WorkerNetwork;
  /** Workers that have connected, by rank. */
  readonly #known = new Map<number, WorkerIdentity>();
  /** Callers that wait for a worker. */
  readonly #awaited = new Set<() => void>();
  readonly #devices = new WorkerDevices();
  #address = '';
  #closed: Promise<void> | undefined;

  private constructor(options: Settled, environment: RendezvousEnvironment) {
    this.#options = options;
    this.#environment = environment;
    const { rank, device, world, timeoutMs, reconnectMs, memoryBytesMax, stepsMax, parkedMax } = options;
    const incarnation = Buffer.from(environment.random.bytes(8)).readBigUInt64LE();
    const core = new WorkerCore({ rank, device, incarnation }, { ...(stepsMax && { stepsMax }), ...(parkedMax && { parkedMax }) });
    const budget = { bytesMax: memoryBytesMax, bytes: 0 };
    this.#core = core;
    this.#network = new WorkerNetwork({
      clock: environment.clock,
      random: environment.random,
      connectMs: timeoutMs,
      reconnectMs,
      world,
      self: core.self,
      fabrics: this.#fabrics,
      sent: core,
      protocol: (fabric) => ({
        timeoutMs,
        announcesApart: fabric.capabilities.loadStore,
        memory: new PooledMemory({
          create: (bytes) => environment.regions.create(bytes),
          register: (region) => fabric.register(region),
          budget,
        }),
      }),
      onGreeted: (worker, remote) => {
        core.attach(worker, remote);
        this.#known.set(worker.rank, worker);
        for (const look of [...this.#awaited]) look();
      },
      onLost: (worker, cause) => core.detach(worker, cause),
    });
  }

  /** Listens. @throws ShoalError `usage` for options, `unsupported` for a carrier that is not possible here. */
  static async start(
    options: RendezvousWorkerOptions,
    environment: RendezvousEnvironment = systemEnvironment(),
  ): Promise<RendezvousWorker> {
    const worker = new RendezvousWorker(settled(options), environment);
    try {
      await worker.#listen();
      return worker;
    } catch (thrown) {
      await worker.#network.close();
      throw ShoalError.from(thrown, 'system', { operation: `rendezvous of ${worker.#options.world}` });
    }
  }

  async #listen(): Promise<void> {
    const { rank, carriers } = this.#options;
    for (const name of carriersOf(carriers, this.#environment)) {
      const provider = this.#environment.providers.find((each) => each.name === name)!;
      this.#fabrics.push(provider.create(fabricOptions(this.#options, this.#environment)));
    }
    this.#address = formatWorkerAddress({ rank, fabrics: await this.#network.listen() });
  }

  /** The address to which other workers connect. */
  get address(): string {
    return this.#address;
  }

  /** This worker, as its peers know it. */
  get self(): WorkerIdentity {
    return this.#core.self;
  }

  /** Counters of its open connections, summed. */
  get counters(): TensorCounters {
    const sum = this.#network.counters;
    sum.bytesCopied += this.#devices.bytesCopied;
    return sum;
  }

  /** Connects to another worker, and again whenever the connection breaks.
   *  @param address the other's `address`. @throws ShoalError with why each carrier failed. */
  async connect(address: string): Promise<WorkerIdentity> {
    const { rank, fabrics } = parseWorkerAddress(address);
    return this.#network.connect(rank, fabrics);
  }

  /** The worker of this rank, when it has connected. @throws ShoalError `timeout`; `closed` when this worker is closed first. */
  peer(rank: number): Promise<WorkerIdentity> {
    if (!isCount(rank)) throw new ShoalError('usage', `peer: a rank is a whole number from 0, not ${describeValue(rank)}`);
    const { timeoutMs } = this.#options;
    return new Promise((resolve, reject) => {
      const look = (): void => {
        const peer = this.#known.get(rank);
        if (peer === undefined && this.#closed === undefined) return;
        this.#awaited.delete(look);
        timer.cancel();
        if (peer !== undefined) resolve(peer);
        else reject(new ShoalError('closed', `worker ${this.self.rank} was closed before worker ${rank} connected to it`, { peer: rank }));
      };
      const timer = setServedTimer(this.#environment.clock, timeoutMs, () => {
        this.#awaited.delete(look);
        const message = `worker ${rank} has not connected to worker ${this.self.rank} within ${timeoutMs} ms; is it running, and has it this worker's address?`;
        reject(new ShoalError('timeout', message, { timeoutMs }));
      });
      this.#awaited.add(look);
      look();
    });
  }

  /** Tensors can be sent and received. Other workers may have asked for some before.
   *  @throws ShoalError `usage` for a step that has begun or ended already. */
  beginStep(stepId: number): WorkerStep {
    const { timeoutMs } = this.#options;
    return new WorkerStep(this.#core, this.#devices, stepId, { clock: this.#environment.clock, timeoutMs });
  }

  /** Asks for a name in every step from `firstStep` on, some steps ahead: it is on its way as soon as it is sent. Steps are numbered in a
   *  row, and both workers begin and end each. @returns what stops it. */
  stand(
    from: WorkerIdentity,
    name: string,
    options: StandingOptions,
  ): {
    /** Asks for no further step. Receives that wait for it fail with `aborted`. */
    stop(): void;
  } {
    checkFields('stand', options, standingKeys);
    checkStepId(options.firstStep);
    const key = tensorKey(this.#core, name, from, this.self);
    const remote = this.#network.find(from.device);
    if (remote === undefined) {
      const message = `${from.device} has no connection to this worker, and a standing request needs one: connect to its worker first`;
      throw new ShoalError('unsupported', message);
    }
    return remote.stand(key, options.firstStep, options.depth ?? 8);
  }

  /** Ends its steps and connections. Tensors that were received stay readable. Idempotent. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    for (const look of [...this.#awaited]) look();
    return this.#closed;
  }

  async #close(): Promise<void> {
    await this.#core.close();
    await this.#network.close();
    this.#devices.close();
  }
}

/** @throws ShoalError `usage`. */
function settled(options: RendezvousWorkerOptions): Settled {
  checkFields('RendezvousWorker.start', options, optionKeys);
  const { rank } = options;
  if (!Number.isInteger(rank) || rank < 0) throw new ShoalError('usage', `a rendezvous worker needs a rank from 0, not ${rank}`);
  const least = { memoryBytesMax: defaultSlabBytes, reconnectMs: 1, stepsMax: 1, parkedMax: 1 } as const;
  for (const name of Object.keys(least) as (keyof typeof least)[]) {
    const value = options[name];
    if (value === undefined || (Number.isSafeInteger(value) && value >= least[name])) continue;
    throw new ShoalError('usage', `RendezvousWorker.start: ${name} must be a whole number from ${least[name]}, not ${value}`);
  }
  const secret = typeof options.secret === 'string' ? Buffer.from(options.secret) : options.secret;
  if (!(secret instanceof Uint8Array) || secret.length === 0)
    throw new ShoalError('usage', 'a rendezvous worker needs a secret: a text or bytes that all workers know');
  return {
    world: 'rendezvous',
    device: `/job:worker/task:${rank}/device:CPU:0`,
    listenHosts: ['127.0.0.1'],
    timeoutMs: 300_000,
    reconnectMs: 2000,
    memoryBytesMax: 4 * gibibyte,
    ...Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)),
    rank,
    secret,
  };
}

/** @throws ShoalError `unsupported` for one that is asked for and not possible. */
function carriersOf(wanted: readonly string[] | undefined, { providers, settings }: RendezvousEnvironment): readonly string[] {
  if (wanted === undefined)
    return ['shm', 'tcp'].filter((name) => providers.some((each) => each.name === name && each.unavailable() === undefined));
  for (const name of wanted) {
    const provider = providers.find((each) => each.name === name);
    if (provider === undefined)
      throw new ShoalError('usage', `there is no carrier '${name}'; there are ${providers.map((each) => each.name).join(', ')}`);
    const reason = provider.unavailable(settings);
    if (reason !== undefined) throw new ShoalError('unsupported', `carrier ${name} is not possible here: ${reason}`);
  }
  return wanted;
}

function fabricOptions(
  { world, rank, secret, listenHosts }: Settled,
  { clock, random, regions, polling, settings }: RendezvousEnvironment,
): FabricOptions {
  return {
    identity: { world, rank },
    secret,
    clock,
    random,
    listenHosts,
    ...(settings && { settings }),
    ...(polling && { polling }),
    ...(regions.kind === 'shared' && { regions }),
  };
}
