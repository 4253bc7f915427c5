/** What the express path of small operations between hosts can run, and what that takes. On it the calling threads themselves
 *  announce, send and receive, and what a plan first puts into scratch travels right behind its announcement:
 *
 *      mailbox                  one hop: the announcement
 *      scratch, then the rest   the hops of the plan: the first of them is the announcement's too
 *      anything else            the announcement's hop, then those of the plan
 *
 *  A pure function of what all ranks share. It must not know sockets, nor where the latency comes from. */
import { assert } from '../base/assert.ts';
import { costOf, type CostModel } from '../plan/cost.ts';
import type { Plan } from '../plan/ir.ts';

/** The same on all ranks of a group. */
export interface ExpressPath {
  /** Largest operation, count × element size. */
  readonly bytesMax: number;
  /** Of one operation, on each rank. */
  readonly scratchBytes: number;
  /** Signals of one operation, on each rank. */
  readonly signalMax: number;
  /** Of the network alone, one way, seconds; undefined when it is not known. */
  readonly latency: number | undefined;
}

/** Between a packet's arrival and the calling thread that has it: it looks without sleeping, but lets others look, too. */
const noticeSeconds = 15e-6;
/** A message costs its sender and its receiver a system call and the way through the kernel. */
const overheadSeconds = 6e-6;
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
  const fits = fitsExpress(plan, elementBytes, path);
  const rates = fits ? expressRates(model, path) : model;
  const { seconds } = costOf(plan, elementBytes, rates);
  const sent = travelsBehindAnnouncement(plan);
  if (fits && sent === 'all') return seconds;
  // Announcements are taken in one after another, while mailboxes are on their way.
  const sends = (plan.programs.length - 2) * rates.networkOverhead;
  const announced = sent === 'nothing' ? Math.max(seconds, sends) : seconds + sends;
  return announced + rates.networkLatency + rates.networkOverhead + (fits ? 0 : handoverSeconds);
}

function expressRates(model: CostModel, { latency }: ExpressPath): CostModel {
  const networkLatency = latency === undefined ? model.networkLatency : Math.min(model.networkLatency, latency + noticeSeconds);
  return { ...model, networkLatency, networkOverhead: Math.min(model.networkOverhead, overheadSeconds) };
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
