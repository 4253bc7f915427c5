/** Rare requests of clients: declarations, optimiser, barriers, files, questions. Answers are JSON. */
import { isCount } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyObject, type Shape, type ValueOf } from '../../base/schema.ts';
import type { Msg } from '../../messaging/msg.ts';
import { packCounts, unpackCounts } from '../protocol/entry-rounds.ts';
import { packBatch, unpackBatch, type DeclaredParameter } from '../protocol/parameter-directory.ts';
import type { ServerBarrier } from './barrier.ts';
import type { ServerCheckpoints } from './checkpoints.ts';
import type { ServerFollowers } from './followers.ts';
import type { ServerSession } from './state/client-session.ts';
import { ServerFiles } from './files.ts';
import type { ServerGroups } from './groups.ts';
import type { ServerState } from './state/server-state.ts';
import { checkControl, Fields, packError, packNotice, readControl, unpackError, type WorkerWait } from '../protocol/wire-control.ts';
import { KVMessage } from '../protocol/wire.ts';

/** The parts of a server that its control acts on. */
export interface ControlledParts {
  readonly barrier: ServerBarrier;
  readonly followers: ServerFollowers;
  readonly groups: ServerGroups;
  readonly checkpoints: ServerCheckpoints;
}

/** Requests that only worker 0 may make. They are numbered, so that a repeated request is not done again. */
const configurations: readonly number[] = [KVMessage.declare, KVMessage.commit, KVMessage.setOptimizer, KVMessage.loadState];

export class ServerControl {
  readonly #state: ServerState;
  readonly #parts: ControlledParts;
  readonly #files: ServerFiles;
  readonly #lookups: { session: ServerSession; request: number; epoch: number; known: number }[] = [];
  #served = false;

  constructor(state: ServerState, parts: ControlledParts) {
    this.#state = state;
    this.#parts = parts;
    this.#files = new ServerFiles(state, parts.groups);
  }

  /** @throws ShoalError `protocol` for a message that no client sends; other errors go into the answer. */
  receive(session: ServerSession, msg: Msg, how: { readonly attach: 'allowed' | 'refused' }): void {
    const fields = readControl(msg.frames[0], anyObject);
    const request = msg.targetValue;
    try {
      if (configurations.includes(msg.type)) {
        if (session.member.firstWorker !== 0) throw new ShoalError('usage', 'only worker 0 may do that');
        if (request <= session.lastConfiguration) return this.#done(session, request);
      }
      this.#handle(session, msg, fields, how);
    } catch (error) {
      const failure = ShoalError.from(error);
      this.#state.actions.reply(session, request, { error: packError(failure) });
      if (failure.code === 'protocol') throw failure;
    }
  }

  #handle(session: ServerSession, msg: Msg, fields: object, how: { readonly attach: 'allowed' | 'refused' }): void {
    const request = msg.targetValue;
    const read = <T>(shape: Shape<T>): T => checkControl(fields, shape);
    switch (msg.type) {
      case KVMessage.announce:
        return this.#announce(session, request, read(Fields.announce).regions, how.attach);
      case KVMessage.detach:
        for (const region of read(Fields.detach).regions) {
          session.regions.delete(region);
          this.#state.options.valuesOf(session.address).detach(region);
        }
        return this.#done(session, request);
      case KVMessage.declare:
        this.#declare(session, unpackBatch(read(Fields.declare).batch));
        session.lastConfiguration = request;
        return this.#done(session, request);
      case KVMessage.commit:
        if (!session.declaresAgain) this.#state.commit();
        session.lastConfiguration = request;
        this.#done(session, request);
        return this.committed();
      case KVMessage.lookup:
        this.#lookups.push({ session, request, epoch: msg.targetVersion, known: read(Fields.lookup).known });
        return this.#answerLookups();
      case KVMessage.setOptimizer: {
        const { spec, keeps } = read(Fields.setOptimizer);
        if (keeps !== true || this.#state.optimizerSpec === undefined) this.#state.setOptimizer(spec);
        session.lastConfiguration = request;
        // Pushes may have waited for it.
        this.#state.actions.onCommit();
        return this.#parts.followers.spread(() => {
          this.#state.actions.reply(session, request, packNotice(this.#state.optimizerNotice));
        });
      }
      case KVMessage.enter:
        return this.#enter(session, request, read(Fields.enter));
      case KVMessage.saveState:
        return this.#files.save(session, request, read(Fields.state));
      case KVMessage.listState:
        return this.#files.list(session, request, read(Fields.listState).folder);
      case KVMessage.prepareState:
        return this.#files.prepare(session, request, read(Fields.state));
      case KVMessage.loadState:
        return this.#files.load(session, request, read(Fields.state));
      case KVMessage.inquire:
        return this.#inquire(session, request, read(Fields.inquire).request);
      case KVMessage.barrier:
        return this.#parts.barrier.arrive(session, request, read(Fields.barrier).barrier);
      case KVMessage.leave:
        return this.#leave(session, request, read(Fields.leave));
      default:
        throw new ShoalError('protocol', `a message of the unknown type ${msg.type}; run the same Shoal everywhere`);
    }
  }

  /** A batch can be used, because its client said so or because another server group's values have come. */
  committed(): void {
    this.#state.sync.retryEarly();
    this.#parts.followers.onCommit();
    this.#parts.groups.progress();
    this.#answerLookups();
    this.#state.actions.onCommit();
  }

  /** Takes the number of workers that a client says have left, in `hello` and `leave`. */
  left(session: ServerSession, workers: number, reason?: ShoalError): void {
    session.workersLeft = Math.max(session.workersLeft, workers);
    const isGone = session.workersLeft >= session.member.workers || reason !== undefined;
    if (isGone && this.#state.options.elastic === true) {
      this.#state.dismiss(session, reason);
      this.#parts.barrier.update();
    } else if (isGone) {
      session.member.gone ??= reason ?? new ShoalError('aborted', 'has left the store');
      if (reason !== undefined) session.member.broken = true;
      this.#state.transfers.failStuck(session.rounds);
    }
    let gone = 0;
    for (const { workersLeft, replaced } of this.#state.sessions.values()) gone += replaced ? 0 : workersLeft;
    if (gone < this.#state.workers || this.#served) return;
    this.#served = true;
    this.#state.options.onServed?.();
  }

  /** A process that has come later declares what is there already, in the same way as the one before it. */
  #declare(session: ServerSession, batch: readonly DeclaredParameter[]): void {
    const { directory, committed } = this.#state;
    const batches = Array.from({ length: directory.batches }, (_, k) => directory.batch(k));
    const same = batches.findIndex((each) => session.joins && each.some(({ key }) => key === batch[0]?.key));
    session.declaresAgain = same >= 0 && same < committed;
    if (same < 0) return this.#state.declare(batch);
    if (JSON.stringify(packBatch(batches[same])) === JSON.stringify(packBatch(batch))) return undefined;
    const message = `'${batch[0].key}' was initialised together with others, or as another type; worker 0 that returns calls init as it was called first`;
    throw new ShoalError('mismatch', message);
  }

  /** Lets a client into the rounds: without `rounds` from now on, and it is told how far they are; else from `rounds` on. */
  #enter(session: ServerSession, request: number, { rounds, barrier = 0 }: ValueOf<typeof Fields.enter>): void {
    const state = this.#state;
    state.transfers.enter(session, rounds && unpackCounts(rounds));
    session.barrier = Math.max(session.barrier, barrier);
    state.dirty = true;
    this.#parts.barrier.update();
    state.actions.reply(session, request, { settled: packCounts(session.rounds.settled), barrier: this.#parts.barrier.passed });
  }

  #announce(session: ServerSession, request: number, regions: readonly (readonly unknown[])[], attach: 'allowed' | 'refused'): void {
    const remote = this.#state.options.valuesOf(session.address);
    const attached = regions.map((entry) => {
      const { region, handle, bytes } = readRegion(entry);
      if (!remote.attach(region, handle, bytes)) {
        this.#state.actions.onUnattached();
        return false;
      }
      if (attach === 'allowed') session.regions.set(region, { handle, bytes });
      return attach === 'allowed';
    });
    this.#state.actions.reply(session, request, { attached });
  }

  #answerLookups(): void {
    const { committed, directory, options } = this.#state;
    const waiting = this.#lookups.splice(0);
    for (const lookup of waiting) {
      const { session, request, known } = lookup;
      if (session.epoch !== lookup.epoch) continue;
      if (committed <= known) {
        this.#lookups.push(lookup);
        continue;
      }
      const from = Array.from({ length: committed - known }, (_, k) => known + k);
      const batches = options.server === 0 ? from.map((k) => packBatch(directory.batch(k))) : undefined;
      this.#state.actions.reply(session, request, { committed, batches });
    }
  }

  /** `about` 0: the client holds its requests back, because it waits for a snapshot. */
  #inquire(session: ServerSession, request: number, about: number): void {
    const { text, workers }: WorkerWait = about === 0 ? { text: '' } : this.#describeWait(session, about);
    const texts = [text, this.#parts.checkpoints.describe()];
    this.#state.actions.reply(session, request, { text: texts.filter((each) => each !== '').join('; '), workers });
  }

  #describeWait(session: ServerSession, about: number): WorkerWait {
    const { transfers, committed, committedSlots, slots, options } = this.#state;
    const request = [...transfers.pending].find((pending) => pending.session === session && pending.id === about);
    const rounds = request && transfers.describeWait(request);
    if (rounds !== undefined && rounds.text !== '') return rounds;
    let text = session.blocked.length > 0 ? `parameters of batch ${committed} have not been declared by worker 0` : '';
    for (const lookup of this.#lookups) {
      if (lookup.session !== session || lookup.request !== about) continue;
      text = options.group === 0 ? 'worker 0 has not initialised the parameter' : 'its first value has not come from server group 0';
    }
    if (text === '' && committedSlots < slots.count) text = 'worker 0 has not finished init';
    text ||= this.#parts.groups.describe();
    return text === '' ? this.#parts.barrier.describe() : { text };
  }

  #leave(session: ServerSession, request: number, { workers, reason }: ValueOf<typeof Fields.leave>): void {
    this.left(session, workers, unpackError(reason));
    this.#done(session, request);
  }

  #done(session: ServerSession, request: number): void {
    this.#state.actions.reply(session, request, {});
  }
}

export function readRegion(entry: readonly unknown[]): { region: number; handle: string; bytes: number } {
  const [region, handle, bytes] = entry;
  if (!isCount(region) || !isCount(bytes) || typeof handle !== 'string')
    throw new ShoalError('protocol', 'an announcement of memory without number, handle and size');
  return { region, handle, bytes };
}
