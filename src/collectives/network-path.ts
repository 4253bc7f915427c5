/** The plans that the network path of small operations between hosts can run, and their time on it. On this path the calling threads
 *  themselves announce, send and receive, and data that a plan first puts into scratch travels right behind its announcement:
 *
 *      mailbox                        n(n − 1) messages, one hop: the announcement
 *      spreads word of all to all     the messages and the hops of the plan: announcements travel along
 *      scratch, then the rest         the hops of the plan: the first of them is the announcement's too
 *      anything else                  the announcement's messages and hop, then those of the plan
 *
 *  A pure function of facts that all ranks share. It must not know sockets, nor where rates come from. */
import { assert } from '../base/assert.ts';
import { clamp } from '../base/numbers.ts';
import { costOf, defaultCostModel, type CostModel, type PlanCost } from '../plan/cost.ts';
import type { Location, Plan, Program, Step } from '../plan/ir.ts';
import { rankCount, separateHosts } from '../plan/topology.ts';

/** The network path of a group; the same on all its ranks. */
export interface NetworkPathSpec {
  /** Largest operation, count × element size. */
  readonly bytesMax: number;
  /** Scratch of one operation, on each rank. */
  readonly scratchBytes: number;
  /** Most bytes of one put; twice as many go to a rank in one operation. */
  readonly putBytes: number;
  /** Signals of one operation, on each rank. */
  readonly signalMax: number;
  readonly rates: NetworkPathRates;
}

/** Times of sending on the network path while all ranks do so, in seconds; the same on all ranks of a group. */
export interface NetworkPathRates {
  /** Time from a send to the thread that waits for it. */
  readonly hop: number;
  /** Time that a message adds for all, whichever rank sends it: a rank's own time for it where ranks share CPUs, an n-th of that
   *  where each has one of its own. */
  readonly message: number;
  /** Time that a byte adds to the hop of a small message; undefined: the same as for a large one. */
  readonly byte: number | undefined;
}

/** Seconds per round of the rounds in which rates are measured: up a binomial tree and down again, without bytes and with
 *  `timedBytes`; and from each rank to all. */
export interface NetworkPathTimings {
  readonly tree: number;
  readonly all: number;
  readonly bytes: number;
}

export const timedBytes = 4096;

/** Time from a packet's arrival until the calling thread has it: it polls without sleeping, but lets other threads run, too. */
const noticeSeconds = 15e-6;
/** Time of a message for its sender, and for its receiver, on a CPU of its own: a system call and the way through the kernel. */
const overheadSeconds = 3e-6;

/** Rates to assume when nothing was measured. `latency`: of the network alone, one way, seconds. */
export function assumedRates(ranks: number, latency: number = defaultCostModel.networkLatency): NetworkPathRates {
  return { hop: latency + noticeSeconds, message: (2 * overheadSeconds) / ranks, byte: undefined };
}

/** Rates from timings. A round takes its hops, and the time that its messages add: a tree 2⌈log₂ n⌉ and 2(n − 1), to all 1 and
 *  n(n − 1). Neither is below 0. To two digits, as timings vary. */
export function measuredRates(ranks: number, { tree, all, bytes }: NetworkPathTimings): NetworkPathRates {
  const hops = 2 * Math.ceil(Math.log2(ranks));
  const [messages, messagesToAll] = [2 * (ranks - 1), ranks * (ranks - 1)];
  const message = clamp((hops * all - tree) / (hops * messagesToAll - messages), 0, Math.min(tree / messages, all / messagesToAll));
  const hop = Math.max(0, all - messagesToAll * message);
  const round = (value: number): number => Number(value.toPrecision(2));
  return { hop: round(hop), message: round(message), byte: round(Math.max(0, bytes - tree) / timedBytes / hops) };
}

/** Time of handing an operation to the comm thread and back. */
const handoverSeconds = 30e-6;

/** True if the network path can carry the plan: ranks exchange data only by sending. */
export function fitsNetworkPath({ programs, request }: Plan, elementBytes: number, path: NetworkPathSpec): boolean {
  if (programs.every(({ signalCount, scratchCount }) => signalCount === 0 && scratchCount === 0)) return true;
  return (
    request.count * elementBytes <= path.bytesMax && programs.every((each) => staysAtHome(each) && fitsMemory(each, elementBytes, path))
  );
}

/** True if scratch, signals and the buffers of sockets hold what the program puts into them. */
function fitsMemory({ channels, scratchCount, signalCount }: Program, elementBytes: number, path: NetworkPathSpec): boolean {
  if (scratchCount * elementBytes > path.scratchBytes || signalCount > path.signalMax) return false;
  const puts = channels.flat().filter((step) => step.kind === 'put');
  const sentTo = (to: number): number => puts.reduce((sum, { peer, source }) => (peer === to ? sum + source.count : sum), 0);
  return puts.every(({ peer, source }) => Math.max(source.count, sentTo(peer) / 2) * elementBytes <= path.putBytes);
}

/** True if the program touches only mailboxes of other ranks' memory. */
function staysAtHome({ channels }: Program): boolean {
  const isHome = ({ rank, buffer }: Location): boolean => rank === undefined || buffer === 'mailbox';
  return channels.flat().every((step) => {
    if (step.kind === 'copy') return isHome(step.source) && isHome(step.target);
    return step.kind !== 'reduce' || (step.sources.every(isHome) && step.targets.every(isHome));
  });
}

/** True if every rank hears of every other one, directly or through others, in the plan's own messages before it ends. Then only
 *  the announcements that travel with those messages are needed. An all-reduce's result depends on all ranks; data in mailboxes
 *  is announced to all. */
export function spreadsAnnouncements({ request, programs }: Plan): boolean {
  if (programs.some(({ entry }) => entry.length > 0)) return false;
  const { collective, count } = request;
  return (collective === 'all-reduce' && count > 0) || (collective === 'barrier' && programs.some(({ signalCount }) => signalCount > 0));
}

/** Raises of one signal of the receiver by one rank, with their number. */
export interface Incoming {
  readonly rank: number;
  readonly signal: number;
  readonly raises: number;
}

/** All messages to a rank. */
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

/** Seconds with the announcement of the call: on the network path if that can run the plan, through the comm threads otherwise.
 *  `model`: rates of the comm threads. */
export function secondsOnPaths(
  plan: Plan,
  elementBytes: number,
  { path, model }: { readonly path: NetworkPathSpec; readonly model: CostModel },
): number {
  const through = costOf(plan, elementBytes, model);
  // Announcements are received one after another.
  const others = plan.programs.length - 1;
  if (!fitsNetworkPath(plan, elementBytes, path))
    return through.seconds + model.networkLatency + others * model.networkOverhead + handoverSeconds;
  const { hop, message, byte = model.networkByte } = path.rates;
  // Time of a message for its sender and for its receiver, one message after another, whatever the others do meanwhile. At most
  // the whole hop: where ranks share CPUs, that is where the time goes.
  const networkOverhead = Math.min((message * plan.programs.length) / 2, hop);
  const networkLatency = hop - networkOverhead;
  const cost = costOf(overSockets(plan), elementBytes, { ...model, networkLatency, networkOverhead, networkByte: byte });
  const sent = cost.ranks.reduce((sum, { networkMessages }) => sum + networkMessages, 0);
  const held = portBytes(plan, through) * model.networkByte;
  const told = plan.programs.length * others;
  const along = spreadsAnnouncements(plan);
  const first = along ? 'all' : travelsBehindAnnouncement(plan);
  const moved = Math.max(cost.seconds + (first === 'all' ? 0 : hop), held + hop);
  return moved + message * (along ? sent : first === 'all' ? Math.max(sent, told) : sent + told);
}

/** The plan as it runs on the network path, where ranks of one host have sockets between them, too. */
function overSockets(plan: Plan): Plan {
  const { request } = plan;
  return { ...plan, request: { ...request, topology: separateHosts(rankCount(request.topology)) } };
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

/** Part of the messages sent before any wait that goes to scratch: all, some of them, or nothing is sent before a wait. */
function travelsBehindAnnouncement({ programs }: Plan): 'all' | 'some' | 'nothing' {
  const isWait = ({ kind }: Step): boolean => kind === 'wait';
  const before = (steps: readonly Step[]): readonly Step[] => (steps.some(isWait) ? steps.slice(0, steps.findIndex(isWait)) : steps);
  const first = programs.flatMap(({ channels }) => channels.flatMap(before)).filter(({ kind }) => kind === 'put' || kind === 'signal');
  if (first.length === 0) return 'nothing';
  return first.every((step) => step.kind === 'put' && step.target.buffer === 'scratch') ? 'all' : 'some';
}
