/** The script that `shoal bench` and `shoal tune` run on every rank they start: the job as JSON in the first argument, events on
 *  rank 0's stdout. */
import { isShoalError } from '../../base/errors.ts';
import { systemStopwatch } from '../../base/clock.ts';
import { initProcessGroup } from '../../group/init.ts';
import type { CommGroup } from '../../group/api/process-group.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import { compare, type ComparedRow } from './compare.ts';
import { formatEvent } from './event-lines.ts';
import type { CompareEvent, RankJob } from './job.ts';
import type { BenchEvent } from './report.ts';
import { runBench } from './run-bench.ts';
import { tuneSchedule, type ScheduleEvent } from './schedule-tuning.ts';

const job = JSON.parse(process.argv[2] ?? '') as RankJob;
const emit = (event: BenchEvent | CompareEvent | ScheduleEvent): void => void process.stdout.write(formatEvent(event));

/** Ranks of one machine play several hosts on request, neighbours together. */
const hosts =
  job.hosts === 1
    ? {}
    : { SHOAL_HOST_ID: `host-${Math.floor((Number(process.env.LOCAL_RANK) * job.hosts) / Number(process.env.LOCAL_WORLD_SIZE))}` };
const backend = job.kind === 'bench' ? job.options.backend : 'auto';
try {
  const group = await initProcessGroup({ backend, environment: { ...process.env, ...hosts } });
  try {
    await run(group);
  } finally {
    await group.destroy();
  }
} catch (error) {
  if (!isShoalError(error)) throw error;
  process.stderr.write(`${error.code}: ${error.message}\n`);
  process.exitCode = 1;
}

async function run(group: ProcessGroup): Promise<void> {
  if (job.kind === 'bench') {
    await runBench({ group, options: job.options, stopwatch: systemStopwatch, emit });
    return;
  }
  if (job.kind === 'schedule') {
    await tuneSchedule({ group, options: job.options, stopwatch: systemStopwatch, emit });
    return;
  }
  const world = group as CommGroup;
  const onRow = (row: ComparedRow): void => emit({ event: 'compared', row });
  const rows = await compare({ group: world, options: job.options, stopwatch: systemStopwatch, onRow });
  if (group.rank !== 0) return;
  const { topology, costModel } = world;
  emit({ event: 'comparison', rows, topology, ...(costModel === undefined ? {} : { rates: costModel }) });
}
