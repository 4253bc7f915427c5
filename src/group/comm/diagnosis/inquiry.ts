/** The exchange of reports before a group fails with a mismatch or a timeout: the rank that notices sends a report of its call, every other
 *  rank replies with its own, and when all reports are in, or time is up, each rank makes the same error from them.
 *
 *      begin ─▶ own report, told to all ─▶ reports of the others ─▶ conclude (all are in, or `answerMs` passed)
 *
 *  One inquiry at most is held per group: its end is the end of the group. It must not know how a disagreement is noticed. */
import { setServedTimer, type Clock } from '../../../base/clock.ts';
import type { ShoalError } from '../../../base/errors.ts';
import type { CallHistory } from './call-history.ts';
import { Diagnosis } from './diagnosis.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';
import type { ControlMessage } from '../links/control-message.ts';

/** The time that a rank that is asked waits for its own call before it says that it had not made it. Of ranks that are merely slow, on a
 *  busy host, most make it in that time, and are not taken for the one that all wait for. */
export const lateMs = 500;
/** The time that ranks have to say what they called before an error is made without them: more than a rank is kept from answering
 *  because its host is busy, so that only those are waited out that cannot answer. */
export const answerMs = lateMs + 2000;

export interface InquiryOptions {
  readonly group: GroupSpec;
  readonly clock: Clock;
  readonly history: CallHistory;
  /** Calls each rank made before it left, by group rank; undefined while it stays. */
  readonly callsAtLeave: readonly (number | undefined)[];
  /** The rank's call number `sequence` has been seen here. */
  readonly hasAnnounced: (rank: number, sequence: number) => boolean;
  /** The wait that keeps this rank from making the call, as far as that is known: another call, a transfer. */
  readonly wait: () => { readonly text: string } | undefined;
  /** False before all ranks of the group are there, and once it has ended: nothing is asked or concluded then. */
  readonly isOpen: () => boolean;
  /** Sends to every other rank of the group. */
  readonly tellOthers: (message: ControlMessage) => void;
  /** Called once, with the error that names every rank. */
  readonly onConcluded: (error: ShoalError) => void;
}

export class Inquiry {
  readonly #options: InquiryOptions;
  #diagnosis: Diagnosis | undefined;
  /** This rank had not made the call when it was asked. */
  #late = false;

  constructor(options: InquiryOptions) {
    this.#options = options;
  }

  get underway(): boolean {
    return this.#diagnosis !== undefined;
  }

  /** The rank has said its part: what it does from now on has its reason in this inquiry. */
  hasHeardOf(rank: number): boolean {
    return this.#diagnosis?.has(rank) ?? false;
  }

  /** Asks all ranks about call number `sequence`, unless an inquiry is underway. */
  begin(code: 'mismatch' | 'timeout', sequence: number, timeoutMs: number): void {
    const { group, clock, history, callsAtLeave, isOpen } = this.#options;
    if (this.#diagnosis || !isOpen()) return;
    const call = history.find(sequence);
    const diagnosis = new Diagnosis({ code, sequence, timeoutMs, operation: call?.kind ?? 'collective', globalRanks: group.globalRanks });
    this.#diagnosis = diagnosis;
    callsAtLeave.forEach((calls, rank) => {
      if (calls === undefined) return;
      const text = `left the group after ${calls} ${calls === 1 ? 'call' : 'calls'}`;
      diagnosis.add(rank, { text, arrived: calls > sequence, calls, left: true });
    });
    this.#late = history.called <= sequence;
    // The call that this rank makes instead is an answer to a mismatch. A call that its main thread is still trying to make by
    // itself is on its way here, with its name and place.
    if (call || (this.#late && code === 'mismatch')) this.#reportOwn();
    else setServedTimer(clock, lateMs, () => this.#reportOwn());
    setServedTimer(clock, answerMs, () => this.#conclude());
    this.#concludeIfComplete();
  }

  /** This rank has made its call number `sequence`. */
  onCalled(sequence: number): void {
    if (this.#diagnosis?.question.sequence === sequence) this.#reportOwn();
  }

  onReport(rank: number, message: Extract<ControlMessage, { type: 'report' }>): void {
    const { code, sequence, timeoutMs } = message;
    // Ranks may notice at different calls. They parted at the first of these, and all come to ask about that.
    if (this.#diagnosis && sequence < this.#diagnosis.question.sequence) this.#diagnosis = undefined;
    this.begin(code, sequence, timeoutMs);
    if (this.#diagnosis?.question.sequence === sequence) this.#diagnosis.add(rank, message);
    this.#concludeIfComplete();
  }

  /** Tells the others, once, what this rank called. */
  #reportOwn(): void {
    const { group, history, isOpen, tellOthers, wait } = this.#options;
    const diagnosis = this.#diagnosis;
    if (!diagnosis || diagnosis.has(group.rank) || !isOpen()) return;
    const { code, sequence, timeoutMs } = diagnosis.question;
    const report = history.report(sequence);
    const other = report.arrived ? undefined : wait();
    const text = other === undefined ? report.text : `${report.text}; it waits in ${other.text}`;
    const own = { ...report, text, late: report.arrived && this.#late, waiting: other !== undefined };
    diagnosis.add(group.rank, own);
    tellOthers({ type: 'report', group: group.id, code, sequence, timeoutMs, ...own });
    this.#concludeIfComplete();
  }

  #concludeIfComplete(): void {
    if (this.#diagnosis?.complete) this.#conclude();
  }

  #conclude(): void {
    const { group, isOpen, hasAnnounced, onConcluded } = this.#options;
    const diagnosis = this.#diagnosis;
    if (diagnosis && isOpen()) onConcluded(diagnosis.error(group.name, (rank) => hasAnnounced(rank, diagnosis.question.sequence)));
  }
}
