/** A diagnosis: before a group fails for a mismatch or a timeout, its ranks exchange what each of them called, so that
 *  every rank's error names all of them. Bounded: ranks that do not answer in time are named as silent.
 *
 *  A timeout names these ranks, the most certain first:
 *
 *      left the group ─▶ says that it had not called, fewest calls first ─▶ did not answer ─▶ had not called, as an earlier call
 *      has not ended ─▶ called too late */
import { ShoalError } from '../../../base/errors.ts';
import { groupBy } from '../../../base/collections/lists.ts';

export interface Report {
  /** `all-reduce #17 float32[4] sum at train.ts:12`, or what the rank did instead. */
  readonly text: string;
  /** The rank has made the call in question. */
  readonly arrived: boolean;
  /** True if the rank made the call only after it was asked. */
  readonly late?: boolean;
  /** The number of calls of a rank that has not made this one. */
  readonly calls?: number;
  /** It has left the group. */
  readonly left?: boolean;
  /** It has not made this call, and an earlier one has not ended: it waits for somebody itself. */
  readonly waiting?: boolean;
}

/** A rank, by group rank, and what it said; undefined: nothing. */
interface Statement {
  readonly rank: number;
  readonly report: Report | undefined;
}

/** The call because of which the group is about to fail. */
interface Question {
  readonly code: 'mismatch' | 'timeout';
  readonly sequence: number;
  readonly timeoutMs: number;
  readonly operation: string;
  readonly globalRanks: readonly number[];
}

export class Diagnosis {
  readonly question: Question;
  readonly #reports: (Report | undefined)[];

  constructor(question: Question) {
    this.question = question;
    this.#reports = question.globalRanks.map(() => undefined);
  }

  add(rank: number, report: Report): void {
    this.#reports[rank] ??= report;
  }

  has(rank: number): boolean {
    return this.#reports[rank] !== undefined;
  }

  get complete(): boolean {
    return this.#reports.every((report) => report !== undefined);
  }

  /** The error as this rank's user sees it.
   *  @param hasAnnounced that rank's call has been seen here. */
  error(group: string, hasAnnounced: (rank: number) => boolean): ShoalError {
    const statements = this.#reports.map((report, rank): Statement => ({ rank, report }));
    const lines = statements
      .map(({ rank, report }) => `  rank ${this.#name(rank)}: ${report?.text ?? silence(hasAnnounced(rank))}`)
      .join('\n');
    const { code, sequence, timeoutMs, operation, globalRanks } = this.question;
    const fields = { sequence, operation };
    if (code === 'mismatch') {
      const odd = this.#odd(statements);
      const who =
        odd.length === 0
          ? ''
          : ` ${odd.length === 1 ? 'rank' : 'ranks'} ${this.#names(odd)} ${odd.length === 1 ? 'differs' : 'differ'} from the others`;
      const message = `ranks of group '${group}' disagree on collective #${sequence}:${who}\n${lines}\nEvery rank must make the same calls in the same order.`;
      return new ShoalError('mismatch', message, { ...fields, peer: odd.length === 1 ? globalRanks[odd[0].rank] : undefined });
    }
    const { who, first } = this.#missing(statements, hasAnnounced);
    const message = `collective #${sequence} of group '${group}' timed out after ${timeoutMs} ms, ${who}:\n${lines}`;
    const peer = first === undefined ? undefined : globalRanks[first.rank];
    return new ShoalError('timeout', message, { ...fields, timeoutMs, peer });
  }

  /** Ranks that do not call what most ranks call; nobody where most have nothing in common. Who has not called yet is of no mind. */
  #odd(statements: readonly Statement[]): readonly Statement[] {
    const known = statements.filter(({ report }) => report?.left === true || (report?.arrived === true && report.text.includes(' #')));
    const classes = groupBy(known, ({ report }) => report!.text.replace(/ at \S+:\d+$/, ''));
    const most = [...classes.values()].find((same) => 2 * same.length > known.length);
    return most === undefined ? [] : known.filter((statement) => !most.includes(statement));
  }

  /** The ranks that the others waited for, as far as that is known, and the one that is named. */
  #missing(statements: readonly Statement[], hasAnnounced: (rank: number) => boolean): { who: string; first: Statement | undefined } {
    const absent = statements.filter(({ report }) => report?.arrived === false).sort(byCertainty);
    const silent = statements.filter(({ rank, report }) => !report && !hasAnnounced(rank));
    const late = statements.filter(({ report }) => report?.late);
    const mute = statements.filter(({ rank, report }) => !report && hasAnnounced(rank));
    const parts = [
      absent.length > 0 && `waiting for rank ${this.#names(absent)}`,
      silent.length > 0 && `${absent.length > 0 ? '' : 'waiting '}perhaps for rank ${this.#names(silent)}, which did not answer`,
      late.length > 0 && `rank ${this.#names(late)} called it too late`,
    ].filter((part) => part !== false);
    const [idle, waiting] = [absent.filter(({ report }) => !report!.waiting), absent.filter(({ report }) => report!.waiting)];
    const first = [...idle, ...silent, ...waiting, ...late, ...mute].at(0);
    if (parts.length > 0) return { who: parts.join('; '), first };
    if (mute.length > 0) return { who: `all had called it, but rank ${this.#names(mute)} did not answer any more`, first };
    return { who: 'all ranks arrived, but the data did not', first };
  }

  #names(statements: readonly Statement[]): string {
    return statements.map(({ rank }) => this.#name(rank)).join(', ');
  }

  #name(rank: number): string {
    const global = this.question.globalRanks[rank];
    return global === rank ? `${rank}` : `${rank} (world rank ${global})`;
  }
}

function silence(hasAnnounced: boolean): string {
  return hasAnnounced ? 'did not answer, after it had called' : 'did not answer';
}

/** A rank that has left calls no more; whoever is furthest behind is the least likely to be merely slow. */
function byCertainty(a: Statement, b: Statement): number {
  return Number(b.report?.left ?? false) - Number(a.report?.left ?? false) || (a.report?.calls ?? 0) - (b.report?.calls ?? 0);
}
