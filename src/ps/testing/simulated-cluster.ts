/** Clients and servers in one process, joined by a network that delivers messages one by one, in an order that a seed
 *  decides, and loses everything that is under way when a side dies. Servers have a disk that finishes writing when it is
 *  told to. Time is virtual. */
import { must } from '../../base/assert.ts';
import { VirtualClock, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import type { Kernels } from '../../memory/kernels.ts';
import { createKernels } from '../../memory/kernels/create-kernels.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { groupOf, idOf, makeAddress, roleOf, type Address } from '../../messaging/address.ts';
import { Role } from '../protocol/singa.ts';
import { Msg } from '../../messaging/msg.ts';
import type { Snapshot, SnapshotStore } from '../../checkpoint/snapshot.ts';
import type { GradientCodec } from '../compression/codec.ts';
import type { Optimizer, OptimizerSpec } from '../optimizers/optimizer.ts';
import type { SharedResource } from '../../scheduler/arbiter.ts';
import { ServerCore } from '../server/server-core.ts';
import type { ServerOptions } from '../server/state/server-options.ts';
import { ClientCore } from '../client/client-core.ts';
import type { ClientOptions } from '../client/client-options.ts';
import { serverAddress, serverGroupOf, clientAddress, workerGroupOf, type KVTopology } from '../protocol/topology.ts';
import { MappedValues, MemoryValues, type PlaceRegistry, type RegionRegistry } from './memory-values.ts';

const parameterKernels = createParameterKernels();

/** The settings by default. */
export const serverSettings = { checkpointEveryMs: 60_000, syncEvery: 1, syncMs: 500 } as const;
export const clientSettings = { timeoutMs: 60_000, replayBytes: 2 ** 30, creditBytes: 16 * 2 ** 20, sliceBytes: 4 * 2 ** 20 } as const;

/** Role of standbys in this network. */
const standbyRole = 200;

/** `value += gradient`, and `total` likewise, so that lost state shows. */
export function addingOptimizer(spec: OptimizerSpec): Optimizer {
  return {
    spec,
    states: ['total'],
    update: (value, gradient, states) => {
      const [total] = states as Float32Array[];
      for (let k = 0; k < value.length; k++) {
        (value as Float32Array)[k] += gradient[k] as number;
        total[k] += gradient[k] as number;
      }
    },
  };
}

/** Halves: the top 16 bits of each element. Lossless for small integers. */
const truncatingCodec: GradientCodec = {
  spec: { type: 'fp16' },
  code: 7,
  encodedBytes: (count) => count * 2,
  encode: (target, gradient, residual) => {
    const bits = new Uint16Array(target.buffer, target.byteOffset, gradient.length);
    for (let k = 0; k < gradient.length; k++) {
      residual[k] += gradient[k];
      const whole = new Uint32Array(Float32Array.of(residual[k]).buffer);
      bits[k] = whole[0] >>> 16;
      const [kept] = new Float32Array(Uint32Array.of(bits[k] << 16).buffer);
      residual[k] -= kept;
    }
  },
  decode: (target, source) => {
    const copy = Uint8Array.from(source);
    const bits = new Uint16Array(copy.buffer);
    for (let k = 0; k < target.length; k++) [target[k]] = new Float32Array(Uint32Array.of(bits[k] << 16).buffer);
  },
};

export const testCodec: GradientCodec = truncatingCodec;

/** Keeps the last two that have been written; a crash keeps those before. */
export class SimulatedDisk implements SnapshotStore {
  /** The latest first. */
  #kept: Snapshot[] = [];
  readonly #damaged = new Set<Snapshot>();
  #writing: (() => void)[] = [];
  written = 0;
  /** Writes finish at once. */
  immediate = false;
  /** The reason why nothing can be written. */
  failure: ShoalError | undefined;

  save(snapshot: Snapshot): Promise<void> {
    if (this.failure !== undefined) return Promise.reject(this.failure);
    return new Promise((resolve) => {
      const finish = (): void => {
        this.#kept = [snapshot, ...this.#kept].slice(0, 2);
        this.written++;
        resolve();
      };
      if (this.immediate) finish();
      else this.#writing.push(finish);
    });
  }

  load(save?: string): Promise<Snapshot | undefined> {
    const fitting = this.#kept.filter(({ metadata }) => save === undefined || metadata.save === save);
    const whole = fitting.find((snapshot) => !this.#damaged.has(snapshot));
    if (whole !== undefined || fitting.length === 0) return Promise.resolve(whole);
    return Promise.reject(new ShoalError('protocol', 'this disk: damaged'));
  }

  saves(): Promise<string[]> {
    return Promise.resolve(this.#kept.flatMap(({ metadata }) => metadata.save ?? []));
  }

  /** The latest cannot be read any more. */
  damage(): void {
    const [latest] = this.#kept;
    if (latest !== undefined) this.#damaged.add(latest);
  }

  get busy(): boolean {
    return this.#writing.length > 0;
  }

  finishWrite(): void {
    this.#writing.shift()?.();
  }

  crash(): void {
    this.#writing = [];
  }
}

interface Node {
  readonly name: string;
  deliver: (msg: Msg) => void;
  alive: boolean;
  /** Stopped: what is sent to it waits. */
  frozen: boolean;
}

interface Wire {
  readonly from: Node;
  readonly to: Node;
  readonly messages: Msg[];
}

export interface ClusterServer {
  readonly group: number;
  readonly server: number;
  readonly disk: SimulatedDisk | undefined;
  /** Counts the processes that have been this server. */
  term: number;
  core: ServerCore;
  node: Node;
  standby: { core: ServerCore; node: Node } | undefined;
  remotes: Map<Address, MappedValues>;
}

export interface ClusterOptions {
  readonly topology: KVTopology;
  /** Workers per process. Default 1. */
  readonly localWorkers?: number;
  readonly random: Random;
  readonly disks?: boolean;
  /** Whether servers can map the memory of clients. Default true. */
  readonly mappable?: boolean;
  readonly kernels?: Kernels;
  readonly createOptimizer?: (spec: OptimizerSpec) => Optimizer;
  readonly server?: Partial<ServerOptions>;
  readonly client?: Partial<ClientOptions>;
  /** Disks of another cluster, to load what was saved there. Default: none. */
  readonly folders?: Map<string, SimulatedDisk>;
}

export class SimulatedCluster {
  readonly clock = new VirtualClock();
  readonly servers: ClusterServer[] = [];
  readonly clients: { core: ClientCore; node: Node; values: MemoryValues; address: Address; workerGroup: number }[] = [];
  readonly faults: { source: Address; error: ShoalError }[] = [];
  readonly served = new Set<string>();
  readonly folders: Map<string, SimulatedDisk>;
  delivered = 0;
  /** Memory that is open to messages of others. */
  readonly places: PlaceRegistry = new Map();
  bytesPlaced = 0;
  /** Messages that servers have not given back. */
  lent = 0;
  readonly #options: ClusterOptions;
  /** Clients that were lost: servers that begin to serve hear of them again. */
  readonly #losses: Parameters<ServerCore['peerLost']>[] = [];
  /** Clients in whose place others have come. */
  readonly #former: SimulatedCluster['clients'][number][] = [];
  readonly #registry: RegionRegistry = new Map();
  readonly #wires = new Map<string, Wire>();
  readonly #kernels: Kernels;
  #sendFailure: ShoalError | undefined;
  #incarnation = 0;
  #names = 0;

  private constructor(options: ClusterOptions) {
    this.#options = options;
    this.#kernels = options.kernels ?? createKernels();
    this.folders = options.folders ?? new Map<string, SimulatedDisk>();
  }

  static async start(options: ClusterOptions): Promise<SimulatedCluster> {
    const cluster = new SimulatedCluster(options);
    const { topology, localWorkers = 1 } = options;
    for (let group = 0; group < topology.serverGroups; group++) {
      for (let server = 0; server < topology.serversPerGroup; server++) await cluster.#addServer(group, server);
    }
    const workers = topology.workerGroups * topology.workersPerGroup;
    for (let worker = 0; worker < workers; worker += localWorkers) cluster.clients.push(cluster.#makeClient(worker, localWorkers));
    for (const server of cluster.servers) if (topology.replicas === 2) await cluster.addStandby(server);
    for (const server of cluster.servers) cluster.#connectServer(server);
    return cluster;
  }

  get #resource(): SharedResource {
    return (this.#options.mappable ?? true) ? 'memory' : 'network';
  }

  // ── faults ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Kills a server and everything under way to and from it. Its disk stays. */
  kill(server: ClusterServer): void {
    server.node.alive = false;
    this.#cut(server.node);
    server.disk?.crash();
    const error = new ShoalError('peer-lost', `server ${server.server} of group ${server.group} was killed`);
    for (const { core, workerGroup } of this.clients) {
      if (serverGroupOf(this.#options.topology, workerGroup) === server.group) core.serverDown(server.server, error);
    }
  }

  /** Starts a killed server again, from its disk. */
  async restart(server: ClusterServer): Promise<void> {
    server.remotes = new Map();
    server.term++;
    const { core, node } = await this.#makeServer(server, 'primary', server.remotes);
    server.core = core;
    server.node = node;
    this.#connectServer(server);
  }

  /** Lets the standby of a killed server take over. */
  promote(server: ClusterServer): void {
    const { core, node } = must(server.standby, () => 'there is a standby');
    server.standby = undefined;
    server.core = core;
    server.node = node;
    core.promote({ term: ++server.term });
    this.#connectServer(server);
  }

  async addStandby(server: ClusterServer): Promise<void> {
    const standby = await this.#makeServer(server, 'standby', new Map());
    server.standby = standby;
    server.core.peerUp(standbyAddress(server));
  }

  /** Breaks the connection between a server and its standby, and makes it again. */
  reconnectStandby(server: ClusterServer): void {
    const { standby, node, core } = server;
    if (standby === undefined) return;
    this.#wires.delete(`${node.name}>${standby.node.name}`);
    this.#wires.delete(`${standby.node.name}>${node.name}`);
    core.peerLost(standbyAddress(server), new ShoalError('peer-lost', 'the connection broke'));
    core.peerUp(standbyAddress(server));
  }

  /** Stops a server; its standby takes over and gets a standby of its own, which the former tries to inform when it is resumed. */
  async replaceFrozen(server: ClusterServer): Promise<{ core: ServerCore; resume: () => void; end: () => void }> {
    const { core, node } = server;
    node.frozen = true;
    this.promote(server);
    await this.addStandby(server);
    return {
      core,
      resume: () => {
        node.frozen = false;
        core.peerUp(standbyAddress(server));
      },
      end: () => {
        node.alive = false;
        this.#cut(node);
      },
    };
  }

  /** Fails the next message, whoever sends it. */
  failNextSend(error: ShoalError): void {
    this.#sendFailure = error;
  }

  killStandby(server: ClusterServer): void {
    const { standby } = server;
    if (standby === undefined) return;
    standby.node.alive = false;
    this.#cut(standby.node);
    server.standby = undefined;
    server.core.peerLost(standbyAddress(server), new ShoalError('peer-lost', 'the standby was killed'));
  }

  /** Breaks the connection between a client and a server, and makes it again. */
  reconnect(client: SimulatedCluster['clients'][number], server: ClusterServer): void {
    this.#wires.delete(`${client.node.name}>${server.node.name}`);
    this.#wires.delete(`${server.node.name}>${client.node.name}`);
    if (serverGroupOf(this.#options.topology, client.workerGroup) !== server.group) return;
    client.core.serverDown(server.server, new ShoalError('peer-lost', 'the connection broke'));
    client.core.serverUp(server.server, this.#resource);
  }

  /** Takes a client out, as one whose process has ended or is stopped for too long: servers hear of it, and `alive` says which. */
  lose(worker: number, { alive = false, returns = true }: { readonly alive?: boolean; readonly returns?: boolean } = {}): void {
    const { node, address, workerGroup } = this.clientOf(worker);
    if (!alive) {
      node.alive = false;
      this.#cut(node);
    }
    const { localWorkers: workers = 1 } = this.#options;
    const first = Math.floor(worker / workers) * workers;
    const place = { returns, ...(idOf(address) === first && { group: workerGroup, first, workers }) };
    const error = new ShoalError('peer-lost', alive ? 'has been silent for 9 s' : 'was killed by SIGKILL');
    this.#losses.push([address, error, place]);
    for (const server of this.servers) if (server.node.alive) server.core.peerLost(address, error, place);
  }

  /** Another client in the place of one that was lost. */
  rejoin(worker: number): void {
    const { localWorkers = 1 } = this.#options;
    const index = Math.floor(worker / localWorkers);
    this.#former.push(this.clients[index]);
    this.clients[index] = this.#makeClient(index * localWorkers, localWorkers, (this.clients.length + this.#former.length) * localWorkers);
    for (const { server } of this.servers) this.clients[index].core.serverUp(server, this.#resource);
  }

  // ── progress ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** Delivers one message, of any connection. @returns false when there is none. */
  deliverOne(): boolean {
    const busy = [...this.#wires.values()].filter(({ to, messages }) => messages.length > 0 && !to.frozen);
    if (busy.length === 0) return false;
    const { to, messages } = busy[this.#options.random.integer(busy.length)];
    const msg = messages.shift()!;
    this.delivered++;
    // Read now and not when it was sent, as a socket does.
    if (to.alive) to.deliver(this.#arrived(msg));
    msg.markDelivered();
    return true;
  }

  /** The message as it arrives: frames with a place that is open are written there, and are that memory. Those of updates to
   *  servers are lent: they are spoilt when they are given back. */
  #arrived(msg: Msg): Msg {
    const lends = roleOf(msg.destination) === Role.server && this.#options.mappable === false;
    const frames = msg.frames.map((frame, k) => {
      const place = msg.placeOf(k);
      const memory = place && this.places.get(place.rkey);
      const copy = Uint8Array.from(frame);
      if (memory === undefined || place === undefined) return copy;
      memory.set(frame, place.offset);
      this.bytesPlaced += frame.byteLength;
      return memory.subarray(place.offset, place.offset + frame.byteLength);
    });
    const { source, destination, type, targetValue, targetVersion } = msg;
    const arrived = Msg.received({ source, destination, type, targetValue, targetVersion, frames, pointers: [] });
    if (lends) {
      this.lent++;
      arrived.onRelease(() => {
        this.lent--;
        for (const frame of frames) frame.fill(0xee);
      });
    }
    return arrived;
  }

  /** Promises that are settled are heard. */
  breathe(): Promise<void> {
    return breath();
  }

  /** Everything that can happen without time or faults, happens. */
  async settle(): Promise<void> {
    for (;;) {
      await breath();
      if (this.deliverOne()) continue;
      const disk = [...this.servers.map((server) => server.disk), ...this.folders.values()].find((each) => each?.busy);
      if (disk === undefined) break;
      disk.finishWrite();
    }
  }

  /** The result of an operation, while everything goes on. */
  async run<T>(begin: (done: (error: ShoalError | undefined, value?: T) => void) => void): Promise<T | undefined> {
    let result: { error: ShoalError | undefined; value: T | undefined } | undefined;
    begin((error, value) => {
      result = { error, value };
    });
    await this.settle();
    if (result === undefined) throw new Error('the operation goes on although nothing happens any more');
    if (result.error !== undefined) throw result.error;
    return result.value;
  }

  /** Whether servers can map the memory of clients. */
  get mappable(): boolean {
    return this.#options.mappable ?? true;
  }

  clientOf(worker: number): SimulatedCluster['clients'][number] {
    return this.clients[Math.floor(worker / (this.#options.localWorkers ?? 1))];
  }

  // ── building ───────────────────────────────────────────────────────────────────────────────────────────────────

  async #addServer(group: number, server: number): Promise<void> {
    const disk = this.#options.disks ? new SimulatedDisk() : undefined;
    const remotes = new Map<Address, MappedValues>();
    const place = { group, server, disk, remotes, term: 1, standby: undefined };
    const { core, node } = await this.#makeServer(place, 'primary', remotes);
    this.servers.push({ ...place, core, node });
  }

  async #makeServer(
    place: Pick<ClusterServer, 'group' | 'server' | 'disk' | 'term'>,
    mode: 'primary' | 'standby',
    remotes: Map<Address, MappedValues>,
  ): Promise<{ core: ServerCore; node: Node }> {
    const { group, server, disk } = place;
    const { topology, createOptimizer = addingOptimizer } = this.#options;
    const node: Node = { name: `server ${group}/${server} #${this.#names++}`, deliver: () => undefined, alive: true, frozen: false };
    const core = await ServerCore.start({
      topology,
      group,
      server,
      incarnation: ++this.#incarnation,
      clock: mortalClock(this.clock, node),
      kernels: this.#kernels,
      parameterKernels,
      createOptimizer,
      codecOf: (code) => (code === truncatingCodec.code ? truncatingCodec : undefined),
      send: (destination, msg) => this.#send(node, this.#nodeOf(destination), msg),
      valuesOf: (source) => {
        let remote = remotes.get(source);
        if (remote === undefined) remotes.set(source, (remote = new MappedValues(this.#registry)));
        return remote;
      },
      ...(disk ? { snapshots: mortalDisk(disk, node) } : {}),
      storeAt: (folder, of) => this.#folder(`${folder}/${group}-${of}`),
      standby: standbyAddress(place),
      mode,
      term: mode === 'primary' ? place.term : 0,
      onFault: (source, error) => this.faults.push({ source, error }),
      onServed: () => this.served.add(`${group}/${server}`),
      ...serverSettings,
      ...this.#options.server,
    });
    node.deliver = (msg) => core.receive(msg);
    return { core, node };
  }

  #makeClient(firstWorker: number, localWorkers: number, id = firstWorker): SimulatedCluster['clients'][number] {
    const { topology, mappable = true, server } = this.#options;
    const workerGroup = workerGroupOf(topology, firstWorker);
    const values = new MemoryValues(`client ${id}`, this.#registry, { mappable, places: this.places });
    const node: Node = { name: `client ${id}`, deliver: () => undefined, alive: true, frozen: false };
    const core = new ClientCore({
      topology,
      workerGroup,
      firstWorker,
      localWorkers,
      presence: server?.elastic === true ? { id, joins: id !== firstWorker } : undefined,
      clock: this.clock,
      kernels: this.#kernels,
      parameterKernels,
      values,
      send: (destination, msg) => this.#send(node, this.#nodeOf(destination), msg),
      ...clientSettings,
      ...this.#options.client,
    });
    node.deliver = (msg) => core.receive(msg);
    return { core, node, values, address: clientAddress(workerGroup, id), workerGroup };
  }

  #connectServer(server: ClusterServer): void {
    const { topology } = this.#options;
    for (const loss of this.#losses) server.core.peerLost(...loss);
    for (const { core, workerGroup } of this.clients) {
      if (serverGroupOf(topology, workerGroup) === server.group) core.serverUp(server.server, this.#resource);
    }
    for (const other of this.servers) {
      if (other === server || !other.node.alive) continue;
      other.core.peerUp(serverAddress(server.group, server.server));
      server.core.peerUp(serverAddress(other.group, other.server));
    }
  }

  #nodeOf(address: Address): Node | undefined {
    if (roleOf(address) === Role.stub) return [...this.clients, ...this.#former].find((client) => client.address === address)?.node;
    const server = this.servers.find(({ group, server: id }) => group === groupOf(address) && id === idOf(address));
    return roleOf(address) === standbyRole ? server?.standby?.node : server?.node;
  }

  #send(from: Node, to: Node | undefined, msg: Msg): void {
    const failure = this.#sendFailure;
    this.#sendFailure = undefined;
    if (failure) throw failure;
    msg.markSent();
    if (!from.alive || to?.alive !== true || !this.#isConnected(from, to)) return;
    const name = `${from.name}>${to.name}`;
    let wire = this.#wires.get(name);
    if (wire === undefined) this.#wires.set(name, (wire = { from, to, messages: [] }));
    wire.messages.push(msg);
  }

  /** Clients are connected with the server in force, and with no other. */
  #isConnected(from: Node, to: Node): boolean {
    const ends = [from, to];
    if (![...this.clients, ...this.#former].some(({ node }) => ends.includes(node))) return true;
    return this.servers.some(({ node }) => ends.includes(node));
  }

  #cut(node: Node): void {
    for (const [name, { from, to }] of this.#wires) if (from === node || to === node) this.#wires.delete(name);
  }

  #folder(name: string): SimulatedDisk {
    let disk = this.folders.get(name);
    if (disk === undefined) this.folders.set(name, (disk = new SimulatedDisk()));
    disk.immediate = true;
    return disk;
  }
}

function standbyAddress({ group, server }: { readonly group: number; readonly server: number }): Address {
  return makeAddress({ group, id: server, role: standbyRole });
}

/** Timers of a process that was killed do not fire. */
function mortalClock(clock: Clock, node: Node): Clock {
  return {
    now: () => clock.now(),
    wallNow: () => clock.wallNow(),
    setTimer: (delayMs, callback) =>
      clock.setTimer(delayMs, () => {
        if (node.alive) callback();
      }),
  };
}

/** Nor does it write. */
function mortalDisk(disk: SimulatedDisk, node: Node): SnapshotStore {
  return {
    save: (snapshot) => (node.alive ? disk.save(snapshot) : new Promise(() => undefined)),
    load: (save) => disk.load(save),
    saves: () => disk.saves(),
  };
}

/** Promises that are settled are heard. */
async function breath(): Promise<void> {
  for (let k = 0; k < 32; k++) await Promise.resolve();
}
