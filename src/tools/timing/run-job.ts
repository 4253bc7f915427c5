/** Runs a job of `shoal bench`, `shoal tune` or `shoal info` as one rank of a world. Rank 0 emits the events. */
import { systemStopwatch } from '../../base/clock.ts';
import type { Environment } from '../../base/settings/settings.ts';
import type { CommGroup } from '../../group/api/process-group.ts';
import { initProcessGroup } from '../../group/init.ts';
import { compare } from './compare.ts';
import type { RankEvent, RankJob } from './job.ts';
import { runBench } from './run-bench.ts';
import { tuneSchedule } from './schedule-tuning.ts';

/** Joins the world of the environment for the time of the job. */
export async function runAsRank(job: RankJob, environment: Environment, emit: (event: RankEvent) => void): Promise<void> {
  const group = (await initProcessGroup({ backend: job.kind === 'bench' ? job.options.backend : 'auto', environment })) as CommGroup;
  try {
    await run(group, job, emit);
  } finally {
    await group.destroy();
  }
}

async function run(group: CommGroup, job: RankJob, emit: (event: RankEvent) => void): Promise<void> {
  const context = { group, stopwatch: systemStopwatch, emit };
  if (job.kind === 'bench') return runBench({ ...context, options: job.options });
  if (job.kind === 'schedule') return tuneSchedule({ ...context, options: job.options });
  if (job.kind === 'links') {
    if (group.rank === 0) emit({ event: 'links', links: { hosts: group.hosts, fabrics: group.linkMatrix } });
    return undefined;
  }
  const rows = await compare({ ...context, options: job.options, onRow: (row) => emit({ event: 'compared', row }) });
  const { topology, costModel: rates } = group;
  if (group.rank === 0) emit({ event: 'comparison', rows, topology, ...(rates === undefined ? {} : { rates }) });
  return undefined;
}
