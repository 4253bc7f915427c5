/** The whole state of a server, and changes that span its parts. server/message-handler.ts acts on it. */
import { getOrMake } from '../../../base/collections/lists.ts';
import { ShoalError } from '../../../base/errors.ts';
import { idOf, type Address } from '../../../messaging/address.ts';
import type { Msg } from '../../../messaging/msg.ts';
import { GroupSync } from './group-sync.ts';
import type { OptimizerSpec } from '../../optimizers/optimizer.ts';
import { ParameterDirectory, type DeclaredParameter } from '../../protocol/parameter-directory.ts';
import { Applier } from './apply.ts';
import type { ServerActions, ServerOptions, ServerParts } from './server-options.ts';
import { describeWorkers, GroupRounds } from './rounds.ts';
import { type ServerRequest, ServerSession } from './client-session.ts';
import { ServerSlots } from './slots.ts';
import { SourceReader } from './sources.ts';
import { ServerTransfers } from './server-transfers.ts';
import { serverGroupOf } from '../../protocol/topology.ts';
import type { OptimizerNotice } from '../../protocol/wire.ts';

export class ServerState implements ServerParts {
  readonly options: ServerOptions;
  readonly actions: ServerActions;
  readonly directory: ParameterDirectory;
  readonly slots: ServerSlots;
  readonly applier: Applier;
  readonly sources: SourceReader;
  readonly transfers: ServerTransfers;
  readonly sync: GroupSync;
  readonly sessions = new Map<Address, ServerSession>();
  /** Batches that can be used, and their slots. */
  committed = 0;
  committedSlots = 0;
  optimizerSpec: OptimizerSpec | undefined;
  /** The number of times the optimiser has been set. */
  optimizerVersion = 0;
  /** The incarnation that this state goes back to without loss. */
  lineage: number;
  /** Clients may have to repeat what an earlier process of this server had answered and not saved. */
  repeats: boolean;
  /** Something has changed since the last snapshot. */
  dirty = false;

  constructor(options: ServerOptions, actions: ServerActions) {
    this.options = options;
    this.actions = actions;
    this.lineage = options.incarnation;
    this.repeats = options.mode === 'primary' && options.snapshots !== undefined;
    const { topology, group, server } = options;
    this.directory = new ParameterDirectory(topology.serversPerGroup);
    this.slots = new ServerSlots(server, this.directory, actions.counters);
    this.applier = new Applier(this.slots, options);
    this.sync = new GroupSync(this);
    this.sources = new SourceReader(this.slots, options.valuesOf, options.codecOf);
    this.sources.writes = options.mode === 'primary' ? 'targets' : 'nothing';
    this.transfers = new ServerTransfers(this, this.applier, this.sources);
    for (let g = 0; g < topology.workerGroups; g++) {
      if (serverGroupOf(topology, g) === group) this.transfers.groups.set(g, new GroupRounds<ServerRequest>(g, topology.workersPerGroup));
    }
  }

  /** The facts about the optimiser that clients must know. */
  get optimizerNotice(): OptimizerNotice {
    return { version: this.optimizerVersion, refuses: this.optimizerSpec?.nonFinite === 'refuse' };
  }

  /** Workers that this server's group serves. */
  get workers(): number {
    return this.transfers.groups.size * this.options.topology.workersPerGroup;
  }

  /** Whether every worker has repeated what it had to. What is held until then needs no more. */
  hasHeardAll(isHeld: (msg: Msg) => boolean): boolean {
    let workers = 0;
    for (const { epoch, blocked, lastRequest, lastRepeated, member, replaced } of this.sessions.values()) {
      const [first] = blocked;
      const isHeard = epoch > 0 && (first === undefined ? lastRequest >= lastRepeated : isHeld(first));
      if (!replaced && (member.absent || isHeard)) workers += member.workers;
    }
    return workers >= this.workers;
  }

  /** Slots have a new value. */
  applied(from: number, to: number): void {
    this.dirty = true;
    this.sync.applied(from, to);
  }

  /** The session of a client; made when it is new. One that has come later takes the place of the one that had its workers.
   *  @throws ShoalError `protocol` when its workers cannot be. */
  join(address: Address, workerGroup: number, firstWorker: number, workers: number, joins = false): ServerSession {
    const rounds = this.transfers.groups.get(workerGroup);
    const known = this.sessions.get(address);
    if (known !== undefined && joins) return known;
    if (joins) this.#replace(address, firstWorker, workers);
    const member = rounds?.join(address, firstWorker, workers);
    if (rounds === undefined || member === undefined) {
      const { group, server } = this.options;
      const who = `workers ${firstWorker} to ${firstWorker + workers - 1} of worker group ${workerGroup}`;
      throw new ShoalError('protocol', `${who} are not served by server ${server} of group ${group}, or have come from another process`);
    }
    const session = getOrMake(this.sessions, address, () => new ServerSession(rounds, member));
    if (joins) {
      session.joins = true;
      this.transfers.dismiss(session, 'left');
    }
    return session;
  }

  /** Nothing waits for the client any more, where workers come and go. With `error` it is lost. */
  dismiss(session: ServerSession, error?: ShoalError): void {
    // Pushes from before it left count, however its process ends.
    if (session.lost !== undefined || (error !== undefined && session.workersLeft >= session.member.workers)) return;
    this.#takeOut(session, error);
  }

  #takeOut(session: ServerSession, error?: ShoalError): void {
    session.lost ??= error;
    if (error !== undefined) this.transfers.failOf(session, error);
    this.transfers.dismiss(session, error === undefined ? 'left' : 'lost');
    this.dirty = true;
  }

  /** Numbers of processes grow: a message that one of before has left behind changes nothing. */
  #replace(by: Address, firstWorker: number, workers: number): void {
    for (const session of this.sessions.values()) {
      const { member, rounds } = session;
      if (session.replaced || idOf(session.address) > idOf(by) || member.firstWorker !== firstWorker || member.workers !== workers)
        continue;
      this.#takeOut(session, new ShoalError('peer-lost', `another process has taken the place of ${describeWorkers(member)}`));
      session.replaced = true;
      rounds.replace(firstWorker, workers);
    }
  }

  /** Takes memory for a batch; it can be used after `commit`. @throws ShoalError; nothing has changed. */
  declare(batch: readonly DeclaredParameter[]): void {
    if (this.options.topology.serverGroups > 1 && batch.some(({ dtype }) => dtype === 'bool')) {
      throw new ShoalError('unsupported', 'bool parameters cannot be kept by several server groups: they have no differences');
    }
    this.directory.add(batch);
    this.slots.grow(this.applier.optimizer);
    this.transfers.grow();
    this.dirty = true;
  }

  /** All declared batches can be used: they have their first values. */
  commit(): void {
    this.committed = this.directory.batches;
    this.committedSlots = this.slots.count;
    this.sync.grow();
    this.dirty = true;
  }

  /** @throws ShoalError of the registry for a spec that cannot be. */
  setOptimizer(spec: OptimizerSpec): void {
    const optimizer = this.options.createOptimizer(spec);
    this.applier.optimizer = optimizer;
    this.optimizerSpec = spec;
    this.optimizerVersion++;
    this.slots.resetStates(optimizer);
    this.dirty = true;
  }
}
