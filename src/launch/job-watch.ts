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
  place: JobPlace;
  readonly localSize: number;
  /** Undefined: the nodes have not joined. */
  agreement: NodeAgreement | undefined;
  /** Number of times that all ranks were started again. */
  generation: number;
  /** Ranks of all nodes, where they come and go and this launcher keeps the world. */
  readonly worldRanks: () => readonly number[];
  /** Processes of this node. */
  readonly processes: () => readonly ProcessFacts[];
}

/** Takes some seconds at most, also while ranks are stopped. @param of `node`: the ranks of this node alone.
 *  @throws (rejects) ShoalError `closed` while the nodes have not joined. */
export async function watchJob(watched: WatchedJob, of: 'job' | 'node'): Promise<JobWatch> {
  const { agreement, localSize, generation: restarts, place } = watched;
  const { job, node } = place;
  if (agreement === undefined) throw new ShoalError('closed', `job ${job}: the nodes have not joined yet (${place.nodes} are awaited)`);
  const { worldSize, firstRank, isLate } = agreement;
  const own = nodeFacts(watched);
  const present = await agreement.present();
  const others = of === 'node' ? undefined : present.filter((each) => each !== node);
  const isAlone = others === undefined || others.length === 0;
  const [from, count] = isAlone ? [firstRank, isLate ? 0 : localSize] : [0, worldSize];
  const ranks = Array.from({ length: count }, (_, at) => from + at).concat(isAlone ? [] : watched.worldRanks());
  const facts = { ...agreement.partsOf(restarts), job, own, nodes: present.length, others, ranks, worldSize, restarts };
  return { ...(await askJob(facts)), own };
}

/** Answers the launchers of other nodes until `signal`. */
export function answerNodes(watched: WatchedJob, agreement: NodeAgreement, signal: AbortSignal): void {
  const { node, nodes, nodesMax = nodes } = watched.place;
  const answer = (): NodeFacts => ({ ...nodeFacts(watched), ranks: [...watched.worldRanks()] });
  if (nodesMax > 1) void answerQuestions(agreement.partsOf(0).launchers, nodeName(node), answer, signal);
}

function nodeFacts({ place, processes }: WatchedJob): NodeFacts {
  return { node: place.node, host: hostname(), pid: process.pid, processes: processes() };
}
