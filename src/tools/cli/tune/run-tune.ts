/** The command `shoal tune`: compares algorithms, prints, and adds its findings to the file, whole or not at all. */
import { statSync } from 'node:fs';
import type { Writable } from 'node:stream';
import { messageOf, ShoalError } from '../../../base/errors.ts';
import type { Environment } from '../../../base/settings/settings.ts';
import { packageVersion } from '../../../base/packages/version.ts';
import type { BenchFlags } from '../commands/bench.ts';
import { comparable, type ComparableCollective } from '../../timing/compare.ts';
import { choicesOf } from '../../timing/text/comparison-table.ts';
import { sizesOf } from '../../timing/options.ts';
import { formatTable } from '../../../collectives/select.ts';
import { tunedRules, withTunedWorld } from '../../../collectives/tuning.ts';
import { parseTuning, tuningBytesMax, type Tuning } from '../../../collectives/tuning-format.ts';
import { readRegularFileSync } from '../../../base/files/read-file.ts';
import { writeFileAt } from '../../../base/files/write-file.ts';
import { runComparison, type ComparisonReport } from '../bench/run-comparison.ts';

/** Flags as commander gives them. */
export interface TuneFlags extends Pick<BenchFlags, 'minbytes' | 'maxbytes' | 'stepfactor' | 'ranks' | 'hosts' | 'budget'> {
  readonly collectives: string;
  readonly output: string;
  readonly json?: true;
}

/** @returns the exit code.
 *  @throws ShoalError `usage`; `config` for a file that is there and is none of ours; `system` when it cannot be written. */
export async function runTune(flags: TuneFlags, { environment, stdout }: { environment: Environment; stdout: Writable }): Promise<number> {
  const collectives = collectivesOf(flags.collectives);
  const range = { minBytes: flags.minbytes, maxBytes: flags.maxbytes, stepBytes: 0, stepFactor: flags.stepfactor };
  const sizes = sizesOf(range, { iterations: 1, warmup: 0 }).map(({ bytes }) => bytes);
  const known = knownTuning(flags.output);
  const { exitCode, report } = await runComparison({
    collectives,
    sizes,
    algorithms: 'all',
    dtype: 'float32',
    op: 'sum',
    memory: 'shared',
    wait: 'async',
    budgetMs: flags.budget,
    ranks: flags.ranks,
    hosts: flags.hosts,
    // The ranks measure without an earlier tuning or choice of algorithms.
    environment: { ...environment, SHOAL_TUNING_FILE: undefined, SHOAL_ALGORITHMS: undefined },
    stdout: flags.json === true ? process.stderr : stdout,
  });
  if (exitCode !== 0 || report === undefined) return exitCode;
  const wrong = report.rows.find((row) => row.wrong > 0);
  if (wrong !== undefined) {
    const message = `${wrong.collective} of ${wrong.bytes} bytes gave wrong results; nothing is written. Please report this`;
    throw new ShoalError('system', message);
  }
  const tuning = tuningOf(known, report);
  const path = writeFileAt(flags.output, `${JSON.stringify(tuning, null, 2)}\n`);
  if (flags.json === true) {
    stdout.write(`${JSON.stringify({ version: 1, output: path, tuning, measured: report }, undefined, 2)}\n`);
    return 0;
  }
  stdout.write(
    `\n${formatTable(tunedRules(tuning, { ...report, loadStore: report.topology.hosts.length === 1 }))}\n\nwritten to ${path}; use it with SHOAL_TUNING_FILE=${path}\n`,
  );
  return 0;
}

function collectivesOf(text: string): ComparableCollective[] {
  return text.split(',').map((name) => {
    const found = comparable.find((each) => each === name.trim());
    if (found === undefined) throw new ShoalError('usage', `--collectives: '${name}' cannot be tuned; use ${comparable.join(', ')}`);
    return found;
  });
}

function knownTuning(path: string): Tuning | undefined {
  if (!statSync(path, { throwIfNoEntry: false })?.isFile()) return undefined;
  try {
    return parseTuning(readRegularFileSync(path, { bytesMax: tuningBytesMax }).toString(), path);
  } catch (thrown) {
    throw new ShoalError('config', `${messageOf(thrown)}, under another name (-o), or remove this one`, { cause: thrown });
  }
}

function tuningOf(known: Tuning | undefined, { topology, order, rates, rows }: ComparisonReport): Tuning {
  // Hosts of a topology are ranks that map each other's memory.
  const loadStore = topology.hosts.length === 1;
  const hosts = topology.hosts.map((ranks) => ranks.length);
  return withTunedWorld(
    known,
    { hosts, loadStore, order, ...(rates === undefined ? {} : { rates }), choices: choicesOf(rows) },
    packageVersion,
  );
}
