/** The state of a job: what its ranks answer, what the system says of those that do not, and who holds the others up.
 *
 *      rank 0 waits for 1 ─┐
 *      rank 3 waits for 1 ─┼▶ rank 1 waits for 2 ─▶ rank 2 computes, is stopped, or does not answer: it holds up ranks 0, 1, 3 */
import { count, list, object, optional, anyText, type Shape, type ValueOf } from '../base/schema.ts';
import type { Store } from '../store/store.ts';
import { sample, type Sample } from './definitions.ts';
import { ask, isAnnounced } from './questions.ts';
import { serverSamples, serverShape, type ServerReport } from './server-report.ts';
import { reportShape, type RankReport, type ReportedWait } from './rank-report.ts';
import { withWorker, workerGroups, workerName } from './worker-report.ts';

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
const nodeShape = object({ node: count, host: anyText, pid: count, processes: processesShape });

/** The answer of a node's launcher. */
export type NodeFacts = Readonly<ValueOf<typeof nodeShape>>;

/** `starting`: it has not joined; `computing`: it waits for nothing; `communicating`: all have called, data moves; `stopped`: by a signal;
 *  `silent`: it does not answer; `failed`: a group of it has failed; `unknown`: its node does not answer, either. */
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
  /** Nodes whose launchers are asked, too. Default: all, where all ranks are asked. */
  readonly others?: readonly number[];
}

/** Time for an answer: a busy host may keep a process from it for a while. */
const answerMs = 1500;
/** Answers are of different moments: of shorter waits a circle may be seen that is none. */
const holdUpSeconds = 0.5;

interface JobAnswers {
  readonly status: JobStatus;
  readonly reports: readonly RankReport[];
  /** Reports of servers, by their names. */
  readonly serverReports: ReadonlyMap<string, ServerReport>;
}

/** Asks the ranks and the servers, and the launchers of other nodes. Never rejects. @param ranks those to ask. Default: all. */
export async function askJob(facts: JobFacts, ranks?: readonly number[]): Promise<JobAnswers> {
  const { store, launchers, job, own, nodes, worldSize, restarts } = facts;
  const asked = ranks ?? Array.from({ length: worldSize }, (_, rank) => rank);
  const all = ranks === undefined ? Array.from({ length: nodes }, (_, node) => node) : [];
  const others = facts.others ?? all.filter((node) => node !== own.node);
  const [reports, nodeAnswers, ownServers] = await Promise.all([
    Promise.all(asked.map((rank) => askRank(store, rank))),
    Promise.all(others.map((node) => ask(launchers, nodeName(node), answerMs))),
    askServers(store, serversOf([own])),
  ]);
  const answers = [own, ...nodeAnswers.flatMap((answer) => understood(nodeShape, answer) ?? [])];
  const servers = serversOf(answers);
  const serverReports = new Map([...ownServers, ...(await askServers(store, serversOf(answers.slice(1))))]);
  const hasJoined = await Promise.all(asked.map((rank) => isConnected(store, rank)));
  const statuses = asked.map((rank, at) =>
    rankStatus(rank, reports[at], { nodes: answers, hasJoined: hasJoined[at], isAlone: worldSize === 1 }),
  );
  const { node, host, pid } = own;
  const status: JobStatus = {
    version: 1,
    job,
    launcher: { node, host, pid },
    ...{ nodes, worldSize, restarts },
    ranks: statuses,
    servers: servers.map((server) => {
      const { samples: _, ...report } = serverReports.get(server.name) ?? { samples: [] };
      return 'role' in report ? { ...server, report } : server;
    }),
    holdUps: holdUpsOf(statuses),
  };
  return { status, reports: reports.filter((report) => report !== undefined), serverReports };
}

/** Asks the comm thread of a rank's groups, its store of parameters, and its task of a graph: a process may have any of them. */
async function askRank(store: Store, rank: number): Promise<RankReport | undefined> {
  const asked = async (who: string): Promise<RankReport | undefined> => understood(reportShape, await ask(store, who, answerMs));
  const names = workerGroups.map((group) => workerName(group, rank));
  const present = await Promise.all(names.map((who) => isAnnounced(store, who).catch(() => false)));
  const workers = names.filter((_, at) => present[at]);
  const own = workers.length === 0 || (await isConnected(store, rank)) ? asked(String(rank)) : undefined;
  const [report, ...others] = await Promise.all([own, ...workers.map(asked)]);
  return others.reduce(withWorker, report);
}

function isConnected(store: Store, rank: number): Promise<boolean> {
  return store.check([`connected/${rank}`]).catch(() => true);
}

function serversOf(nodes: readonly NodeFacts[]): ProcessFacts[] {
  return nodes.flatMap(({ processes }) => processes.filter(({ rank }) => rank === undefined));
}

async function askServers(store: Store, servers: readonly ProcessFacts[]): Promise<Map<string, ServerReport>> {
  const running = servers.filter(({ end }) => end === undefined);
  const answers = await Promise.all(running.map(({ name }) => ask(store, name, answerMs)));
  return new Map(
    answers.flatMap((answer, at) => {
      const report = understood(serverShape, answer);
      return report === undefined ? [] : [[running[at].name, report] as const];
    }),
  );
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
    ...silent.map(({ rank }) => sample('up', 0, { rank })),
    ...own.processes.flatMap(({ name, rank }) => (rank === undefined ? serverSamples(name, serverReports.get(name)) : [])),
    sample('restarts', restarts),
    sample('launched', own.processes.filter(({ end }) => end === undefined).length),
    ...own.processes.map(({ name, restarts: alone }) => sample('processRestarts', alone, { process: name })),
  ];
}

function understood<T>(shape: Shape<T>, answer: unknown): T | undefined {
  return answer !== undefined && shape.problem(answer) === undefined ? (answer as T) : undefined;
}

function rankStatus(
  rank: number,
  report: RankReport | undefined,
  { nodes, ...how }: { readonly nodes: readonly NodeFacts[]; readonly hasJoined: boolean; readonly isAlone: boolean },
): RankStatus {
  const found = nodes.flatMap(({ node, host, processes }) => {
    const facts = processes.find((each) => each.rank === rank);
    return facts ? [{ node, host, facts }] : [];
  });
  const [place] = found;
  const base = place && { node: place.node, host: place.host, ...(place.facts.pid !== undefined && { pid: place.facts.pid }) };
  if (place?.facts.end !== undefined) return { rank, ...base, state: 'ended', end: place.facts.end };
  if (report === undefined) return { rank, ...base, state: silentState(place?.facts, how) };
  const { samples: _, wait, ...said } = report;
  return { ...base, ...said, rank, state: stateOf(report), ...(wait && { call: wait }) };
}

function silentState(facts: ProcessFacts | undefined, { hasJoined, isAlone }: Record<'hasJoined' | 'isAlone', boolean>): RankState {
  if (facts === undefined) return 'unknown';
  if (facts.state === 'T' || facts.state === 't') return 'stopped';
  // It waits for nobody, and has not met anybody who could ask it.
  if (isAlone) return 'computing';
  return hasJoined ? 'silent' : 'starting';
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
