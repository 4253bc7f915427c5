/** The connections of one worker: it listens on its fabrics, dials others, and gives each connection to the worker at its other end. */
import { setServedTimer } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Connection, Fabric, FabricAddress } from '../../fabric/fabric.ts';
import { tensorCounters, type TensorCounters } from '../protocol/counters.ts';
import { RemoteWorker, type Dial, type RemoteWorkerOptions } from './remote-worker.ts';
import { TensorConnection, type TensorConnectionOptions, type WorkerIdentity } from './tensor-connection.ts';

export interface WorkerNetworkOptions extends Pick<RemoteWorkerOptions, 'clock' | 'random' | 'connectMs' | 'reconnectMs' | 'sent'> {
  readonly self: WorkerIdentity;
  /** Name of the job, in which the fabrics' identities are. */
  readonly world: string;
  readonly fabrics: readonly Fabric[];
  /** Parameters of the protocol on a connection. */
  protocol(
    fabric: Fabric,
    connection: Connection,
  ): Pick<TensorConnectionOptions, 'memory' | 'timeoutMs' | 'announcesApart'> & Partial<TensorConnectionOptions>;
  /** A worker has greeted for the first time. @throws ShoalError that ends the connection. */
  onGreeted?(worker: WorkerIdentity, remote: RemoteWorker): void;
  onLost(worker: string, cause: ShoalError): void;
}

export class WorkerNetwork {
  readonly #options: WorkerNetworkOptions;
  readonly #connections = new Set<TensorConnection>();
  /** Workers that are not lost, by name. */
  readonly #remotes = new Map<string, RemoteWorker>();

  constructor(options: WorkerNetworkOptions) {
    this.#options = options;
  }

  /** The sums of the open connections' counters. */
  get counters(): TensorCounters {
    const sum = tensorCounters();
    for (const { counters } of this.#connections) for (const key of Object.keys(sum) as (keyof TensorCounters)[]) sum[key] += counters[key];
    return sum;
  }

  listen(): Promise<FabricAddress[]> {
    return Promise.all(
      this.#options.fabrics.map((fabric) => fabric.listen((connection) => void this.#open(connection, fabric).catch(() => undefined))),
    );
  }

  /** Connects to the worker of this rank that listens there. @throws ShoalError with why each carrier failed. */
  async connect(rank: number, addresses: readonly FabricAddress[]): Promise<WorkerIdentity> {
    const { fabrics, connectMs, self } = this.#options;
    const causes: ShoalError[] = [];
    for (const fabric of fabrics) {
      const address = addresses.find(({ provider }) => provider === fabric.name);
      if (address === undefined) continue;
      try {
        return await this.dialOf(fabric, address, rank)(connectMs);
      } catch (thrown) {
        causes.push(ShoalError.from(thrown));
        if (causes.at(-1)!.code !== 'unsupported') break;
      }
    }
    if (causes.length > 0) throw causes.at(-1)!;
    const message = `worker ${rank} has no carrier in common with worker ${self.rank}: it offers ${addresses.map(({ provider }) => provider).join(', ')}`;
    throw new ShoalError('unsupported', message);
  }

  dialOf(fabric: Fabric, address: FabricAddress, rank: number): Dial {
    const dial: Dial = async (timeoutMs, signal) => {
      const peer = { world: this.#options.world, rank };
      const connection = await fabric.connect(address, { peer, timeoutMs, ...(signal && { signal }) });
      return this.#open(connection, fabric, dial);
    };
    return dial;
  }

  /** The worker of this name, which is dialled when something is asked of it, unless it has connected. */
  reach(worker: string, dial: Dial): RemoteWorker {
    return this.#remotes.get(worker) ?? this.#makeRemote(worker, dial);
  }

  find(worker: string): RemoteWorker | undefined {
    return this.#remotes.get(worker);
  }

  /** Ends the connections, and the fabrics with them. */
  async close(): Promise<void> {
    await Promise.all([...this.#remotes.values()].map((remote) => remote.close()));
    await Promise.all([...this.#connections].map((connection) => connection.close()));
    await Promise.all(this.#options.fabrics.map((fabric) => fabric.close()));
  }

  /** The protocol on a connection. @returns the worker at the other end, when it has said its name. */
  #open(connection: Connection, fabric: Fabric, dial?: Dial): Promise<WorkerIdentity> {
    const { clock, self, connectMs } = this.#options;
    return new Promise((resolve, reject) => {
      let remote: RemoteWorker | undefined;
      const made: TensorConnection = new TensorConnection({
        ...this.#options.protocol(fabric, connection),
        connection,
        self,
        clock,
        take: (stepId, key, waiter) => remote!.take(stepId, key, waiter, made),
        giveBack: (stepId, key, value) => remote!.giveBack(stepId, key, value),
        onHello: (identity, process) => {
          silence.cancel();
          remote = this.#remoteOf(identity);
          made.worker = remote;
          remote.process = process;
          remote.attach(made, dial);
          resolve(identity);
        },
        onClose: (error) => {
          silence.cancel();
          this.#connections.delete(made);
          reject(error ?? new ShoalError('closed', `the connection to worker ${connection.peer.rank} was closed`));
          return remote?.detach(made, error);
        },
        onSettled: () => remote?.settled(),
      });
      this.#connections.add(made);
      const silence = setServedTimer(clock, connectMs, () => {
        reject(
          new ShoalError('timeout', `worker ${connection.peer.rank} has connected and said nothing within ${connectMs} ms`, {
            timeoutMs: connectMs,
          }),
        );
        void made.close();
      });
    });
  }

  /** The worker of this identity; another process of a worker takes the place of the one before. */
  #remoteOf(identity: WorkerIdentity): RemoteWorker {
    const known = this.#remotes.get(identity.device);
    if (known?.identity?.incarnation === identity.incarnation) return known;
    if (known?.identity !== undefined) known.lose(new ShoalError('peer-lost', `${identity.device} has restarted`, { peer: identity.rank }));
    const remote = this.#remotes.get(identity.device) ?? this.#makeRemote(identity.device);
    try {
      this.#options.onGreeted?.(identity, remote);
    } catch (thrown) {
      this.#remotes.delete(identity.device);
      throw thrown;
    }
    remote.identity = identity;
    return remote;
  }

  #makeRemote(worker: string, dial?: Dial): RemoteWorker {
    const onEnd = (cause: ShoalError): void => {
      if (this.#remotes.get(worker) === remote) this.#remotes.delete(worker);
      this.#options.onLost(worker, cause);
    };
    const remote: RemoteWorker = new RemoteWorker({ ...this.#options, name: worker, onLost: onEnd, ...(dial && { dial }) });
    this.#remotes.set(worker, remote);
    return remote;
  }
}
