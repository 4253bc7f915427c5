/** The training step of a run, as its collectives show it: the time from one call to the next of the same place in the script, for the
 *  calls that take most of the time. What a step is made of says what would make it shorter.
 *
 *      all-reduce at train.ts:31   ▓▓▓        ▓▓▓        ▓▓▓
 *                                  │◀─ step ─▶│◀─ step ─▶│        shares of communication and of waiting: between the first and the last */
import type { ChromeEvent } from '../../trace/chrome.ts';
import { getOrMake } from '../../base/collections/lists.ts';
import { median } from '../../base/numbers.ts';
import type { ReportData, ReportOperation, ReportStraggler, ReportTrainingStep } from './data/report-data.ts';
import { kindOf, numberOf, textOf } from './span-argument.ts';

/** Fewer calls are not a training. */
const callsMin = 5;
/** Calls of a rank that are looked at. */
const callsMax = 500_000;
/** Below, waiting or communication is not what makes a step long. */
const shareMin = 0.1;
/** Calls up to this size cost their latency, not their bytes. */
const smallBytes = 65_536;

/** Calls of one place in the script that are alike. */
interface Calls {
  readonly name: string;
  totalUs: number;
  /** The start of each call, by its number. */
  readonly starts: Map<number, number>;
}

/** Time that spans cover. */
interface Covered {
  within(fromUs: number, toUs: number): number;
}

export class TrainingSteps {
  /** The calls of each rank by place, until all of its spans have been added. */
  readonly #calls = new Map<number, { readonly byPlace: Map<string, Calls>; count: number }>();
  readonly #found: ReportTrainingStep[] = [];

  /** @param span of a collective. */
  add(span: ChromeEvent): void {
    const number = numberOf(span, 'sequence');
    if (number === undefined) return;
    const rank = getOrMake(this.#calls, span.pid, () => ({ byPlace: new Map<string, Calls>(), count: 0 }));
    const [site, name, bytes] = [textOf(span, 'site'), textOf(span, 'name'), numberOf(span, 'bytes')];
    const key = [textOf(span, 'group'), kindOf(span), site, name, bytes].join('\n');
    const calls = getOrMake(rank.byPlace, key, () => {
      const place = site === undefined ? (name === undefined ? '' : ` ${name}`) : ` at ${site}`;
      return { name: `${kindOf(span)}${place}`, totalUs: 0, starts: new Map<number, number>() };
    });
    calls.totalUs += span.dur ?? 0;
    const known = calls.starts.get(number);
    if (known === undefined && rank.count++ >= callsMax) return;
    calls.starts.set(number, Math.min(known ?? Infinity, span.ts));
  }

  endRank(rank: number, communicating: Covered, waiting: Covered): void {
    const byPlace = this.#calls.get(rank)?.byPlace.values() ?? [];
    this.#calls.delete(rank);
    const often = [...byPlace].filter(({ starts }) => starts.size >= callsMin).sort((a, b) => b.totalUs - a.totalUs);
    if (often.length === 0) return;
    const [{ name, starts }] = often;
    const times = Float64Array.from(starts.values()).sort();
    const [first, last] = [times[0], times[times.length - 1]];
    const steps = times.length - 1;
    this.#found.push({
      calls: name,
      steps,
      stepUs: Math.round(median(Array.from({ length: steps }, (_, at) => times[at + 1] - times[at]))),
      communicating: communicating.within(first, last) / Math.max(1, last - first),
      waiting: waiting.within(first, last) / Math.max(1, last - first),
    });
  }

  /** @returns null where there is no training. */
  finish(): ReportTrainingStep | null {
    const all = this.#found;
    if (all.length === 0) return null;
    const mean = (of: 'communicating' | 'waiting'): number => all.reduce((sum, each) => sum + each[of], 0) / all.length;
    const { calls, steps } = all.reduce((a, b) => (b.steps > a.steps ? b : a));
    const stepUs = median(all.map((each) => each.stepUs));
    return { calls, steps, stepUs, communicating: mean('communicating'), waiting: mean('waiting') };
  }
}

/** The rank that was waited for more than all others together; of two ranks, for three quarters of the time. Null: there is none. @param
 *  waitedForUs By rank, those without a trace among them. @param count Number of ranks. */
export function stragglerOf(waitedForUs: ReadonlyMap<number, number>, count: number): ReportStraggler | null {
  const [latest] = [...waitedForUs].sort(([, a], [, b]) => b - a);
  if (latest === undefined || count < 2) return null;
  const total = [...waitedForUs.values()].reduce((sum, us) => sum + us, 0);
  const [rank, us] = latest;
  return us > 0 && us >= ((1 + 1 / count) / 2) * total ? { rank, waitedForUs: us } : null;
}

/** Advice that would make a step shorter, in a sentence; null where nothing is known. */
export function adviceOf(data: Pick<ReportData, 'failure' | 'ranks' | 'trainingStep' | 'straggler' | 'operations'>): string | null {
  const { failure, ranks, trainingStep: step, straggler, operations } = data;
  if (failure !== null || step === null) return null;
  const { communicating, waiting } = step;
  if (communicating < shareMin) return `Communication takes ${percent(communicating)} of a step: only faster computation makes it shorter.`;
  if (waiting >= shareMin && straggler !== null)
    return `Rank ${straggler.rank} is late: the others wait ${percent((waiting * ranks.length) / Math.max(1, ranks.length - 1))} of a step. See what it does beside computing, what else runs on its host, and whether its share of the data is larger.`;
  if (waiting >= communicating / 2)
    return `Ranks wait for each other in turn, ${percent(waiting)} of a step. They do where they share processors: start fewer ranks per host, or fewer threads in each.`;
  const small = operations.filter(({ bytes }) => bytes <= smallBytes).reduce((sum, { calls }) => sum + calls, 0) / step.steps;
  if (small >= 4) return `A step makes ${Math.round(small)} calls of ${smallBytes / 1024} KiB at most: group.batch makes one of several.`;
  const [first] = operations;
  const share = shareOfBound(first);
  if (share !== undefined && share < 0.5)
    return `${first.kind} of ${first.site || first.algorithm} reaches ${percent(share)} of the bandwidth that was measured: shoal tune measures which algorithm is fastest here.`;
  return `Communication takes ${percent(communicating)} of a step: overlap it with computation (call without awaiting at once, or train with shoal/ddp), or send less (its bf16 and PowerSGD hooks).`;
}

function shareOfBound({ busBandwidth, boundBandwidth, bytes }: ReportOperation): number | undefined {
  return boundBandwidth === null || busBandwidth === 0 || bytes <= smallBytes ? undefined : busBandwidth / boundBandwidth;
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}
