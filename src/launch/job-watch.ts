/** Looks at a job while it runs, for `shoal status` and for metrics. */
import { hostname } from 'node:os';
import { ShoalError } from '../base/errors.ts';
import { askJob, nodeName, type NodeFacts, type ProcessFacts } from '../metrics/job-status.ts';
import { answerQuestions } from '../metrics/questions.ts';
import type { NodeAgreement } from './node-agreement.ts';
import type { JobPlace } from './rank-environment.ts';

/** The state of a job, the answers of its ranks, and this node's processes. */
export type JobWatch = Awaited<ReturnType<typeof askJob>> & { readonly own: NodeFacts };

/** The job as its launcher on this node has it. */
export interface WatchedJob {
  readonly place: JobPlace;
  readonly localSize: number;
  /** Undefined: the nodes have not joined. */
  agreement: NodeAgreement | undefined;
  /** Number of times that all ranks were started again. */
  generation: number;
  /** Processes of this node. */
  readonly processes: () => readonly ProcessFacts[];
}

/** Takes some seconds at most, also while ranks are stopped. @param of `node`: the ranks of this node alone.
 *  @throws (rejects) ShoalError `closed` while the nodes have not joined. */
export async function watchJob(watched: WatchedJob, of: 'job' | 'node'): Promise<JobWatch> {
  const { agreement, localSize, generation: restarts } = watched;
  const { job, nodes } = watched.place;
  if (agreement === undefined) throw new ShoalError('closed', `job ${job}: the nodes have not joined yet (${nodes} are awaited)`);
  const { worldSize, firstRank } = agreement;
  const own = nodeFacts(watched);
  const later = own.processes.flatMap(({ rank = 0 }) => (rank < worldSize ? [] : [rank]));
  const ranks = [...Array.from({ length: localSize }, (_, localRank) => firstRank + localRank), ...later];
  const facts = { ...agreement.partsOf(restarts), job, own, nodes, worldSize, restarts };
  return { ...(await askJob(facts, of === 'node' || nodes === 1 ? ranks : undefined)), own };
}

/** Answers the launchers of other nodes until `signal`. */
export function answerNodes(watched: WatchedJob, agreement: NodeAgreement, signal: AbortSignal): void {
  const { node, nodes } = watched.place;
  if (nodes > 1) void answerQuestions(agreement.partsOf(0).launchers, nodeName(node), () => nodeFacts(watched), signal);
}

function nodeFacts({ place, processes }: WatchedJob): NodeFacts {
  return { node: place.node, host: hostname(), pid: process.pid, processes: processes() };
}
