/** The workers' side of the protocol, one per process: it aggregates its local workers, cuts and packs, orders by priority, and
 *  repeats requests that servers may have lost. A state machine; it must not know sockets or threads. */
import { listed } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import type { DType } from '../../memory/dtype.ts';
import { idOf } from '../../messaging/address.ts';
import type { WorkerFacts } from '../../metrics/worker-report.ts';
import type { Msg } from '../../messaging/msg.ts';
import { Arbiter, type SharedResource } from '../../scheduler/arbiter.ts';
import type { OptimizerSpec } from '../optimizers/optimizer.ts';
import { ParameterDirectory } from '../protocol/parameter-directory.ts';
import { ClientInit } from './init.ts';
import { ServerConnection, type OptimizerKnowledge } from './server-connection.ts';
import { LocalRounds, PushNumbers } from './local-rounds.ts';
import { ClientOperation } from './client-operation.ts';
import type {
  ClientOptions,
  Done,
  InfoDone,
  InitEntry,
  KeylessInfo,
  RowsRequest,
  TransferEntry,
  TransferRequest,
} from './client-options.ts';
import { answered, controlRequest, type ClientRequest } from './client-request.ts';
import { ClientRows } from './rows.ts';
import { ClientStates } from './states.ts';
import { ClientTransfers } from './client-transfers.ts';
import { ClientUnit } from './unit.ts';
import { serverAddress, serverGroupOf, clientAddress } from '../protocol/topology.ts';
import type { ValueCounters } from '../protocol/value-space.ts';
import { entryRounds, packCounts, unpackCounts } from '../protocol/entry-rounds.ts';
import { Fields, packError } from '../protocol/wire-control.ts';
import { KVMessage } from '../protocol/wire.ts';
import { Residuals } from '../values/device-values.ts';
import { firstNonFinite } from '../values/mixed-precision.ts';

/** Keys that an error names. */
const keysNamed = 2;
/** Barriers between two rounds; more would be counted as of the next ones. */
const barriersPerRound = 2 ** 20;

/** `worker` is a number among all workers, one of this process. Nothing throws: `done` gets the error; it may be called
 *  before the call returns. */
export class ClientCore {
  readonly #options: ClientOptions;
  readonly #directory: ParameterDirectory;
  readonly #connections: ServerConnection[];
  readonly #local: LocalRounds;
  readonly #rounds: PushNumbers;
  /** Operations of a process that has come later, which wait until it has entered the rounds. */
  #entry: 'entered' | { waiting: ((error: ShoalError | undefined) => void)[] | undefined };
  /** The first round of such a process, by server and slot; and the barriers that the others had passed before. */
  #firstRounds: number[][] = [];
  #barriersBefore = 0;
  readonly #init: ClientInit;
  readonly #transfers: ClientTransfers;
  readonly #rows: ClientRows;
  readonly #states: ClientStates;
  readonly #operations = new Set<ClientOperation>();
  /** Number of operations so far. */
  #calls = 0;
  /** Barriers that each local worker has called; and the operations that wait for them. */
  readonly #barriers: number[];
  #barrierWaits: { readonly barrier: number; readonly operation: ClientOperation }[] = [];
  #barrierSent = 0;
  readonly #left: boolean[];
  readonly #knowledge: OptimizerKnowledge = { version: 0, refuses: false };
  #hasSetOptimizer = false;
  /** The reason why nothing works any more. */
  #failure: ShoalError | undefined;
  #jobFailure: ShoalError | undefined;
  #closed = false;
  /** Counts values that did not go, or come, straight from memory to memory. */
  readonly counters: ValueCounters;

  constructor(options: ClientOptions) {
    this.counters = options.counters ?? { bytesCopied: 0 };
    this.#options = options;
    const { topology, workerGroup, firstWorker, localWorkers, presence } = options;
    const group = serverGroupOf(topology, workerGroup);
    const address = clientAddress(workerGroup, presence?.id ?? firstWorker);
    const { arbiter = new Arbiter() } = options;
    this.#directory = new ParameterDirectory(topology.serversPerGroup);
    this.#connections = Array.from({ length: topology.serversPerGroup }, (_, server) => {
      const destination = serverAddress(group, server);
      return new ServerConnection({
        address,
        server: destination,
        name: topology.serverGroups === 1 ? `server ${server}` : `server ${server} of group ${group}`,
        values: options.values,
        creditBytes: options.creditBytes,
        arbiter,
        replayBytes: options.replayBytes / topology.serversPerGroup,
        send: (msg) => options.send(destination, msg),
        greeting: () => this.#greeting(),
        onBroken: (error) => this.#breakDown(error),
        onCommitted: () => this.#init.progress(),
        knowledge: this.#knowledge,
        leads: firstWorker === 0,
        hasStandby: topology.replicas === 2,
      });
    });
    this.#local = new LocalRounds(firstWorker, localWorkers);
    this.#rounds = new PushNumbers(localWorkers, (parameter) => this.#roundBefore(parameter));
    this.#entry = presence?.joins === true ? { waiting: undefined } : 'entered';
    this.#barriers = Array.from({ length: localWorkers }, () => 0);
    this.#left = Array.from({ length: localWorkers }, () => false);
    const context = {
      options,
      directory: this.#directory,
      connections: this.#connections,
      local: this.#local,
      rounds: this.#rounds,
      counters: this.counters,
      residuals: new Residuals(),
      // The check is the servers' own, made before anything is sent.
      isRefused: (dtype: DType, values: Uint8Array) =>
        this.#knowledge.refuses && firstNonFinite(options.parameterKernels, dtype, values) >= 0,
      breakDown: (error: ShoalError) => this.#breakDown(error),
    };
    this.#init = new ClientInit(context);
    this.#transfers = new ClientTransfers(context);
    this.#rows = new ClientRows(context);
    this.#states = new ClientStates(context);
  }

  // ── connections ────────────────────────────────────────────────────────────────────────────────────────────────

  /** Takes a message from a server of this client's server group; others' messages are ignored. A message that no server sends ends the
   *  client: what it was about cannot be known. */
  receive(msg: Msg): void {
    const connection = this.#connections[idOf(msg.source)];
    if (connection?.options.server !== msg.source) return;
    try {
      connection.receive(msg);
    } catch (error) {
      this.#breakDown(ShoalError.from(error));
    }
  }

  /** A connection with a server of this client's server group, by its number in the group, has been made (again).
   *  @param resource what the way to it takes. Default: nothing that others need. */
  serverUp(server: number, resource?: SharedResource): void {
    this.#connections[server]?.up(resource);
  }

  /** The connection is lost, or the process has ended. Operations wait for `serverUp` within their deadlines, if what the server knew can
   *  come back. */
  serverDown(server: number, error: ShoalError, how: 'lost' | 'ended' = 'lost'): void {
    this.#connections[server]?.down(error, how);
  }

  // ── operations ─────────────────────────────────────────────────────────────────────────────────────────────────

  init(worker: number, entries: readonly InitEntry[], done: Done): void {
    const name = (): string => `init of ${nameKeys(entries)} by worker ${worker}`;
    this.#run(name, done, undefined, (operation) => this.#init.start(worker, operation, entries));
  }

  /** Sets the credit of the connection to each server, from now on. */
  setCredit(creditBytes: number): void {
    for (const connection of this.#connections) connection.setCredit(creditBytes);
  }

  /** Push, pull or both, of any number of keys, as one operation. */
  transfer(worker: number, request: TransferRequest, done: Done): void {
    const { entries, timeoutMs } = request;
    const name = (): string => `${nameTransfer(entries)} of ${nameKeys(entries)} by worker ${worker}`;
    const begin = (operation: ClientOperation): void => this.#transfers.start(operation, worker - this.#options.firstWorker, request);
    this.#run(name, done, timeoutMs, (operation) => this.#whenEntered(operation, begin));
  }

  rows(worker: number, direction: 'push' | 'pull', request: RowsRequest, done: Done): void {
    const name = (): string => `${direction} of rows of '${request.key}' by worker ${worker}`;
    this.#run(name, done, request.timeoutMs, (operation) => {
      this.#rows.check(request);
      this.#whenEntered(operation, () => this.#rows[direction](operation, worker - this.#options.firstWorker, request));
    });
  }

  /** A barrier of all workers of the job. */
  barrier(worker: number, done: Done): void {
    const name = (): string => `barrier of worker ${worker}`;
    this.#run(name, done, undefined, (operation) => {
      const local = worker - this.#options.firstWorker;
      this.#barriers[local] = this.#nextBarrier(local);
      operation.expect();
      this.#barrierWaits.push({ barrier: this.#barriers[local], operation });
      const all = Math.min(...this.#barriers);
      if (all <= this.#barrierSent) return;
      this.#barrierSent = all;
      this.#askBarrier(all);
    });
  }

  setOptimizer(worker: number, spec: OptimizerSpec, done: Done): void {
    // Pushes may follow before the servers have answered.
    this.#knowledge.refuses ||= spec.nonFinite === 'refuse';
    const name = (): string => `setOptimizer by worker ${worker}`;
    // The first one of a process that has come later is what the one before it has set as well.
    const keeps = this.#options.presence?.joins === true && !this.#hasSetOptimizer;
    this.#hasSetOptimizer = true;
    const question = { type: KVMessage.setOptimizer, fields: { spec, keeps }, repeats: true };
    this.#run(name, done, undefined, (operation) => operation.ask(this.#connections, question));
  }

  /** @param folder as the servers see it. */
  state(worker: number, direction: 'save' | 'load', folder: string, done: Done): void {
    const name = (): string => `${direction}State ${direction === 'save' ? 'to' : 'from'} ${folder} by worker ${worker}`;
    this.#run(name, done, undefined, (operation) => this.#states[direction](operation, folder));
  }

  info(worker: number, key: string, done: InfoDone): void {
    let read: (() => KeylessInfo) | undefined;
    const name = (): string => `info of '${key}' by worker ${worker}`;
    const finish: Done = (error) => done(error, error === undefined ? read?.() : undefined);
    this.#run(name, finish, undefined, (operation) => {
      this.#whenEntered(operation, () => {
        read = this.#transfers.info(operation, worker - this.#options.firstWorker, key);
      });
    });
  }

  /** This worker calls nothing any more; `done` when the servers know. */
  leave(worker: number, done: Done): void {
    // Nobody starts a server again: one that is gone would be waited for in vain.
    if (this.#jobFailure !== undefined) return done(this.#jobFailure);
    this.#left[worker - this.#options.firstWorker] = true;
    const name = (): string => `leave of worker ${worker}`;
    this.#run(name, done, undefined, (operation) => this.#sayLeft(operation), { broken: 'allowed' });
  }

  /** The state of the workers' calls, and what servers say that the oldest one waits for. */
  async facts(): Promise<WorkerFacts> {
    await [...this.#operations].at(0)?.inquire();
    const oldest = [...this.#operations].at(0)?.wait;
    const failure = this.#closed ? undefined : this.#failure?.message;
    const servers = this.#connections.map(({ load }) => load);
    return { calls: this.#calls, pending: this.#operations.size, failure, oldest, servers };
  }

  /** A region of `values` is about to be freed: no value of a pending operation lies in it. */
  forgetRegion(region: number): void {
    for (const connection of this.#connections) connection.forgetRegion(region);
  }

  /** The job has failed: pending operations fail with the error, and so does leaving; nothing works any more. */
  fail(error: ShoalError): void {
    this.#jobFailure = error;
    this.#breakDown(error);
  }

  /** Pending operations fail with the error. Idempotent. */
  close(error: ShoalError = new ShoalError('closed', 'the store was closed while the operation was under way')): void {
    this.#closed = true;
    this.#failure = new ShoalError('closed', 'the store is closed');
    for (const operation of [...this.#operations]) this.#end(operation, error);
    for (const connection of this.#connections) connection[Symbol.dispose]();
  }

  // ── parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Makes an operation of what `begin` asks for. What `begin` throws is its result. */
  #run(
    name: () => string,
    done: Done,
    timeoutMs: number | undefined,
    begin: (operation: ClientOperation) => void,
    { broken }: { readonly broken: 'allowed' | 'refused' } = { broken: 'refused' },
  ): void {
    if (this.#failure !== undefined && (broken === 'refused' || this.#closed)) return done(this.#failure);
    const operation = new ClientOperation({
      name,
      clock: this.#options.clock,
      timeoutMs: timeoutMs ?? this.#options.timeoutMs,
      localWorkers: this.#options.localWorkers,
      done,
      onTimeout: (late, error) => this.#giveUp(late, error),
      onFinished: (finished) => this.#operations.delete(finished),
    });
    this.#operations.add(operation);
    this.#calls++;
    operation.localWait = () => this.#local.describeWait(operation);
    operation.expect();
    try {
      begin(operation);
    } catch (thrown) {
      return operation.end(ShoalError.from(thrown));
    }
    for (const connection of this.#connections) connection.pump();
    return operation.arrive();
  }

  /** Where workers come and go, those that push in the same rounds count barriers by the rounds: one that has come later has the others'
   *  numbers. */
  #nextBarrier(local: number): number {
    const { presence, topology } = this.#options;
    const next = this.#barriers[local] + 1;
    const pushed = this.#rounds.last(local);
    if (presence === undefined || pushed === 0) return next;
    return Math.max(next, (topology.workerGroups === 1 ? pushed * barriersPerRound : this.#barriersBefore) + 1);
  }

  /** A process that has come later enters all rounds before it first reads or pushes values. */
  #whenEntered(operation: ClientOperation, begin: (operation: ClientOperation) => void): void {
    if (this.#entry === 'entered') return begin(operation);
    operation.expect();
    const starts = this.#entry.waiting === undefined;
    this.#entry.waiting ??= [];
    this.#entry.waiting.push((error) => {
      try {
        if (error === undefined && !operation.finished) begin(operation);
        operation.arrive(error);
      } catch (thrown) {
        operation.arrive(ShoalError.from(thrown));
      }
    });
    if (starts)
      this.#run(
        () => 'entry into the rounds',
        (error) => this.#onEntered(error),
        undefined,
        (entry) => this.#enter(entry),
      );
    return undefined;
  }

  #enter(operation: ClientOperation): void {
    const settled: number[][] = [];
    const { batches } = this.#directory;
    let [waiting, passed] = [this.#connections.length, 0];
    const answer = (server: number, msg: Msg | undefined): void => {
      const entered = answered(msg, Fields.entered);
      settled[server] = unpackCounts(entered.settled);
      if (server === 0) passed = entered.barrier;
      waiting--;
      if (waiting > 0) return;
      this.#firstRounds = entryRounds(settled, this.#directory);
      const first = this.#firstRounds.flat().reduce((most, round) => Math.max(most, round), 0);
      const isInStep = this.#options.topology.workerGroups === 1;
      // Where no round is settled yet, it takes part in all barriers.
      this.#barriersBefore = !isInStep ? passed : first > 1 ? first * barriersPerRound : 0;
      for (const [k, connection] of this.#connections.entries()) {
        const fields = { batches, rounds: packCounts(this.#firstRounds[k]), barrier: this.#barriersBefore };
        operation.ask([connection], { type: KVMessage.enter, fields, repeats: true });
      }
    };
    for (const [server, connection] of this.#connections.entries()) {
      operation.ask([connection], { type: KVMessage.enter, fields: { batches } }, (error, msg) => {
        try {
          if (error !== undefined) throw error;
          answer(server, msg);
        } catch (thrown) {
          operation.end(ShoalError.from(thrown));
        }
      });
    }
  }

  #onEntered(error: ShoalError | undefined): void {
    const waiting = this.#entry === 'entered' ? undefined : this.#entry.waiting;
    this.#entry = error === undefined ? 'entered' : { waiting: undefined };
    for (const begin of waiting ?? []) begin(error);
    for (const connection of this.#connections) connection.pump();
  }

  /** The last round that does not wait for this process. */
  #roundBefore(parameter: number): number {
    const piece = this.#directory.firstPiece[parameter];
    return (this.#firstRounds[this.#directory.pieceServer[piece]]?.[this.#directory.pieceSlot[piece]] ?? 1) - 1;
  }

  #askBarrier(barrier: number): void {
    const [connection] = this.#connections;
    const request = controlRequest(KVMessage.barrier, { barrier }, (error) => {
      const due = this.#barrierWaits.filter((wait) => wait.barrier <= barrier);
      this.#barrierWaits = this.#barrierWaits.filter((wait) => wait.barrier > barrier);
      for (const { operation } of due) operation.arrive(error);
    });
    for (const { operation } of this.#barrierWaits) operation.watch(request, connection);
    connection.ask(request);
  }

  #sayLeft(operation: ClientOperation): void {
    const there = this.#connections.filter((connection) => !connection.isOver);
    operation.ask(there, { type: KVMessage.leave, fields: { workers: this.#left.filter(Boolean).length } });
  }

  #greeting(): Record<string, unknown> {
    const { workerGroup, firstWorker, localWorkers, presence } = this.#options;
    const left = this.#left.filter(Boolean).length;
    const barrier = Math.max(this.#barrierSent, this.#barriersBefore);
    return { group: workerGroup, first: firstWorker, workers: localWorkers, barrier, left, joins: presence?.joins };
  }

  /** Ends an operation, whose memory may be used for other things from now on. */
  #end(operation: ClientOperation, error: ShoalError): void {
    for (const request of operation.requests.keys()) if (request instanceof ClientUnit) request.abandon();
    operation.end(error);
  }

  /** A deadline has passed. A pull is given up; a push that was not applied leaves a round that others wait for. */
  #giveUp(operation: ClientOperation, error: ShoalError): Set<ClientRequest> {
    let lost = this.#local.describeWait(operation) !== undefined;
    const recalled = new Set<ClientRequest>();
    for (const [request, connection] of operation.requests) {
      if (!connection.withdraw(request) && connection.recall(request)) recalled.add(request);
      if (request instanceof ClientUnit) request.abandon();
      lost ||= request.pushed !== undefined;
    }
    if (lost) this.#breakDown(error, operation);
    return recalled;
  }

  /** Rounds of this process will not be complete: everybody who waits for them is told, and nothing works here any more. */
  #breakDown(error: ShoalError, besides?: ClientOperation): void {
    this.#failure ??= new ShoalError('aborted', `the store cannot be used any more: ${error.message}`, { cause: error });
    for (const operation of [...this.#operations]) if (operation !== besides) this.#end(operation, error);
    for (const connection of this.#connections) {
      if (connection.isOver) continue;
      const fields = { workers: this.#left.filter(Boolean).length, reason: packError(error) };
      connection.ask(controlRequest(KVMessage.leave, fields, () => undefined));
    }
  }
}

function nameTransfer(entries: readonly TransferEntry[]): string {
  const pushes = entries.some(({ push }) => push !== undefined);
  const pulls = entries.some(({ out }) => out !== undefined);
  return pushes ? (pulls ? 'push and pull' : 'push') : 'pull';
}

function nameKeys(entries: readonly { readonly key: string }[]): string {
  const keys = entries.map(({ key }) => `'${key}'`);
  return listed(keys, keysNamed);
}
