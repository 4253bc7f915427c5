/** Number of processors that this process may really use: by its affinity mask and the quota of its control group, not by the
 *  machine's size. A container with half a processor has one. */
import { availableParallelism } from 'node:os';
import { controlGroups, readText, type ReadText } from './control-groups.ts';

export interface AllowedCpus {
  /** Usable processors, at least 1. */
  readonly count: number;
  /** Processors by affinity alone. */
  readonly affinity: number;
  /** Time that the control group grants, in processors; undefined: no quota. */
  readonly quota: number | undefined;
}

export function allowedCpus(read: ReadText = readText): AllowedCpus {
  const list = /^Cpus_allowed_list:\s*(\S+)/m.exec(read('/proc/self/status') ?? '')?.[1];
  const affinity = (list === undefined ? 0 : countCpuList(list)) || availableParallelism();
  const quota = cgroupQuota(read);
  const count = quota === undefined ? affinity : Math.max(1, Math.min(affinity, Math.ceil(quota)));
  return { count, affinity, quota };
}

/** Length of a list of CPUs: `0-3,8` is 5. Zero when malformed. */
export function countCpuList(list: string): number {
  let count = 0;
  for (const item of list.split(',')) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(item);
    if (match === null) return 0;
    count += Number(match[2] ?? match[1]) - Number(match[1]) + 1;
  }
  return count;
}

/** The tightest quota from our group up to the root, of cgroup version 2 and 1. */
function cgroupQuota(read: ReadText): number | undefined {
  const quotas = [...controlGroups('cpu', read)]
    .map(({ isUnified, folder }) => (isUnified ? quotaV2(read(`${folder}/cpu.max`)) : quotaV1(read, folder)))
    .filter((quota) => quota !== undefined);
  return quotas.length === 0 ? undefined : Math.min(...quotas);
}

function quotaV2(text: string | undefined): number | undefined {
  const match = /^(\d+) (\d+)/.exec(text ?? '');
  return match === null ? undefined : Number(match[1]) / Number(match[2]);
}

function quotaV1(read: ReadText, folder: string): number | undefined {
  const quota = Number(read(`${folder}/cpu.cfs_quota_us`) ?? Number.NaN);
  const period = Number(read(`${folder}/cpu.cfs_period_us`) ?? Number.NaN);
  return quota > 0 && period > 0 ? quota / period : undefined;
}
