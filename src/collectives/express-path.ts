/** What the express path of small operations between hosts can run, and what that takes. On it the calling threads themselves
 *  announce, send and receive, and what a plan first puts into scratch travels right behind its announcement:
 *
 *      mailbox                        n(n − 1) messages, one hop: the announcement
 *      spreads word of all to all     the messages and the hops of the plan: announcements travel along
 *      scratch, then the rest         the hops of the plan: the first of them is the announcement's too
 *      anything else                  the announcement's messages and hop, then those of the plan
 *
 *  A pure function of what all ranks share. It must not know sockets, nor where rates come from. */
import { assert } from '../base/assert.ts';
import { costOf, defaultCostModel, type CostModel, type PlanCost } from '../plan/cost.ts';
import type { Plan } from '../plan/ir.ts';

/** The same on all ranks of a group. */
export interface ExpressPath {
  /** Largest operation, count × element size. */
  readonly bytesMax: number;
  /** Of one operation, on each rank. */
  readonly scratchBytes: number;
  /** Signals of one operation, on each rank. */
  readonly signalMax: number;
  readonly rates: ExpressRates;
}

/** What sending takes on the express while all ranks are at it, in seconds; the same on all ranks of a group. */
export interface ExpressRates {
  /** From a send to the thread that waits for it. */
  readonly hop: number;
  /** What a message, whoever sends it, adds for all: a rank's own time for it where ranks share CPUs, an n-th of that where each
   *  has one of its own. */
  readonly message: number;
  /** What a byte adds to the hop of a small message; undefined: what it adds to that of a large one. */
  readonly byte: number | undefined;
}

/** Of the rounds in which rates are measured: a small message from each rank to the next one, from each to all, and a message of
 *  `timedBytes` from each to the next. Seconds per round. */
export interface ExpressTimings {
  readonly next: number;
  readonly all: number;
  readonly bytes: number;
}

export const timedBytes = 4096;

/** Between a packet's arrival and the calling thread that has it: it looks without sleeping, but lets others look, too. */
const noticeSeconds = 15e-6;
/** A message costs its sender and its receiver a system call and the way through the kernel, each so much on a CPU of its own. */
const overheadSeconds = 3e-6;

/** Where nothing was measured. `latency`: of the network alone, one way, seconds. */
export function assumedRates(ranks: number, latency: number = defaultCostModel.networkLatency): ExpressRates {
  return { hop: latency + noticeSeconds, message: (2 * overheadSeconds) / ranks, byte: undefined };
}

/** A round takes a hop, and what its messages add: n, or n(n − 1). To two digits, as timings vary. */
export function measuredRates(ranks: number, { next, all, bytes }: ExpressTimings): ExpressRates {
  const more = ranks * (ranks - 2);
  const message = more === 0 ? 0 : Math.max(0, all - next) / more;
  // Were rounds to all held up by chance, something is left for the hop.
  const hop = Math.max(next / 4, next - ranks * message);
  const round = (value: number): number => Number(value.toPrecision(2));
  return { hop: round(hop), message: round(message), byte: round(Math.max(0, bytes - next) / timedBytes) };
}
/** An operation goes to the comm thread and back. */
const handoverSeconds = 30e-6;

/** Where nobody signals anybody, nothing but mailboxes can be between ranks; where every rank is a host of its own, all that is
 *  between them is sent. */
export function fitsExpress({ programs, request }: Plan, elementBytes: number, path: ExpressPath): boolean {
  if (programs.every(({ signalCount, scratchCount }) => signalCount === 0 && scratchCount === 0)) return true;
  if (request.count * elementBytes > path.bytesMax || request.topology.hosts.length !== programs.length) return false;
  return programs.every((each) => each.scratchCount * elementBytes <= path.scratchBytes && each.signalCount <= path.signalMax);
}

/** Whether every rank hears of every other one, from it or through others, in the plan's own messages before it ends. Then no
 *  announcements are needed but those that go with them. What an all-reduce gives each rank depends on all; what travels in
 *  mailboxes is announced to all. */
export function spreadsAnnouncements({ request, programs }: Plan): boolean {
  if (programs.some(({ entry }) => entry.length > 0)) return false;
  const { collective, count } = request;
  return (collective === 'all-reduce' && count > 0) || (collective === 'barrier' && programs.some(({ signalCount }) => signalCount > 0));
}

/** A signal of one rank, and who raises it how often. */
export interface Incoming {
  readonly rank: number;
  readonly signal: number;
  readonly raises: number;
}

/** All that is sent to a rank. */
export function incomingOf({ programs, onlyRank }: Plan, to: number): Incoming[] {
  const none = programs[to].signalCount === 0;
  assert(none || onlyRank === undefined, () => `only rank ${onlyRank}'s program was built; who sends to it is in the others`);
  return programs.flatMap(({ rank, channels }) => {
    const raises = new Map<number, number>();
    for (const step of channels.flat()) {
      if ((step.kind === 'put' || step.kind === 'signal') && step.peer === to) raises.set(step.signal, (raises.get(step.signal) ?? 0) + 1);
    }
    return [...raises].map(([signal, count]) => ({ rank, signal, raises: count }));
  });
}

/** Seconds with the announcement of the call: on the express if that can run the plan, through the comm threads otherwise.
 *  `model`: rates of the comm threads. */
export function secondsOnPaths(
  plan: Plan,
  elementBytes: number,
  { path, model }: { readonly path: ExpressPath; readonly model: CostModel },
): number {
  const { seconds } = costOf(plan, elementBytes, model);
  // Announcements are taken in one after another.
  const others = plan.programs.length - 1;
  if (!fitsExpress(plan, elementBytes, path)) return seconds + model.networkLatency + others * model.networkOverhead + handoverSeconds;
  const { hop, message, byte = model.networkByte } = path.rates;
  // A rank that many send to takes their messages in one after another, whatever the others do meanwhile.
  const networkOverhead = Math.min(overheadSeconds, message * plan.programs.length, hop);
  const networkLatency = hop - networkOverhead;
  const cost = costOf(plan, elementBytes, { ...model, networkLatency, networkOverhead, networkByte: byte });
  const sent = cost.ranks.reduce((sum, { networkMessages }) => sum + networkMessages, 0);
  const held = portBytes(plan, cost) * model.networkByte;
  const told = plan.programs.length * others;
  const along = spreadsAnnouncements(plan);
  const first = along ? 'all' : travelsBehindAnnouncement(plan);
  const moved = Math.max(cost.seconds + (first === 'all' ? 0 : hop), held + hop);
  return moved + message * (along ? sent : first === 'all' ? Math.max(sent, told) : sent + told);
}

/** Most bytes that go out of a host, or into one. */
function portBytes({ request }: Plan, { ranks }: PlanCost): number {
  const sumOf = (host: readonly number[], bytes: (rank: number) => number): number => host.reduce((sum, rank) => sum + bytes(rank), 0);
  const ports = request.topology.hosts.flatMap((host) => [
    sumOf(host, (rank) => ranks[rank].networkBytesOut),
    sumOf(host, (rank) => ranks[rank].networkBytesIn),
  ]);
  return Math.max(0, ...ports);
}

/** What is sent before a wait: all of it to scratch, some of it elsewhere, or nothing by anybody. */
function travelsBehindAnnouncement({ programs }: Plan): 'all' | 'some' | 'nothing' {
  let sent = false;
  for (const { channels } of programs) {
    for (const steps of channels) {
      for (const step of steps) {
        if (step.kind === 'wait') break;
        if (step.kind === 'signal' || (step.kind === 'put' && step.target.buffer !== 'scratch')) return 'some';
        sent ||= step.kind === 'put';
      }
    }
  }
  return sent ? 'all' : 'nothing';
}
