/** The task that a process is, by its environment. `shoal run --workers 3 --ps 2` sets SHOAL_PS beside the variables of ranks: the
 *  last two of the five ranks are parameter servers. Pure. */
import { ShoalError } from '../../base/errors.ts';
import type { Environment } from '../../base/settings/settings.ts';
import type { ClusterSpec } from './graph-server.ts';

/** Names that are not settings. */
export const clusterVariables: readonly string[] = ['SHOAL_PS'];

/** Workers first, then parameter servers. @throws ShoalError `config`. */
export function detectCluster(environment: Environment, worldSize: number): ClusterSpec {
  const text = environment['SHOAL_PS']?.trim() ?? '';
  if (text === '') return { worker: worldSize };
  const ps = Number(text);
  if (!/^\d{1,7}$/.test(text) || ps < 1) throw new ShoalError('config', `SHOAL_PS='${text}' is not a number of parameter servers`);
  if (ps >= worldSize) throw new ShoalError('config', `SHOAL_PS=${ps} leaves no worker of ${worldSize} ranks`);
  return { worker: worldSize - ps, ps };
}

/** The task of a rank: jobs in their order, tasks in theirs. @throws ShoalError `config` when ranks and tasks are not as many. */
export function taskOfRank(cluster: ClusterSpec, rank: number, worldSize: number): { job: string; task: number } {
  const total = Object.values(cluster).reduce((sum, count) => sum + count, 0);
  if (total !== worldSize) {
    const message = `the cluster ${JSON.stringify(cluster)} has ${total} tasks, but the job has ${worldSize} ranks`;
    throw new ShoalError('config', `${message}; start it with -n ${total}`);
  }
  let first = 0;
  for (const [job, count] of Object.entries(cluster)) {
    if (rank < first + count) return { job, task: rank - first };
    first += count;
  }
  throw new ShoalError('config', `rank ${rank} is not one of ${worldSize}`);
}
