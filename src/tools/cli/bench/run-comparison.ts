/** Compares algorithms on ranks that are started here, or as a rank of a job that is there already, and prints the rows as they
 *  come. For `shoal bench --algorithms` and `shoal tune`. */
import type { Writable } from 'node:stream';
import { readSettings, type Environment } from '../../../base/settings/settings.ts';
import { packageVersion } from '../../../base/packages/version.ts';
import { namesOf, type CompareOptions } from '../../timing/compare.ts';
import { formatComparison, formatComparisonHead } from '../../timing/text/comparison-table.ts';
import type { CompareEvent } from '../../timing/job.ts';
import { algorithms } from '../../../collectives/registry.ts';
import { runOnRanks } from './launch-bench.ts';

export interface ComparisonOptions extends Omit<CompareOptions, 'order'> {
  /** Processes to start; default 2. Not for a process that is a rank already. */
  readonly ranks: number | undefined;
  /** Hosts that they play. */
  readonly hosts: number;
  readonly environment: Environment;
  readonly stdout: Writable;
}

type Comparison = Extract<CompareEvent, { event: 'comparison' }>;

/** `shoal bench --algorithms … --json`. */
export interface ComparisonReport extends Omit<Comparison, 'event'> {
  readonly schema: 'shoal-comparison';
  readonly version: 1;
  readonly shoal: string;
  readonly node: string;
  readonly order: 'canonical' | 'relaxed';
  /** Largest over rows. */
  readonly worstAutoOverBest: number;
}

/** The report is undefined where the job failed, and on ranks other than 0. */
export async function runComparison(options: ComparisonOptions): Promise<{ exitCode: number; report: ComparisonReport | undefined }> {
  const { ranks, hosts, environment, stdout, ...rest } = options;
  const { order } = readSettings(environment);
  const compareOptions: CompareOptions = { ...rest, order };
  const asked = namesOf(rest.algorithms);
  // With `all`, an algorithm that may not be chosen has no column.
  const shown =
    rest.algorithms === 'all' && order === 'canonical' ? algorithms.filter(({ association }) => association !== 'relaxed') : algorithms;
  const names = shown.map(({ name }) => name).filter((name) => asked.includes(name));
  let report: ComparisonReport | undefined;
  let begun = false;
  const onEvent = (event: CompareEvent): void => {
    if (event.event === 'comparison') {
      report = reportOf(event, order);
      return;
    }
    if (!begun) stdout.write(formatComparisonHead(names));
    begun = true;
    stdout.write(formatComparison(event.row, names));
  };
  const exitCode = await runOnRanks({ ranks, job: { kind: 'compare', hosts, options: compareOptions }, environment, onEvent });
  return { exitCode, report };
}

function reportOf({ rows, topology, rates }: Comparison, order: ComparisonReport['order']): ComparisonReport {
  return {
    schema: 'shoal-comparison',
    version: 1,
    shoal: packageVersion,
    node: process.version,
    topology,
    order,
    ...(rates === undefined ? {} : { rates }),
    worstAutoOverBest: rows.reduce((worst, row) => Math.max(worst, row.autoOverBest), 0),
    rows,
  };
}
