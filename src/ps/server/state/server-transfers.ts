/** Puts, updates and gets at a server: a message is checked whole before it has any effect; pushes go to their rounds;
 *  complete rounds are applied; waiting clients get values. Nothing is polled. */
import { ShoalError } from '../../../base/errors.ts';
import type { Msg } from '../../../messaging/msg.ts';
import type { Applier } from './apply.ts';
import type { ServerParts } from './server-options.ts';
import type { SourceReader } from './sources.ts';
import { describeWorkers, workersOf, type Contribution, type GroupRounds, type Waiter } from './rounds.ts';
import type { RunSource, ServerRequest, ServerSession } from './client-session.ts';
import type { ServerSlots } from './slots.ts';
import { gatherRows } from '../../values/sparse-rows.ts';
import type { WorkerWait } from '../../protocol/wire-control.ts';
import { decodeRuns, KVMessage, SourceKind, TargetKind, type Run, type Transfer } from '../../protocol/wire.ts';

/** Most bytes of gradients held for incomplete rounds, per client. */
const pendingBytesMax = 2 ** 30;
/** Waits that are described by name. */
const waitsMax = 3;

/** The standing of the slots of a run: the round is settled; it was pushed, and this run only waits for it; this run pushes it again, over
 *  another connection and perhaps from other memory; or for the first time. */
type Standing = 'settled' | 'known' | 'again' | 'next';

export class ServerTransfers {
  readonly #parts: ServerParts;
  readonly #slots: ServerSlots;
  readonly #applier: Applier;
  readonly #sources: SourceReader;
  /** Several worker groups push to the same parameters: a push without optimiser would undo the others'. */
  readonly #isShared: boolean;
  readonly groups = new Map<number, GroupRounds<ServerRequest>>();
  /** Requests that wait, in the order they came. */
  readonly pending = new Set<ServerRequest>();

  constructor(parts: ServerParts, applier: Applier, sources: SourceReader) {
    this.#parts = parts;
    this.#slots = parts.slots;
    this.#applier = applier;
    this.#sources = sources;
    this.#isShared = parts.options.topology.workerGroups > 1;
  }

  grow(): void {
    for (const group of this.groups.values()) group.grow(this.#slots.count);
  }

  /** @throws ShoalError `protocol`; then nothing has changed, and the message is given back. */
  decode(msg: Msg): Transfer {
    try {
      return decodeRuns(msg.frames);
    } catch (thrown) {
      msg.release();
      throw thrown;
    }
  }

  /** First values of parameters that nobody can use yet. @throws ShoalError `protocol`. */
  put(session: ServerSession, msg: Msg, transfer: Transfer, firstSlot: number): void {
    const { runs } = this.#sources.resolve(session, msg, transfer);
    for (const { run, source } of runs) {
      if (run.firstSlot < firstSlot && session.joins) return;
      if (run.firstSlot < firstSlot || source === undefined) throw new ShoalError('protocol', 'a put to a parameter that is in use');
    }
    for (const { run, source } of runs) this.#slots.writable(run.firstSlot, run.firstSlot + run.slots).set(source!.bytes);
  }

  /** Takes an update or get. It may be answered before this returns. @throws ShoalError `protocol`; nothing has changed. */
  take(session: ServerSession, msg: Msg, transfer: Transfer): ServerRequest {
    const group = session.rounds;
    const { runs, payload } = this.#resolve(session, msg, transfer);
    const request: ServerRequest = {
      session,
      id: msg.targetValue,
      epoch: msg.targetVersion,
      msg,
      runs,
      payload,
      waiting: runs.reduce((sum, { run }) => sum + run.slots, 0),
      unsettled: 0,
      error: undefined,
      answered: false,
      taking: true,
    };
    const refusal = this.#refusal(session, group, request);
    if (refusal !== undefined) {
      request.error = refusal;
      this.#answer(request);
      request.taking = false;
      this.#letGo(request);
      return request;
    }
    this.pending.add(request);
    for (const k of runs.keys()) this.#takeRun(group, request, k);
    if (request.unsettled > 0) {
      session.hold(request);
      session.pendingBytes += msg.size;
    }
    for (const { run, source } of runs) if (source !== undefined) this.#settle(group, run.firstSlot, run.firstSlot + run.slots);
    for (const served of runs) served.source = undefined;
    if (!request.answered) this.failStuck(group);
    request.taking = false;
    this.#letGo(request);
    return request;
  }

  #resolve(session: ServerSession, msg: Msg, transfer: Transfer): Pick<ServerRequest, 'runs' | 'payload'> {
    try {
      return this.#sources.resolve(session, msg, transfer);
    } catch (thrown) {
      msg.release();
      throw thrown;
    }
  }

  /** Rounds do not wait for the client any more. A client that is lost takes with it what it has pushed to rounds that are open. */
  dismiss({ rounds, member }: ServerSession, how: 'left' | 'lost'): void {
    for (let slot = 0; how === 'lost' && slot < this.#slots.count; slot++) {
      for (const contribution of [member.held[slot], ...(member.early.get(slot) ?? [])]) this.#release(contribution, 1);
      member.held[slot] = undefined;
      member.early.delete(slot);
    }
    member.absent = true;
    this.#recount(rounds);
  }

  /** The client is in all rounds from now on. With `first`: from these ones on, by slot. */
  enter({ rounds, member }: ServerSession, first: readonly number[] = []): void {
    for (let slot = 0; slot < this.#slots.count; slot++) {
      const settled = rounds.settled[slot];
      const before = (first[slot] ?? 0) - 1;
      if (before >= 0 && before < settled) member.missed.set(slot, settled);
      member.received[slot] = Math.max(settled, before);
    }
    member.absent = false;
    this.#recount(rounds);
  }

  #recount(rounds: GroupRounds<ServerRequest>): void {
    rounds.recount();
    this.#settle(rounds, 0, this.#slots.count);
  }

  /** Answers requests that wait for somebody who will not come, and gives their rounds up: they fail for whoever comes later, too. */
  failStuck(group: GroupRounds<ServerRequest>): void {
    const gone = group.members.filter((member) => member.gone !== undefined);
    const stuck: { readonly slot: number; readonly round: number; readonly error: ShoalError }[] = [];
    for (const request of gone.length === 0 ? [] : this.pending) {
      if (request.session.member.gone !== undefined || request.session.rounds !== group) continue;
      for (const { slot, round } of this.#awaited(group, request)) {
        const missing = gone.find((member) => member.broken || member.received[slot] < round);
        if (missing === undefined) continue;
        const { code, message } = missing.gone!;
        const what = `round ${round} of ${this.#slots.describe(slot)} cannot be completed`;
        const error = new ShoalError(code, `${what}: ${describeWorkers(missing)}: ${message}`);
        stuck.push({ slot, round, error });
        request.error ??= error;
      }
      if (request.error !== undefined) this.#answer(request);
    }
    for (const { slot, round, error } of stuck) {
      const isStuck = ({ broken, received }: (typeof gone)[number]): boolean => broken || received[slot] <= group.settled[slot];
      while (group.settled[slot] < round && gone.some(isStuck)) this.#settleStretch(group, slot, slot + 1, error);
    }
  }

  /** Requests of the client, or one of them, end with the error: nothing is written for them any more. */
  failOf(session: ServerSession, error: ShoalError, id?: number): void {
    for (const request of this.pending) {
      if (request.session !== session || (id !== undefined && request.id !== id)) continue;
      request.error ??= error;
      this.#answer(request);
    }
  }

  /** Names the workers that a request waits for; empty when there are none. */
  describeWait(request: ServerRequest): WorkerWait {
    const group = request.session.rounds;
    const texts: string[] = [];
    const workers: number[] = [];
    for (const { slot, round } of this.#awaited(group, request)) {
      const { members, strangers } = group.missing(slot, round);
      const who = [...members.map(describeWorkers), ...strangers.map((worker) => `worker ${worker}`)];
      const verb = who.length === 1 && !who[0].startsWith('workers') ? 'has' : 'have';
      if (who.length > 0) texts.push(`round ${round} of ${this.#slots.describe(slot)}: ${who.join(', ')} ${verb} not pushed`);
      workers.push(...members.flatMap(workersOf), ...strangers);
      if (texts.length === waitsMax) return { text: [...texts, 'and others'].join('; '), workers };
    }
    return { text: texts.join('; '), workers };
  }

  /** The client has another connection: it asks again for whatever it still wants. */
  abandon(session: ServerSession): void {
    for (const request of this.pending) {
      if (request.session !== session) continue;
      request.answered = true;
      this.pending.delete(request);
      this.returnLoans(request);
      this.#letGo(request);
    }
    for (const group of this.groups.values()) group.dropWaiters((request) => request.answered);
  }

  // ── taking ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /** The reason why a request cannot be taken at all. */
  #refusal(session: ServerSession, group: GroupRounds<ServerRequest>, { runs, msg }: ServerRequest): ShoalError | undefined {
    if (msg.type === KVMessage.get) return undefined;
    const slots = this.#slots;
    for (const { run } of runs) {
      const { source, firstSlot, slots: count, round } = run;
      if (source === SourceKind.none || source === SourceKind.rowNumbers) continue;
      if (this.#isShared && this.#applier.optimizer === undefined) {
        const message = `a push to ${slots.describe(firstSlot)} without optimiser: worker groups would overwrite each other; call setOptimizer first`;
        return new ShoalError('usage', message);
      }
      for (let slot = firstSlot; slot < firstSlot + count; slot++) {
        const came = session.member.received[slot];
        if (round > came + 1)
          return new ShoalError('aborted', `round ${round} of ${slots.describe(slot)} follows round ${came}: an earlier push failed`);
        if (round === came + 1 && round > group.settled[slot] + 1 && session.pendingBytes > pendingBytesMax) {
          const ahead = `${describeWorkers(session.member)} is at round ${round} of ${slots.describe(slot)}, others at ${group.settled[slot] + 1}`;
          return new ShoalError('out-of-memory', `${ahead}; the server holds at most ${pendingBytesMax} bytes for later`, {
            bytes: pendingBytesMax,
          });
        }
      }
    }
    return undefined;
  }

  #takeRun(group: GroupRounds<ServerRequest>, request: ServerRequest, index: number): void {
    const { run, source, target } = request.runs[index];
    const end = run.firstSlot + run.slots;
    const { member } = request.session;
    let from = run.firstSlot;
    while (from < end) {
      const standing = standingOf(group, member.received, from, run, source);
      let to = from + 1;
      while (to < end && standingOf(group, member.received, to, run, source) === standing) to++;
      if (standing === 'next' || standing === 'again') {
        const contribution: Contribution<ServerRequest> = {
          request,
          run: index,
          base: this.#slots.start[run.firstSlot],
          source: source!.bytes,
          rows: source!.rows,
          nonFinite: run.nonFinite,
          target,
        };
        for (let slot = from; slot < to; slot++) {
          if (standing === 'next') group.contribute(member, slot, run.round, contribution);
          else this.#release(group.contributeAgain(member, slot, run.round, contribution), 1);
        }
        request.unsettled += to - from;
      } else {
        const waiter: Waiter<ServerRequest> = { request, run: index, from, to, round: run.round, next: from };
        if (!group.wait(waiter)) this.#deliver(group, waiter);
      }
      from = to;
    }
  }

  // ── settling ───────────────────────────────────────────────────────────────────────────────────────────────────

  #settle(group: GroupRounds<ServerRequest>, from: number, to: number): void {
    const slots = this.#slots;
    let at = group.nextComplete(from, to);
    while (at < to) {
      const end = group.stretchEnd(at, to, slots.slab, slots.steps);
      const more = this.#settleStretch(group, at, end);
      at = group.nextComplete(more ? at : end, to);
    }
  }

  /** @param givenUp why the round of the only slot is not applied. @returns true when later rounds of the stretch may be complete now. */
  #settleStretch(group: GroupRounds<ServerRequest>, from: number, to: number, givenUp?: ShoalError): boolean {
    const contributions: Contribution<ServerRequest>[] = [];
    for (const { held } of group.members) {
      const contribution = held[from];
      if (contribution !== undefined) contributions.push(contribution);
    }
    let error: ShoalError | undefined;
    try {
      const broken = group.members.find((member) => member.broken);
      if (givenUp !== undefined || broken?.gone !== undefined) throw givenUp ?? broken?.gone;
      if (contributions.length > 0) this.#applier.apply(from, to, contributions);
    } catch (thrown) {
      if (to - from > 1) {
        // One bad parameter does not spoil its neighbours.
        let more = false;
        for (let slot = from; slot < to; slot++) if (this.#settleStretch(group, slot, slot + 1)) more = true;
        return more;
      }
      error = ShoalError.from(thrown);
    }
    const more = group.settle(from, to);
    if (error !== undefined) group.refused.set(from, { round: group.settled[from], error });
    else if (contributions.length > 0) this.#parts.applied(from, to);
    for (const { request, run } of contributions) {
      this.#release({ request }, to - from);
      if (!request.answered) this.#satisfy(group, request, run, from, to, error);
    }
    for (const waiter of group.takeWaiters(from, to)) if (!group.wait(waiter)) this.#deliver(group, waiter);
    return more;
  }

  /** Slots of a request are settled, or have come again with another. */
  #release(contribution: { readonly request: ServerRequest } | undefined, slots: number): void {
    if (contribution === undefined) return;
    const { request } = contribution;
    request.unsettled -= slots;
    if (request.unsettled > 0) return;
    request.session.pendingBytes -= request.msg.size;
    this.#letGo(request);
  }

  /** Gives back what the backend of a message has lent, as nobody reads the message any more. */
  #letGo(request: ServerRequest): void {
    if (request.answered && request.unsettled === 0 && !request.taking) request.msg.release();
  }

  /** Messages that were made of values do not need them any more. */
  returnLoans({ runs }: ServerRequest): void {
    for (const served of runs) {
      if (served.loan === undefined) continue;
      this.#slots.giveBack(served.run.firstSlot, served.loan);
      served.loan = undefined;
    }
  }

  /** The values that the waiter's stretch has now. */
  #deliver(group: GroupRounds<ServerRequest>, { request, run: index, from, to, round }: Waiter<ServerRequest>): void {
    if (request.answered) return;
    const slots = this.#slots;
    const { run, target } = request.runs[index];
    if (target !== undefined && run.source === SourceKind.rowNumbers) {
      const values = slots.values(from, to);
      target.set(gatherRows(values, this.#sources.rowNumbers(request.msg, run), target.byteLength / run.rows));
    } else if (target !== undefined) {
      const offset = slots.start[from] - slots.start[run.firstSlot];
      const values = slots.values(from, to);
      target.subarray(offset, offset + values.byteLength).set(values);
      slots.counters.bytesCopied += values.byteLength;
    }
    let error: ShoalError | undefined;
    const { member } = request.session;
    if (run.source !== SourceKind.none && group.refused.size + member.missed.size > 0) {
      for (let slot = from; slot < to; slot++) {
        const refused = group.refused.get(slot);
        if (refused?.round === round) ({ error } = refused);
        else if (round <= (member.missed.get(slot) ?? 0))
          error = new ShoalError('aborted', `round ${round} of ${slots.describe(slot)} was given up without ${describeWorkers(member)}`);
      }
    }
    this.#satisfy(group, request, index, from, to, error);
  }

  #satisfy(
    group: GroupRounds<ServerRequest>,
    request: ServerRequest,
    run: number,
    from: number,
    to: number,
    error: ShoalError | undefined,
  ): void {
    const { state } = request.runs[run];
    const { version, workers } = this.#slots;
    for (let slot = from; slot < to; slot++) {
      if (version[slot] < state.version) state.version = version[slot];
      if (workers[slot] < state.workers) state.workers = workers[slot];
      if (group.settled[slot] < state.settled) state.settled = group.settled[slot];
    }
    this.#lend(request, run);
    request.error ??= error;
    request.waiting -= to - from;
    if (request.waiting === 0) this.#answer(request);
  }

  /** The values that a run has now, for a frame of the answer. */
  #lend(request: ServerRequest, index: number): void {
    const served = request.runs[index];
    const { target, firstSlot } = served.run;
    if (target !== TargetKind.frame || served.frame !== undefined || this.#sources.writes === 'nothing') return;
    const memory = this.#slots.lend(firstSlot);
    served.loan = memory;
    served.frame = memory.bytes;
  }

  #answer(request: ServerRequest): void {
    request.answered = true;
    this.pending.delete(request);
    this.#parts.actions.respond(request);
    this.#letGo(request);
  }

  /** Slots that keep a request waiting, and the rounds it waits for. */
  *#awaited(group: GroupRounds<ServerRequest>, { runs }: ServerRequest): Iterable<{ slot: number; round: number }> {
    for (const { run } of runs) {
      const { firstSlot, slots, round } = run;
      for (let slot = firstSlot; slot < firstSlot + slots; slot++) if (group.settled[slot] < round) yield { slot, round };
    }
  }
}

function standingOf(
  group: GroupRounds<ServerRequest>,
  received: readonly number[],
  slot: number,
  run: Run,
  source: RunSource | undefined,
): Standing {
  if (run.round <= group.settled[slot]) return 'settled';
  if (source === undefined) return 'known';
  return run.round <= received[slot] ? 'again' : 'next';
}
