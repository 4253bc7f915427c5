/** `shoal bench`: reads the command line and runs the benchmark, as ranks that it starts or as a rank of a job. The vocabulary is that of
 *  nccl-tests. */
import { Command, Option } from 'commander';
import { ShoalError } from '../../../base/errors.ts';
import { nearestName } from '../../../base/settings/nearest-name.ts';
import { collectiveNames, isPairTest, pairTests, type CollectiveName } from '../../timing/collective.ts';
import { parseKinds, parseSizes, sizesOf, type BenchOptions, type SizeRange } from '../../timing/options.ts';
import type { BenchEvent } from '../../timing/report.ts';
import { natural, positive, sizeOption } from '../option-values.ts';
import { writeJson } from '../write-json.ts';

export interface BenchFlags {
  readonly minbytes: number;
  readonly maxbytes: number;
  readonly stepbytes: number;
  readonly stepfactor: number;
  readonly sizes?: string;
  readonly iters: number;
  readonly warmup_iters: number;
  readonly check: number;
  readonly datatype: string;
  readonly op: string;
  readonly root: number;
  readonly ranks?: number;
  readonly hosts: number;
  readonly algorithms?: string;
  readonly budget: number;
  readonly private?: true;
  readonly touch: 'each' | 'once';
  readonly sync?: true;
  readonly parallel?: number;
  readonly buckets?: number;
  readonly checkBuckets?: number;
  readonly inPlace?: true;
  readonly overlap?: true;
  readonly backend: string;
  readonly json?: string;
  readonly raw?: true;
}

const examples = `
Examples:
  shoal bench all-reduce -n 2 -b 8 -e 100M -f 2              sizes from 8 B to 100 MiB, doubling, 2 ranks on this machine
  shoal bench all-reduce -n 4 --sizes 8:2000,64KiB:500,25MiB --sync
  shoal bench all-reduce -n 2 -b 25M -e 25M --buckets 64 --parallel 8
  shoal bench all-reduce -n 2 -b 1K -e 1M -f 4 -d all -o all    every operator on every type that it is defined on
  shoal bench latency -n 2                                   one message there and one back, in the table of osu_latency
  shoal bench all-reduce -n 2 -b 8 -e 1M -f 8 --overlap      computation beside calls, as osu_iallreduce measures it
  shoal bench all-reduce -n 4 --hosts 2 -b 8 -e 4M -f 8 --algorithms all    algorithms against each other, and auto
  shoal run -n 2 … or mpirun -n 2 shoal bench broadcast      as a rank of a job that is there already

The time is the median over iterations on the slowest rank. Without --parallel and --buckets one operation runs at a time;
with them a sample is --buckets operations, --parallel of them in flight, and the time is the sample's divided by --buckets.`;

export function benchCommand(setExitCode: (code: number) => void): Command {
  return new Command('bench')
    .summary('time a collective and check its results')
    .description(
      `Times a collective over a range of sizes and prints the table of nccl-tests; ${pairTests.join(', ')} and --overlap print those of the OSU micro-benchmarks.\n\nCollectives: ${collectiveNames.join(', ')}.`,
    )
    .argument('<collective>', 'what to measure')
    .addOption(sizeOption('-b, --minbytes <size>', 'smallest size', 32 * 2 ** 20))
    .addOption(sizeOption('-e, --maxbytes <size>', 'largest size', 32 * 2 ** 20))
    .addOption(sizeOption('-i, --stepbytes <size>', 'from one size to the next', 2 ** 20))
    .option('-f, --stepfactor <factor>', 'from one size to the next, instead of -i; 1: -i', positive, 1)
    .option('--sizes <list>', 'instead of -b, -e, -i, -f: sizes with iterations and warm-up, 8:2000:400,1KiB,25MiB:20')
    .option('--iters <count>', 'timed iterations', positive, 20)
    .option('-w, --warmup_iters <count>', 'iterations before them', natural, 5)
    .option('-c, --check <count>', 'rounds of checking results, after the timed ones; 0: none', natural, 1)
    .option('-d, --datatype <type>', 'float, double, half, bfloat16, int8, uint8, int32, uint32, int64, …; all', 'float')
    .option('-o, --op <operator>', 'sum, prod, min, max, avg, band, bor, bxor; all', 'sum')
    .option('-r, --root <rank>', 'root of broadcast, reduce, gather and scatter', natural, 0)
    .option('-n, --ranks <count>', 'processes to start on this machine; default 2', positive)
    .option('--hosts <count>', 'hosts that those processes play: between them they use the network', positive, 1)
    .option(
      '--algorithms <names>',
      'instead of the table: algorithms against each other, names with commas or all; auto is always among them',
    )
    .option('--budget <ms>', 'with --algorithms: timed per size, about; warming up and repeating what scatters come on top', positive, 1000)
    .option('--private', 'plain typed arrays instead of tensors in shared memory')
    .addOption(new Option('--touch <when>', 'ranks write their inputs before each call, or once').choices(['each', 'once']).default('each'))
    .option('--sync', 'wait with waitSync() instead of await')
    .option('--parallel <count>', 'operations in flight; default: 1, or all of --buckets', positive)
    .option('--buckets <count>', 'operations per sample, each on a tensor of its own; default: --parallel', positive)
    .option('--check-buckets <count>', 'how many of the buckets are checked; default: all', positive)
    .option('--in-place', 'only the in-place half of the table, where the collective has one')
    .option('--overlap', 'also with computation between start and wait, as long as the calls alone; in place where there is that')
    .option('--backend <name>', 'backend of initProcessGroup', 'auto')
    .option('--json <file>', 'also writes the report as JSON; - for stdout, instead of the table')
    .option('--raw', 'the JSON report holds every sample of every rank')
    .addHelpText('after', examples)
    .action(async (name: string, flags: BenchFlags, command: Command) => {
      const collective = collectiveOf(name);
      setExitCode(await bench(collective, isPairTest(collective) ? { ...flags, ...pairDefaults(collective, command) } : flags));
    });
}

/** The options of a test of two ranks that were not given: bytes from 1 B, doubled, in windows of 64 messages as OSU's. */
function pairDefaults(collective: CollectiveName, command: Command): Partial<BenchFlags> {
  const buckets = collective === 'latency' ? {} : { buckets: 64 };
  const usual = { minbytes: 1, maxbytes: 2 ** 20, stepfactor: 2, iters: 100, datatype: 'uint8', touch: 'once', ...buckets };
  return Object.fromEntries(Object.entries(usual).filter(([name]) => command.getOptionValueSource(name) !== 'cli'));
}

async function bench(collective: CollectiveName, flags: BenchFlags): Promise<number> {
  const options = optionsOf(collective, flags);
  if (flags.algorithms !== undefined) return compareAlgorithms(options, flags, flags.algorithms);
  const [{ checkBackend }, { runOnRanks }, { ReportBuilder }, { BenchConsole }] = await Promise.all([
    import('../../../group/caller/call-arguments.ts'),
    import('../bench/launch-bench.ts'),
    import('../../timing/report.ts'),
    import('../../timing/text/console.ts'),
  ]);
  checkBackend(options.backend);
  const builder = new ReportBuilder();
  const quiet = flags.json === '-';
  const screen = new BenchConsole({
    // With JSON on stdout, the table is for people who watch.
    stdout: quiet ? process.stderr : process.stdout,
    stderr: process.stderr,
    range: rangeOf(options.collective, flags),
    iterations: flags.iters,
    warmup: flags.warmup_iters,
  });
  const onEvent = (event: BenchEvent): void => {
    builder.add(event);
    screen.show(event);
  };
  const job = { kind: 'bench', hosts: flags.hosts, options } as const;
  const exitCode = await runOnRanks({ ranks: flags.ranks, job, environment: process.env, onEvent }).finally(() => screen.close());
  const { report } = builder;
  if (report === undefined) return exitCode;
  if (flags.json !== undefined) writeJson(flags.json, report);
  return exitCode === 0 && report.summary.wrong > 0 ? 1 : exitCode;
}

async function compareAlgorithms(options: BenchOptions, flags: BenchFlags, names: string): Promise<number> {
  const { collective, sizes, dtype, op, memory, wait } = options;
  const [{ comparable }, { runComparison }] = await Promise.all([import('../../timing/compare.ts'), import('../bench/run-comparison.ts')]);
  const measured = comparable.find((each) => each === collective);
  if (flags.overlap === true || options.kinds !== undefined)
    throw new ShoalError('usage', '--algorithms compares times of one type and operator; leave out --overlap and all');
  if (measured === undefined) throw new ShoalError('usage', `${collective} has no algorithms to compare; use ${comparable.join(', ')}`);
  const { exitCode, report } = await runComparison({
    collectives: [measured],
    sizes: sizes.map(({ bytes }) => bytes),
    algorithms: names === 'all' ? 'all' : names.split(','),
    ...{ dtype, op, memory, wait, ranks: flags.ranks, hosts: flags.hosts, budgetMs: flags.budget },
    environment: process.env,
    stdout: flags.json === '-' ? process.stderr : process.stdout,
  });
  if (report === undefined) return exitCode;
  if (flags.json !== undefined) writeJson(flags.json, report);
  return exitCode === 0 && report.rows.some(({ wrong }) => wrong > 0) ? 1 : exitCode;
}

function collectiveOf(name: string): CollectiveName {
  const found = collectiveNames.find((each) => each === name || each.replaceAll('-', '') === name || each.replaceAll('-', '_') === name);
  if (found !== undefined) return found;
  const nearest = nearestName(name, collectiveNames);
  const guess = nearest === undefined ? '' : ` (did you mean ${nearest}?)`;
  throw new ShoalError('usage', `'${name}' is not a collective that can be measured${guess}; use ${collectiveNames.join(', ')}`);
}

function rangeOf(
  collective: CollectiveName,
  { minbytes, maxbytes, stepbytes, stepfactor, sizes, iters, warmup_iters }: BenchFlags,
): SizeRange {
  if (collective === 'barrier') return { minBytes: 0, maxBytes: 0, stepBytes: 0, stepFactor: 1 };
  if (sizes === undefined) return { minBytes: minbytes, maxBytes: maxbytes, stepBytes: stepbytes, stepFactor: stepfactor };
  const bytes = parseSizes(sizes, { iterations: iters, warmup: warmup_iters }).map((point) => point.bytes);
  return { minBytes: Math.min(...bytes), maxBytes: Math.max(...bytes), stepBytes: 0, stepFactor: 1 };
}

function optionsOf(collective: CollectiveName, flags: BenchFlags): BenchOptions {
  const counts = { iterations: flags.iters, warmup: flags.warmup_iters };
  const barrier = [{ bytes: 0, ...counts }];
  const buckets = flags.buckets ?? flags.parallel ?? 1;
  const parallel = flags.parallel ?? buckets;
  if (parallel > buckets)
    throw new ShoalError('usage', `--parallel ${parallel} exceeds --buckets ${buckets}: no more than all can be in flight`);
  if (flags.overlap === true && isPairTest(collective)) {
    const message = `--overlap measures collectives beside computation, and ${collective} is a test of messages; leave it out`;
    throw new ShoalError('usage', message);
  }
  const memory = flags.private === true ? 'private' : 'shared';
  const kinds = parseKinds({ collective, memory }, flags);
  return {
    collective,
    sizes:
      collective === 'barrier'
        ? barrier
        : flags.sizes === undefined
          ? sizesOf(rangeOf(collective, flags), counts)
          : parseSizes(flags.sizes, counts),
    ...kinds[0],
    ...(kinds.length > 1 ? { kinds } : {}),
    root: flags.root,
    checks: flags.check,
    memory,
    touch: flags.touch,
    wait: flags.sync === true ? 'sync' : 'async',
    parallel,
    buckets,
    ...(flags.checkBuckets === undefined ? {} : { checkedBuckets: flags.checkBuckets }),
    ...(flags.inPlace === true || flags.overlap === true ? { onlyInPlace: true } : {}),
    ...(flags.overlap === true ? { overlap: true } : {}),
    backend: flags.backend,
    samples: flags.raw === true ? 'kept' : 'dropped',
  };
}
