/** The state of a job: what its ranks answer, what the system says of those that do not, and who holds the others up.
 *
 *      rank 0 waits for 1 ─┐
 *      rank 3 waits for 1 ─┼▶ rank 1 waits for 2 ─▶ rank 2 computes, is stopped, or does not answer: it holds up ranks 0, 1, 3 */
import { count, list, object, optional, anyText, type Shape, type ValueOf } from '../base/schema.ts';
import type { Store } from '../store/store.ts';
import { sample, type Sample } from './definitions.ts';
import { ask, presentIn, type Presence } from './questions.ts';
import { serverSamples, serverShape, type ServerReport } from './server-report.ts';
import { reportShape, type RankReport, type ReportedWait } from './rank-report.ts';
import { namesOfRank, withWorker } from './worker-report.ts';

const processShape = object({
  name: anyText,
  rank: optional(count),
  pid: optional(count),
  /** Number of times that it was started again, alone. */
  restarts: count,
  /** `exited with code 0`; undefined: it runs. */
  end: optional(anyText),
  /** The letter of proc(5): `T` is stopped. Undefined: unknown. */
  state: optional(anyText),
});

/** A process that a launcher has started, as the system sees it. */
export type ProcessFacts = Readonly<ValueOf<typeof processShape>>;

const processesShape: Shape<readonly ProcessFacts[]> = list(processShape);
const nodeShape = object({
  node: count,
  host: anyText,
  pid: count,
  processes: processesShape,
  /** Ranks of all nodes, as far as this launcher knows of them. */
  ranks: optional(list(count)),
});

/** The answer of a node's launcher. */
export type NodeFacts = Readonly<ValueOf<typeof nodeShape>>;

/** `starting`: it has not joined; `computing`: it waits for nothing, or has left its groups and goes on; `communicating`: all have called,
 *  data moves; `stopped`: by a signal; `silent`: it does not answer; `failed`: a group of it has failed; `unknown`: its node does not
 *  answer, either. */
export type RankState = 'starting' | 'computing' | 'waiting' | 'communicating' | 'stopped' | 'silent' | 'failed' | 'ended' | 'unknown';

export interface RankStatus extends Partial<Omit<RankReport, 'samples' | 'rank' | 'wait'>> {
  readonly rank: number;
  readonly node?: number;
  readonly state: RankState;
  /** The call that it waits in. */
  readonly call?: ReportedWait;
  /** `exited with code 0`. */
  readonly end?: string;
}

/** A parameter server: as its launcher sees it and, where it answers, what it tells. */
export interface ServerStatus extends ProcessFacts {
  readonly report?: Omit<ServerReport, 'samples'>;
}

export interface JobStatus {
  readonly version: 1;
  readonly job: string;
  /** The process that tells this. `rank`: no launcher of ours has started the job, and this rank tells of it. */
  readonly launcher: { readonly node: number; readonly host: string; readonly pid: number; readonly rank?: number };
  readonly nodes: number;
  readonly worldSize: number;
  /** Number of times that all ranks were started again. */
  readonly restarts: number;
  readonly ranks: readonly RankStatus[];
  readonly servers: readonly ServerStatus[];
  /** Ranks that others wait for, and that wait for nobody themselves; all of a circle. */
  readonly holdUps: readonly { readonly rank: number; readonly waiting: readonly number[]; readonly seconds?: number }[];
}

export interface JobFacts extends Pick<JobStatus, 'job' | 'nodes' | 'worldSize' | 'restarts'> {
  /** The part of the store that the ranks have. */
  readonly store: Store;
  /** The part of the store that the launchers have. */
  readonly launchers: Store;
  readonly own: NodeFacts;
  /** Nodes whose launchers are asked, too. Undefined: nothing is asked but about this node. */
  readonly others: readonly number[] | undefined;
  /** Ranks that are asked, beside those that launchers name. */
  readonly ranks: readonly number[];
}

/** Time for an answer: a busy host may keep a process from it for a while. */
const answerMs = 1500;
/** Answers are of different moments: of shorter waits a circle may be seen that is none. */
const holdUpSeconds = 0.5;

interface JobAnswers {
  readonly status: JobStatus;
  readonly reports: readonly RankReport[];
  /** Reports of servers, by their names. */
  readonly serverReports: ReadonlyMap<string, ServerReport | undefined>;
}

/** Asks the launchers of other nodes, and then the ranks and the servers. Never rejects. */
export async function askJob(facts: JobFacts): Promise<JobAnswers> {
  const { store, launchers, job, own, nodes, worldSize, restarts, others } = facts;
  const nodeAnswers = await Promise.all((others ?? []).map((node) => answerOf(launchers, nodeName(node), nodeShape)));
  const answers = [own, ...nodeAnswers.filter((answer) => answer !== undefined)];
  const present = await presentIn(store);
  const processes = answers.flatMap((answer) => answer.processes);
  const named = answers.flatMap(({ ranks = [] }) => ranks);
  const ranks = [...new Set([...facts.ranks, ...named, ...processes.flatMap(({ rank }) => rank ?? [])])].toSorted((a, b) => a - b);
  const launched = processes.filter(({ rank }) => rank === undefined);
  const isHere = (name: string): boolean => present.get(name) === 'here';
  const isNew = (name: string): boolean => /^(server|standby) \d+$/.test(name) && launched.every((each) => each.name !== name);
  const unlaunched = others === undefined ? [] : [...present.keys()].filter((name) => isHere(name) && isNew(name));
  const servers: ProcessFacts[] = [...launched, ...unlaunched.map((name) => ({ name, restarts: 0 }))];
  const askServer = async ({ name, end }: ProcessFacts): Promise<ServerReport | undefined> =>
    end === undefined && isHere(name) ? await answerOf(store, name, serverShape) : undefined;
  const [reports, serverReports] = await Promise.all([
    Promise.all(ranks.map((rank) => askRank(store, rank, isHere))),
    Promise.all(servers.map(askServer)),
  ]);
  const statuses = ranks.map((rank, at) => {
    const presences = namesOfRank(rank).map((who) => present.get(who));
    // One that is alone has not met anybody who could ask it.
    const presence = presences.includes('here') ? 'here' : (presences.find(Boolean) ?? (worldSize === 1 ? 'left' : undefined));
    return rankStatus(rank, reports[at], answers, presence);
  });
  const { node, host, pid } = own;
  const status: JobStatus = {
    version: 1,
    job,
    launcher: { node, host, pid },
    ...{ nodes, worldSize, restarts },
    ranks: statuses,
    servers: servers.map((server, at) => {
      const { samples: _, ...report } = serverReports[at] ?? { samples: [] };
      return 'role' in report ? { ...server, report } : server;
    }),
    holdUps: holdUpsOf(statuses),
  };
  const byName = new Map(servers.map(({ name }, at) => [name, serverReports[at]]));
  return { status, reports: reports.filter((report) => report !== undefined), serverReports: byName };
}

/** Asks the comm thread of a rank's groups, its store of parameters, and its task of a graph: a process may have any of them. */
async function askRank(store: Store, rank: number, isHere: (who: string) => boolean): Promise<RankReport | undefined> {
  const answers = namesOfRank(rank)
    .filter(isHere)
    .map((who) => answerOf(store, who, reportShape));
  return (await Promise.all(answers)).reduce(withWorker, undefined);
}

/** The answer of a process; undefined when there is none, or it is not understood. */
async function answerOf<T>(store: Store, who: string, shape: Shape<T>): Promise<T | undefined> {
  const answer = await ask(store, who, answerMs);
  return answer !== undefined && shape.problem(answer) === undefined ? (answer as T) : undefined;
}

/** The name under which a launcher answers. */
export function nodeName(node: number): string {
  return `node-${node}`;
}

/** The values of a rank's metrics, with the number of the rank. */
export function labelled({ rank, samples }: RankReport): Sample[] {
  return [sample('up', 1), ...samples].map((each) => ({ ...each, labels: { rank, ...each.labels } }));
}

/** The values of a node's page. */
export function nodeSamples({ status, reports, serverReports }: JobAnswers, own: NodeFacts): Sample[] {
  const { restarts, ranks } = status;
  const silent = ranks.filter(({ rank }) => !reports.some((report) => report.rank === rank));
  return [
    ...reports.flatMap(labelled),
    ...silent.map(({ rank, state }) => sample('up', state === 'computing' ? 1 : 0, { rank })),
    ...own.processes.flatMap(({ name, rank }) => (rank === undefined ? serverSamples(name, serverReports.get(name)) : [])),
    sample('restarts', restarts),
    sample('launched', own.processes.filter(({ end }) => end === undefined).length),
    ...own.processes.map(({ name, restarts: alone }) => sample('processRestarts', alone, { process: name })),
  ];
}

function rankStatus(rank: number, report: RankReport | undefined, nodes: readonly NodeFacts[], presence: Presence | undefined): RankStatus {
  const found = nodes.flatMap(({ node, host, processes }) => {
    const facts = processes.find((each) => each.rank === rank);
    return facts ? [{ node, host, facts }] : [];
  });
  const [place] = found;
  const base = place && { node: place.node, host: place.host, ...(place.facts.pid !== undefined && { pid: place.facts.pid }) };
  if (place?.facts.end !== undefined) return { rank, ...base, state: 'ended', end: place.facts.end };
  if (report === undefined) return { rank, ...base, state: silentState(place?.facts, presence) };
  const { samples: _, wait, ...said } = report;
  return { ...base, ...said, rank, state: stateOf(report), ...(wait && { call: wait }) };
}

function silentState(facts: ProcessFacts | undefined, presence: Presence | undefined): RankState {
  if (facts === undefined) return 'unknown';
  if (facts.state === 'T' || facts.state === 't') return 'stopped';
  if (presence === undefined) return 'starting';
  return presence === 'here' ? 'silent' : 'computing';
}

function stateOf({ failure, wait }: RankReport): RankState {
  if (failure !== undefined) return 'failed';
  if (wait === undefined) return 'computing';
  return wait.ranks.length > 0 ? 'waiting' : 'communicating';
}

/** Ranks that a rank has waited for longer than ranks always do for each other. */
function awaitedBy({ state, call }: RankStatus): readonly number[] {
  return state === 'waiting' && (call?.seconds ?? Infinity) >= holdUpSeconds ? (call?.ranks ?? []) : [];
}

function holdUpsOf(ranks: readonly RankStatus[]): JobStatus['holdUps'] {
  const byRank = new Map(ranks.map((status) => [status.rank, status]));
  const waitsFor = (rank: number): readonly number[] => awaitedBy(byRank.get(rank) ?? { rank, state: 'unknown' });
  const waiting = new Map<number, Set<number>>();
  for (const { rank } of ranks) {
    const reached = new Set<number>();
    const next = [...waitsFor(rank)];
    for (let at = next.pop(); at !== undefined; at = next.pop()) {
      if (reached.has(at)) continue;
      reached.add(at);
      next.push(...waitsFor(at));
    }
    for (const to of reached) waiting.set(to, (waiting.get(to) ?? new Set()).add(rank));
  }
  return [...waiting].flatMap(([rank, by]) => {
    // A rank of a circle waits for itself in the end.
    if (waitsFor(rank).length > 0 && !by.has(rank)) return [];
    const ranksWaiting = [...by].filter((each) => each !== rank).toSorted((a, b) => a - b);
    const longest = Math.max(...ranksWaiting.map((each) => byRank.get(each)?.call?.seconds ?? 0));
    return [{ rank, waiting: ranksWaiting, ...(longest > 0 && { seconds: longest }) }];
  });
}
