/** A process that is a server, or the standby of one: sockets around a server core, and who is in force.
 *
 *      stubs, other servers ── dealers ──▶ router ─▶ core ─┬▶ router ──▶ stubs, other servers
 *                                                          ├▶ link to the standby          (primary)
 *                                                          └▶ links to the master groups   (several server groups)
 *
 *  Fencing. The job's store decides who is in force: a standby that has lost its primary, and a primary that has lost its
 *  standby, both compare and swap the server's record; only one of them succeeds, the other ends. Until then a primary
 *  answers nobody, because answers wait for the standby. */
import { join } from 'node:path';
import { must } from '../base/assert.ts';
import { sleep } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { createLogger, type Logger } from '../base/log.ts';
import type { Environment } from '../base/settings.ts';
import { systemRandom } from '../base/random.ts';
import { formatAddress, parseAddress, Role, type Address } from '../messaging/address.ts';
import type { Msg } from '../messaging/msg.ts';
import { Router, type PeerEvent } from '../messaging/router.ts';
import { SnapshotFolder } from './checkpoint/snapshot-folder.ts';
import { createDecoder } from './compression/registry.ts';
import { detectPlace, type KVPlace } from './environment.ts';
import { heartbeatAnswer, heartbeatMs, heartbeatType, ListeningTime } from './heartbeat.ts';
import { openNode, type NodeContext } from './node-context.ts';
import { createOptimizer } from './optimizers/registry.ts';
import { PeerValues } from './process-values.ts';
import { ServerCore } from './server-core.ts';
import { ServerLink } from './server-link.ts';
import type { CheckpointEvent } from './server-options.ts';
import type { ServerRecord } from './server-records.ts';
import { masterGroupOf, serverAddress, standbyAddress, type KVTopology } from './topology.ts';

const regionsMax = 4096;
const flushMs = 2000;

export class ServerNode {
  readonly #node: NodeContext;
  readonly #place: KVPlace;
  readonly #log: Logger;
  readonly #router: Router;
  readonly #own: Address;
  readonly #values = new Map<Address, PeerValues>();
  readonly #links = new Map<Address, ServerLink>();
  /** When each peer was last heard of; absent: not connected. */
  readonly #listening: ListeningTime;
  /** By peer, of the listening time. */
  readonly #heardMs = new Map<Address, number>();
  #topology: KVTopology | undefined;
  #core: ServerCore | undefined;
  #record: ServerRecord | undefined;
  #ending = false;
  /** A standby that has taken over. */
  #promoted = false;
  #end!: (error: ShoalError | undefined) => void;
  /** Resolves when all workers have left or `stop` was called; rejects when this process must not serve any more. */
  readonly ended: Promise<void>;

  private constructor(node: NodeContext, place: KVPlace) {
    const { role, serverGroup, server } = place;
    this.#node = node;
    this.#place = place;
    this.#listening = new ListeningTime(node.clock);
    this.#log = createLogger({ level: node.settings.logLevel, clock: node.clock, speaker: `${role} ${server} of group ${serverGroup}` });
    this.#own = role === 'standby' ? standbyAddress(serverGroup, server) : serverAddress(serverGroup, server);
    this.#router = new Router(node.messaging, { onPeer: (event) => this.#onPeer(event) });
    this.ended = new Promise((resolve, reject) => {
      this.#end = (error) => (error === undefined ? resolve() : reject(error));
    });
    this.ended.catch(() => undefined);
  }

  /** Serves as the environment says, once the workers have said what kind of store it is. */
  static async start(environment: Environment, { signal }: { signal?: AbortSignal } = {}): Promise<ServerNode> {
    const place = detectPlace(environment, { async: false, localWorkers: 1 });
    const node = await openNode(environment);
    const server = new ServerNode(node, place);
    try {
      await server.#serve(signal);
      return server;
    } catch (error) {
      await server.#close();
      throw error;
    }
  }

  get topology(): KVTopology {
    return must(this.#topology, () => 'the server has started');
  }

  get serverGroup(): number {
    return this.#place.serverGroup;
  }

  get server(): number {
    return this.#place.server;
  }

  /** After a last checkpoint; `ended` says when, or why there is none. Idempotent. */
  async stop(): Promise<void> {
    if (this.#ending) return;
    this.#ending = true;
    try {
      await this.#core?.close();
      await this.#close();
      this.#end(undefined);
    } catch (thrown) {
      this.#end(ShoalError.from(thrown));
    }
  }

  async #serve(signal: AbortSignal | undefined): Promise<void> {
    const { role, serverGroup, server, checkpointDir } = this.#place;
    const { records, clock, kernels, parameterKernels } = this.#node;
    const url = await this.#router.bind(this.#node.bindUrl);
    const topology = await records.topology({ ...(signal === undefined ? {} : { signal }), timeoutMs: 0x7fffffff });
    this.#topology = topology;
    this.#record = { incarnation: newIncarnation(), url, pid: process.pid, origin: role === 'standby' ? 'standby' : 'server' };
    const before = await records.find(serverGroup, server);
    if (role === 'server' && before?.origin === 'standby') {
      this.#log.warn(`its standby, process ${before.pid}, has taken over; nothing is left to do`);
      this.#end(undefined);
      return;
    }
    const twin = topology.replicas === 2 ? standbyAddress(serverGroup, server) : undefined;
    const folderOf = (folder: string, of: number): SnapshotFolder =>
      SnapshotFolder.warning(join(folder, `server-${serverGroup}-${of}`), this.#log);
    this.#core = await ServerCore.start({
      topology,
      group: serverGroup,
      server,
      incarnation: this.#record.incarnation,
      clock,
      kernels,
      parameterKernels,
      createOptimizer: (spec) => createOptimizer(spec, parameterKernels),
      codecOf: (code) => createDecoder(code, parameterKernels),
      send: (destination, msg) => this.#send(destination, msg),
      valuesOf: (source) => this.#valuesOf(source),
      mode: role === 'standby' ? 'standby' : 'primary',
      storeAt: folderOf,
      ...(role === 'server' && checkpointDir !== undefined ? { snapshots: folderOf(checkpointDir, server) } : {}),
      ...(role === 'server' && twin !== undefined ? { standby: twin } : {}),
      ...(role === 'standby' ? { primary: serverAddress(serverGroup, server) } : {}),
      checkpointEveryMs: this.#node.settings.checkpointEveryMs,
      syncEvery: this.#node.settings.syncEvery,
      onFault: (source, error) => this.#log.warn(`${formatAddress(source)}: ${error.message}`),
      onCheckpoint: (event) => this.#logCheckpoint(event),
      onServed: () => void this.#served(topology),
    });
    this.#linkToPeers(topology);
    this.#router.watch(() => this.#drain());
    this.#drain();
    if (role === 'server') await records.publish(serverGroup, server, this.#record);
    else await records.publishStandby(serverGroup, server, this.#record);
    void this.#watchOver();
  }

  #logCheckpoint(event: CheckpointEvent): void {
    if (event.state === 'recovered') return this.#log.info('saves checkpoints again');
    const kept = 'what was pushed since the last checkpoint is kept by the workers and would be lost with them';
    const next = `make room, or the folder writable: it is tried again within ${event.againMs / 1000} s`;
    return this.#log.warn(`cannot save a checkpoint: ${event.error.message}; ${kept}; ${next}`);
  }

  #linkToPeers(topology: KVTopology): void {
    const { role, serverGroup, server } = this.#place;
    if (role === 'server' && topology.replicas === 2) this.#link(standbyAddress(serverGroup, server), { seat: 'standby' });
    // Exchanges go to the master group; first values, optimisers and barriers come from group 0.
    for (const group of new Set([masterGroupOf(topology, server), 0])) {
      if (role === 'server' && group !== serverGroup) this.#link(serverAddress(group, server), { seat: 'server', group });
    }
  }

  #link(to: Address, { seat, group = this.#place.serverGroup }: { seat: 'server' | 'standby'; group?: number }): void {
    const link = new ServerLink({
      node: this.#node,
      group,
      server: this.#place.server,
      seat,
      own: this.#own,
      to,
      onMessage: (msg) => this.#core?.receive(msg),
      onUp: (record) => {
        if (seat === 'standby') this.#log.info(`process ${record.pid} stands by`);
        this.#core?.peerUp(to);
      },
      onDown: (error) => void this.#onLinkDown(seat, to, error),
    });
    this.#links.set(to, link);
  }

  async #onLinkDown(seat: 'server' | 'standby', to: Address, error: ShoalError): Promise<void> {
    // A master group's server comes back; a standby does not.
    if (seat !== 'standby' || this.#ending || error.code !== 'peer-lost') return;
    const expected = must(this.#record, () => 'a primary has a record');
    const record = { ...expected, incarnation: newIncarnation() };
    await this.#links.get(to)?.close(0);
    if (!(await this.#takeOver({ expected, record }))) return;
    this.#log.warn(`lost its standby (${error.message}); goes on alone`);
    this.#core?.peerLost(to, error);
  }

  /** False, and the end of this process as a server, when somebody else is in force. */
  async #takeOver(change: { expected: ServerRecord; record: ServerRecord }): Promise<boolean> {
    const { serverGroup, server } = this.#place;
    const inForce = await this.#node.records.takeOver(serverGroup, server, change);
    if (inForce.incarnation === change.record.incarnation) {
      this.#record = change.record;
      return true;
    }
    this.#log.warn(`process ${inForce.pid} is server ${server} of group ${serverGroup} now; ends`);
    this.#ending = true;
    await this.#close();
    this.#end(undefined);
    return false;
  }

  // ── peers ──────────────────────────────────────────────────────────────────────────────────────────────────────

  #send(destination: Address, msg: Msg): void {
    const link = this.#links.get(destination);
    if (link !== undefined) {
      link.send(msg);
      return;
    }
    try {
      this.#router.send(msg);
    } catch (error) {
      this.#log.warn(`cannot send to ${formatAddress(destination)}: ${ShoalError.from(error).message}`);
    }
  }

  #drain(): void {
    const { nowMs } = this.#listening;
    for (let msg = this.#next(); msg !== undefined; msg = this.#next()) {
      this.#heardMs.set(msg.source, nowMs);
      if (msg.type !== heartbeatType) this.#core?.receive(msg);
      else {
        const answer = heartbeatAnswer(msg);
        if (answer !== undefined) this.#send(answer.destination, answer);
      }
    }
  }

  /** None once this process has stopped serving: the router says so by an error. */
  #next(): Msg | undefined {
    return this.#ending ? undefined : this.#router.tryReceive();
  }

  #onPeer({ address, state, error }: PeerEvent): void {
    if (address === undefined) return;
    if (state === 'connected') {
      this.#heardMs.set(address, this.#listening.nowMs);
      this.#core?.peerUp(address);
    } else if (state === 'left') this.#onLeft(address);
    else this.#log.warn(`${formatAddress(address)} ${state}: ${error?.message ?? 'no reason given'}`);
  }

  /** A primary that says goodbye has served, or goes on alone: either way nobody needs its standby. */
  #onLeft(address: Address): void {
    this.#forget(address);
    const { role, serverGroup, server } = this.#place;
    if (role === 'standby' && !this.#promoted && address === serverAddress(serverGroup, server)) void this.stop();
  }

  #valuesOf(source: Address): PeerValues {
    let values = this.#values.get(source);
    if (values === undefined) {
      values = new PeerValues(this.#node.allocator, { regionsMax });
      this.#values.set(source, values);
    }
    return values;
  }

  #forget(address: Address): void {
    this.#heardMs.delete(address);
    this.#values.get(address)?.close();
    this.#values.delete(address);
  }

  /** Declares peers lost that have been silent for long. */
  async #watchOver(): Promise<void> {
    const { clock, settings } = this.#node;
    while (!this.#ending) {
      await sleep(clock, heartbeatMs);
      this.#listening.tick();
      for (const [address, heardMs] of [...this.#heardMs]) {
        const silentMs = this.#listening.nowMs - heardMs;
        if (silentMs > settings.serverSilenceMs && !this.#ending) await this.#onSilence(address, silentMs);
      }
    }
  }

  async #onSilence(address: Address, silentMs: number): Promise<void> {
    const error = new ShoalError(
      'peer-lost',
      `${formatAddress(address)} has been silent for ${Math.round(silentMs / 1000)} s; is its process alive?`,
    );
    this.#forget(address);
    const { role, serverGroup, server } = this.#place;
    if (role === 'standby' && this.#record?.origin === 'standby' && address === serverAddress(serverGroup, server))
      await this.#promote(error);
    else if (parseAddress(address).role === Role.stub) this.#core?.peerLost(address, error);
  }

  async #promote(error: ShoalError): Promise<void> {
    const { serverGroup, server } = this.#place;
    const expected = await this.#node.records.find(serverGroup, server);
    const record = must(this.#record, () => 'a standby has a record');
    if (expected === undefined || expected.incarnation === record.incarnation) return;
    if (this.#core?.informed !== true) {
      this.#log.warn(`cannot take over, it never had the state: ${error.message}`);
      return;
    }
    if (!(await this.#takeOver({ expected, record }))) return;
    this.#promoted = true;
    this.#log.warn(`takes over: ${error.message}`);
    this.#core?.promote();
  }

  // ── end ────────────────────────────────────────────────────────────────────────────────────────────────────────

  /** With several server groups, others may still need this one. */
  async #served(topology: KVTopology): Promise<void> {
    if (topology.serverGroups > 1 || this.#ending) return;
    await this.stop();
  }

  async #close(): Promise<void> {
    await Promise.all([...this.#links.values()].map((link) => link.close(flushMs)));
    await this.#router.close({ timeoutMs: flushMs });
    for (const values of this.#values.values()) values.close();
    this.#values.clear();
    await this.#node.close();
  }
}

function newIncarnation(): number {
  return Buffer.from(systemRandom.bytes(6)).readUIntLE(0, 6) + 1;
}
