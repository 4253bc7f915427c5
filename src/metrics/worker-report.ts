/** The answer of a process's store of parameters, or of its task of a graph, to the question how it is: what its groups do not know. */
import { hostname } from 'node:os';
import type { Store } from '../store/store.ts';
import { sample } from './definitions.ts';
import { answerQuestions } from './questions.ts';
import { memorySamples, type RankReport, type ReportedWait } from './rank-report.ts';

/** Names of what answers, among the groups of a rank. */
const workerGroups = ['kvstore', 'graph'] as const;
type WorkerGroup = (typeof workerGroups)[number];

export interface WorkerFacts {
  /** Calls on the store, or steps of the graph, so far. */
  readonly calls: number;
  readonly pending: number;
  /** The reason why nothing works any more. */
  readonly failure: string | undefined;
  /** The oldest call that has not ended, with the ranks that it waits for, where they are known, and the time since its start. */
  readonly oldest: (Pick<ReportedWait, 'text' | 'seconds'> & Partial<ReportedWait>) | undefined;
  /** Ways to parameter servers. */
  readonly servers: readonly {
    readonly name: string;
    readonly creditBytes: number;
    readonly inFlightBytes: number;
    /** Requests that have not been sent. */
    readonly queued: number;
    /** Number of times that the connection was made again. */
    readonly reconnects: number;
  }[];
}

/** Servers with values of their own. */
const serversMax = 32;

/** The names under which a process answers: the comm thread of its groups, its store of parameters, and its task of a graph. */
export function namesOfRank(rank: number): readonly string[] {
  return [String(rank), ...workerGroups.map((group) => workerName(group, rank))];
}

function workerName(group: WorkerGroup, rank: number): string {
  return `${group}-${rank}`;
}

interface WorkerPlace {
  readonly group: WorkerGroup;
  readonly rank: number;
  /** Ranks of the job. */
  readonly size: number;
}

/** Answers until `signal`. */
export function answerForWorker(
  store: Store,
  place: WorkerPlace,
  facts: () => WorkerFacts | Promise<WorkerFacts>,
  signal: AbortSignal,
): void {
  void answerQuestions(store, workerName(place.group, place.rank), async () => workerReport(place, await facts()), signal);
}

function workerReport({ group, rank, size }: WorkerPlace, { calls, pending, failure, oldest, servers }: WorkerFacts): RankReport {
  return {
    ...{ rank, pid: process.pid, host: hostname(), size, epoch: 0, steps: 0, calls, pending },
    ...(oldest && { wait: { ranks: [], ...oldest } }),
    ...(failure !== undefined && { failure }),
    samples: [
      ...memorySamples(),
      sample('oldest', oldest?.seconds ?? 0),
      sample('failures', failure === undefined ? 0 : 1),
      sample('pending', pending, { group }),
      ...servers
        .slice(0, serversMax)
        .flatMap(({ name, creditBytes, inFlightBytes, queued, reconnects }) => [
          sample('queued', queued, { group: name }),
          sample('credit', creditBytes, { group: name }),
          sample('creditUsed', inFlightBytes, { group: name }),
          sample('reconnects', reconnects, { group: name }),
        ]),
    ],
  };
}

/** The answers of one process, whose groups are asked alone. */
export function withWorker(rank: RankReport | undefined, worker: RankReport | undefined): RankReport | undefined {
  if (rank === undefined || worker === undefined) return rank ?? worker;
  const { wait = worker.wait, failure = worker.failure } = rank;
  return {
    ...rank,
    calls: rank.calls + worker.calls,
    pending: rank.pending + worker.pending,
    ...(wait && { wait }),
    ...(failure !== undefined && { failure }),
    // Without what a rank tells of itself.
    samples: [...rank.samples, ...worker.samples.filter(({ labels }) => 'group' in labels)],
  };
}
