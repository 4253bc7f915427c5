/** The script that `shoal bench`, `shoal tune` and `shoal info` run on every rank they start: the job as JSON in the first argument, events
 *  on rank 0's stdout. */
import { isShoalError } from '../../base/errors.ts';
import { formatEvent } from './event-lines.ts';
import type { RankJob } from './job.ts';
import { runAsRank } from './run-job.ts';

const job = JSON.parse(process.argv[2] ?? '') as RankJob;

/** Ranks of one machine play several hosts on request, neighbours together. */
const hosts =
  job.hosts === 1
    ? {}
    : { SHOAL_HOST_ID: `host-${Math.floor((Number(process.env.LOCAL_RANK) * job.hosts) / Number(process.env.LOCAL_WORLD_SIZE))}` };
try {
  await runAsRank(job, { ...process.env, ...hosts }, (event) => void process.stdout.write(formatEvent(event)));
} catch (error) {
  if (!isShoalError(error)) throw error;
  process.stderr.write(`${error.code}: ${error.message}\n`);
  process.exitCode = 1;
}
