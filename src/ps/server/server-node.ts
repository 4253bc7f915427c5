/** A process that is a server, or the standby of one: sockets around a server core, and its fencing.
 *
 *      clients, other servers ── dealers ──▶ router ─▶ core ─┬▶ router ──▶ clients, other servers
 *                                                          ├▶ dialer of the standby         (primary)
 *                                                          └▶ dialers of the master groups  (several server groups)
 *
 *  Fencing. The job's store decides which process is the primary (server-seat.ts): a standby that has lost its primary, and a primary that
 *  has lost its standby, both compare and swap the server's view; only one of them succeeds, the other ends. Until then a primary
 *  sends no replies, because replies wait for the standby. A process that has lost its place ends as soon as it learns of it,
 *  or the processes with which it shares memory end it. */
import { existsSync, realpathSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { must } from '../../base/assert.ts';
import { sleep } from '../../base/clock.ts';
import { getOrMake } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import { createLogger, type Logger } from '../../base/log.ts';
import type { Environment } from '../../base/settings/settings.ts';
import { groupOf, idOf, roleOf, type Address } from '../../messaging/address.ts';
import type { Msg } from '../../messaging/msg.ts';
import { Router, type PeerEvent } from '../../messaging/router.ts';
import { SnapshotFolder } from '../../checkpoint/snapshot-folder.ts';
import { createDecoder } from '../compression/registry.ts';
import { detectPlace, type KVPlace } from '../job/environment.ts';
import { openNode, type NodeContext } from '../job/node-context.ts';
import type { Pulse } from '../job/pulse.ts';
import { createOptimizer } from '../optimizers/registry.ts';
import { PeerValues } from '../protocol/process-values.ts';
import { ServerCore } from './server-core.ts';
import { ServerTeller } from './server-teller.ts';
import { ServerDialer, type ServerDialerOptions } from '../job/server-dialer.ts';
import type { CheckpointEvent } from './state/server-options.ts';
import type { ServerRecord } from '../job/server-records.ts';
import { ServerSeat } from '../job/server-seat.ts';
import { followLosses } from '../job/lost-workers.ts';
import { lookMs, Silence } from '../job/silence.ts';
import { Role } from '../protocol/singa.ts';
import { masterGroupOf, nameOfAddress, serverAddress, standbyAddress, type KVTopology } from '../protocol/topology.ts';

const flushMs = 2000;

/** Every worker has left, or `stop` was called; or another process is this server now. */
export type ServerEnd = 'served' | 'replaced';

export interface ServerStart {
  readonly signal?: AbortSignal;
  /** Default: the system's. */
  readonly open?: (environment: Environment) => Promise<NodeContext>;
}

export class ServerNode {
  readonly #node: NodeContext;
  readonly #place: KVPlace;
  /** The address of the server that this process is, or stands by for. */
  readonly #own: Address;
  readonly #log: Logger;
  readonly #router: Router;
  readonly #teller = new ServerTeller();
  readonly #values = new Map<Address, PeerValues>();
  readonly #dialers = new Map<Address, ServerDialer>();
  /** The silence of each peer; a peer that has left, or is lost, has none. */
  readonly #peers = new Map<Address, Silence>();
  /** The silence of a standby's primary, from when it was heard of last, or waited for. */
  readonly #primary: Silence;
  #topology: KVTopology | undefined;
  #seat: ServerSeat | undefined;
  #mode: 'primary' | 'standby' = 'standby';
  #core: ServerCore | undefined;
  /** Messages that came while the core was being made. */
  #early: Msg[] = [];
  /** Events of the standby, one after the other. */
  #standbyTurn: Promise<void> = Promise.resolve();
  /** The process that a primary sends its state. */
  #candidate: ServerRecord | undefined;
  #served = false;
  #ending = false;
  readonly #over = new AbortController();
  #end!: (how: ServerEnd | ShoalError) => void;
  /** Rejects when it cannot serve any more. */
  readonly ended: Promise<ServerEnd>;

  private constructor(node: NodeContext, place: KVPlace) {
    const { role, serverGroup, server } = place;
    this.#node = node;
    this.#place = place;
    this.#own = serverAddress(serverGroup, server);
    this.#primary = this.#silenceOf(this.#own);
    this.#primary.isConnected = false;
    this.#log = createLogger({ level: node.settings.logLevel, clock: node.clock, speaker: `${role} ${server} of group ${serverGroup}` });
    this.#router = new Router(node.messaging, { onPeer: (event) => this.#onPeer(event) });
    this.ended = new Promise((resolve, reject) => {
      this.#end = (how) => (how instanceof ShoalError ? reject(how) : resolve(how));
    });
    this.ended.catch(() => undefined);
  }

  /** Serves as the environment says, once the workers have said what kind of store it is.
   *  @throws ShoalError `config` when other processes are this server, and answer. */
  static async start(environment: Environment, { signal, open = openNode }: ServerStart = {}): Promise<ServerNode> {
    const place = detectPlace(environment, { async: false, localWorkers: 1 });
    const node = await open(environment);
    const server = new ServerNode(node, place);
    try {
      await server.#serve(signal);
      return server;
    } catch (error) {
      server.#ending = true;
      await server.#close();
      throw error;
    }
  }

  get topology(): KVTopology {
    return must(this.#topology, () => 'the server has started');
  }

  /** The server's number among all of the job. */
  get number(): number {
    return this.#place.serverGroup * this.topology.serversPerGroup + this.#place.server;
  }

  /** After a last checkpoint; `ended` says when, or why there is none. Idempotent. */
  async stop(): Promise<void> {
    if (this.#ending) return;
    this.#ending = true;
    try {
      await this.#core?.close();
      await this.#close();
      this.#end('served');
    } catch (thrown) {
      this.#end(ShoalError.from(thrown));
    }
  }

  async #serve(signal: AbortSignal | undefined): Promise<void> {
    const { role, serverGroup: group, server } = this.#place;
    const { records } = this.#node;
    const url = await this.#router.bind(this.#node.bindUrl);
    const topology = await records.topology({ ...(signal === undefined ? {} : { signal }), timeoutMs: 0x7fffffff });
    this.#topology = topology;
    this.#teller.answer(records, `${role} ${this.number}`, () => ({ mode: this.#mode, load: this.#core?.load }));
    const incarnation = Buffer.from(this.#node.random.bytes(6)).readUIntLE(0, 6) + 1;
    const own: ServerRecord = { incarnation, url, ...this.#node.processes.own() };
    this.#seat = new ServerSeat({ node: this.#node, group, server, replicas: topology.replicas, own });
    // It may take as long as a process may be silent; those who ask whether we are there are answered.
    this.#router.watch(() => this.#drain());
    this.#mode = await this.#seat.take(role === 'standby' ? 'standby' : 'server', signal);
    await this.#makeCore(own);
    if (this.#mode === 'primary') this.#serveAsPrimary(own);
    void this.#watchOver(own);
  }

  async #makeCore({ incarnation }: ServerRecord): Promise<void> {
    const { serverGroup: group, server, checkpointDir } = this.#place;
    const { clock, kernels, parameterKernels, settings } = this.#node;
    const { topology } = this;
    const twin = topology.replicas === 2 ? standbyAddress(group, server) : undefined;
    const folderOf = (folder: string, of: number): SnapshotFolder =>
      SnapshotFolder.warning(join(folder, `server-${group}-${of}`), this.#log);
    // Clients know of the new primary before this process is ready to be it.
    const hellos = this.#core?.abandon() ?? [];
    this.#core = undefined;
    const core = await ServerCore.start({
      ...{ topology, elastic: this.#place.elastic },
      group,
      server,
      incarnation,
      clock,
      kernels,
      parameterKernels,
      createOptimizer: (spec) => createOptimizer(spec, parameterKernels),
      codecOf: (code) => createDecoder(code, parameterKernels),
      send: (destination, msg) => this.#send(destination, msg),
      valuesOf: (source) => getOrMake(this.#values, source, () => new PeerValues(this.#node.allocator)),
      mode: this.#mode,
      term: must(this.#seat, () => 'a server has a seat').term,
      storeAt: (folder, of) => {
        if (checkpointDir === undefined || !isSameFolder(folder, checkpointDir)) return folderOf(folder, of);
        const message = `${folder} is where the servers keep their checkpoints; save state in another folder, and load it from there`;
        throw new ShoalError('usage', message);
      },
      ...(checkpointDir !== undefined ? { snapshots: folderOf(checkpointDir, server) } : {}),
      ...(twin !== undefined ? { standby: twin } : {}),
      onStandbyInformed: () => this.#onStandbyInformed(),
      checkpointEveryMs: settings.checkpointEveryMs,
      syncEvery: settings.syncEvery,
      syncMs: settings.syncMs,
      onFault: (source, error) => this.#log.warn(`${nameOfAddress(source)}: ${error.message}`),
      onCheckpoint: (event) => this.#logCheckpoint(event),
      // With several server groups, others may still need this one.
      onServed: () => (this.#served = topology.serverGroups === 1),
      ...(this.#node.counters && { counters: this.#node.counters }),
    });
    this.#core = core;
    for (const address of this.#peers.keys()) core.peerUp(address);
    for (const msg of [...hellos, ...this.#early.splice(0)]) core.receive(msg);
  }

  #logCheckpoint(event: CheckpointEvent): void {
    if (event.state === 'recovered') return this.#log.info('saves checkpoints again');
    const kept = 'what was pushed since the last checkpoint is kept by the workers and would be lost with them';
    const next = `make room, or the folder writable: it is tried again within ${event.againMs / 1000} s`;
    return this.#log.warn(`cannot save a checkpoint: ${event.error.message}; ${kept}; ${next}`);
  }

  // ── primary ────────────────────────────────────────────────────────────────────────────────────────────────────

  #serveAsPrimary({ incarnation }: ServerRecord): void {
    const { serverGroup, server } = this.#place;
    const { topology } = this;
    if (this.#place.elastic)
      void followLosses(this.#node.records, topology, this.#place, this.#over.signal, (client, ...lost) => {
        // Nobody looks for it any more.
        this.#peers.delete(client);
        this.#core?.peerLost(client, ...lost);
      });
    if (topology.replicas === 2) this.#dialStandby(incarnation);
    // Exchanges go to the master group; first values, optimisers and barriers come from group 0.
    for (const group of new Set([masterGroupOf(topology, server), 0])) if (group !== serverGroup) this.#dialGroup(group);
  }

  #dialGroup(group: number): void {
    const to = serverAddress(group, this.#place.server);
    // It comes back, unless the settings disagree.
    this.#dial(to, { group, onUp: () => this.#core?.peerUp(to), onDown: (error, how) => how === 'refused' && this.#fail(error) });
  }

  #dialStandby(incarnation: number): void {
    const { serverGroup: group, server } = this.#place;
    const to = standbyAddress(group, server);
    this.#dial(to, {
      group,
      seat: 'standby',
      except: incarnation,
      onUp: (record) => this.#next(() => this.#onStandbyUp(record, to)),
      onDown: (error) => this.#next(() => this.#onStandbyDown(error, to)),
    });
  }

  #dial(to: Address, options: Omit<ServerDialerOptions, 'node' | 'server' | 'own' | 'onMessage'>): void {
    const { server } = this.#place;
    const ends = { node: this.#node, server, own: this.#own };
    this.#dialers.set(to, new ServerDialer({ ...options, ...ends, onMessage: (msg) => this.#core?.receive(msg) }));
  }

  #next(turn: () => Promise<void> | void): void {
    this.#standbyTurn = this.#standbyTurn
      .then(async () => (this.#ending ? undefined : turn()))
      .catch((thrown: unknown) => this.#fail(thrown));
  }

  #onStandbyUp(record: ServerRecord, to: Address): void {
    this.#candidate = record;
    this.#core?.peerUp(to);
  }

  #onStandbyInformed(): void {
    const candidate = this.#candidate;
    this.#next(async () => {
      if (candidate === undefined || candidate !== this.#candidate) return;
      if (!(await this.#seat!.setStandby(candidate))) return this.#onReplaced();
      this.#log.info(`process ${candidate.pid} stands by`);
      const { serverGroup, server } = this.#place;
      await this.#node.records.noteDoubled(serverGroup, server);
    });
  }

  /** Goes on without the standby. Nobody is answered before the view says that it is none any more. */
  async #onStandbyDown(error: ShoalError, to: Address): Promise<void> {
    if (this.#candidate === undefined) return;
    this.#candidate = undefined;
    if (!(await this.#seat!.setStandby(null))) return this.#onReplaced();
    this.#log.warn(`lost its standby (${error.message}); goes on alone`);
    this.#core?.peerLost(to, error);
  }

  /** Ends this process, because another one is this server now. */
  async #onReplaced(): Promise<void> {
    if (this.#ending) return;
    const { serverGroup, server } = this.#place;
    this.#log.warn(`another process is server ${server} of group ${serverGroup} now, this one was not heard of for too long; ends`);
    this.#ending = true;
    this.#core?.abandon();
    await this.#close();
    this.#end('replaced');
  }

  /** True once nobody has to be heard any more: clients say goodbye after their last answer, or are silent one day. */
  get #isDone(): boolean {
    return this.#served && this.#mode === 'primary' && ![...this.#peers.keys()].some((address) => roleOf(address) === Role.stub);
  }

  // ── standby ────────────────────────────────────────────────────────────────────────────────────────────────────

  async #watchPrimary(own: ServerRecord): Promise<void> {
    const seat = must(this.#seat, () => 'a standby has a seat');
    this.#primary.look();
    const succession = await seat.watch(this.#primary.ms);
    if (succession === undefined) return;
    const { former } = seat;
    this.#log.warn(`takes over ${succession}${former === undefined ? '' : ` from process ${former.pid}, which is lost`}`);
    this.#mode = 'primary';
    if (succession === 'with the state') {
      // Until they have come, or been silent for long, this process is not done, even if all workers have left.
      for (const client of this.#core?.promote({ term: seat.term }) ?? [])
        if (!this.#peers.has(client)) this.#peer(client).isConnected = false;
    } else await this.#makeCore(own);
    this.#serveAsPrimary(own);
    // Stopped and resumed, it would find out by itself; ended, it can be started again and stand by.
    if (former !== undefined)
      this.#node.processes.end(this.#node.clock, former).catch((thrown: unknown) => this.#log.warn(ShoalError.from(thrown).message));
  }

  // ── peers ──────────────────────────────────────────────────────────────────────────────────────────────────────

  #send(destination: Address, msg: Msg): void {
    this.#teller.sent(msg);
    const dialer = this.#dialers.get(destination);
    if (dialer !== undefined) {
      dialer.send(msg);
      return;
    }
    try {
      this.#router.send(msg);
    } catch (error) {
      this.#log.warn(`cannot send to ${nameOfAddress(destination)}: ${ShoalError.from(error).message}`);
    }
  }

  #drain(): void {
    for (;;) {
      const msg = this.#ending ? undefined : this.#router.tryReceive();
      if (msg === undefined) return;
      this.#peer(msg.source).heard();
      this.#teller.received(msg);
      if (this.#core !== undefined) this.#core.receive(msg);
      else {
        msg.own();
        this.#early.push(msg);
      }
    }
  }

  #onPeer({ address, state, error }: PeerEvent): void {
    if (address === undefined) return;
    if (state === 'left') return this.#onLeft(address);
    const peer = this.#peer(address);
    peer.isConnected = state === 'connected';
    if (state === 'connected') {
      peer.heard();
      this.#core?.peerUp(address);
    } else this.#log.warn(`${nameOfAddress(address)} ${state}: ${error?.message ?? 'no reason given'}`);
  }

  /** The silence of a peer, which is there again if it had counted as lost. */
  #peer(address: Address): Silence {
    return getOrMake(this.#peers, address, () => (address === this.#own ? this.#primary : this.#silenceOf(address)));
  }

  #silenceOf(address: Address): Silence {
    const { processes, records, settings } = this.#node;
    const ask = async (): Promise<Pulse> => {
      if (roleOf(address) === Role.stub) return processes.ask(await records.client(idOf(address)));
      const view = await records.view(groupOf(address), idOf(address));
      return view === undefined ? 'silent' : processes.ask(view.primary);
    };
    return new Silence(settings.serverSilenceMs, ask);
  }

  #onLeft(address: Address): void {
    this.#forget(address);
    // A primary that says goodbye when all workers have left has no more use for its standby.
    const ofPrimary = this.#mode === 'standby' && address === this.#own;
    if (this.#isDone || (this.#served && ofPrimary)) void this.stop();
  }

  #forget(address: Address): void {
    this.#peers.delete(address);
    this.#core?.peerLeft(address);
    // Its last pushes may not be summed yet.
    this.#values.get(address)?.retire();
    this.#values.delete(address);
  }

  /** Declares peers lost that have been silent for long, and looks who is in force. */
  async #watchOver(own: ServerRecord): Promise<void> {
    try {
      for (;;) {
        await sleep(this.#node.clock, lookMs);
        if (this.#ending) return;
        this.#loseTheSilent();
        if (this.#mode === 'standby') await this.#watchPrimary(own);
        else if (!(await this.#seat!.isOurs())) await this.#onReplaced();
        if (this.#isDone) await this.stop();
      }
    } catch (thrown) {
      this.#fail(thrown);
    }
  }

  #loseTheSilent(): void {
    for (const [address, peer] of [...this.#peers]) {
      const why = peer.look();
      if (why === undefined) continue;
      if (roleOf(address) !== Role.stub || this.#core?.hasLeft(address) === true) {
        this.#forget(address);
        continue;
      }
      // Its memory may be in use: the core lets go of it.
      this.#peers.delete(address);
      this.#log.warn(`${nameOfAddress(address)} ${why}`);
      this.#core?.peerLost(address, new ShoalError('peer-lost', why));
    }
  }

  // ── end ────────────────────────────────────────────────────────────────────────────────────────────────────────

  /** The job's store is lost, or the checkpoint that we should begin with. */
  #fail(thrown: unknown): void {
    if (this.#ending) return;
    this.#ending = true;
    this.#core?.abandon();
    void this.#close().finally(() => this.#end(ShoalError.from(thrown)));
  }

  async #close(): Promise<void> {
    this.#over.abort();
    this.#teller.close();
    await Promise.all([...this.#dialers.values()].map((dialer) => dialer.close(flushMs)));
    await this.#router.close({ timeoutMs: flushMs });
    for (const values of this.#values.values()) values.close();
    this.#values.clear();
    await this.#node.close();
  }
}

/** Whether two paths, of folders that may not be there yet, mean the same. */
function isSameFolder(...paths: readonly [string, string]): boolean {
  const [one, other] = paths.map((path) => (existsSync(path) ? realpathSync(path) : resolve(path)));
  return one === other;
}
