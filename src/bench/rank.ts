/** The script that `shoal bench` runs on every rank it starts: options as JSON in the first argument, events as JSON lines
 *  on rank 0's stdout. */
import { isShoalError } from '../base/errors.ts';
import { systemStopwatch } from '../base/stopwatch.ts';
import { initProcessGroup } from '../group/init.ts';
import type { BenchOptions } from './options.ts';
import { runBench } from './run-bench.ts';

const options = JSON.parse(process.argv[2] ?? '') as BenchOptions;
const group = await initProcessGroup({ backend: options.backend });
try {
  await runBench({
    group,
    options,
    stopwatch: systemStopwatch,
    emit: (event) => process.stdout.write(`${JSON.stringify(event)}\n`),
  });
} catch (error) {
  if (!isShoalError(error)) throw error;
  process.stderr.write(`${error.code}: ${error.message}\n`);
  process.exitCode = 1;
} finally {
  await group.destroy();
}
