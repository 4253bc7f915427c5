/** `shoal run`: reads the command line and starts the launcher. The vocabulary is torchrun's. */
import { isatty, type WriteStream } from 'node:tty';
import { Command, Option } from 'commander';
import { parseMilliseconds } from '../../../base/settings/quantity.ts';
import { messageOf, ShoalError } from '../../../base/errors.ts';
import type { Environment } from '../../../base/settings/settings.ts';
import type { RouteOptions } from '../../../launch/output/output-routes.ts';
import type { ServerOptions } from '../../../launch/server-specs.ts';
import { collect, natural, positive, valueOf } from '../option-values.ts';
import type { JobView } from '../status/job-view.ts';
import type { RunReport } from '../run-report.ts';

type GroupNumbers = 'serverGroups' | 'workerGroups' | 'replicas';

/** Machines with which the job begins; `max`: most at once, where they may come and go. */
interface Machines {
  readonly min: number;
  readonly max?: number;
}

interface RunFlags extends RouteOptions, Pick<ServerOptions, 'checkpointDir'>, Required<Pick<ServerOptions, GroupNumbers>> {
  readonly nprocPerNode?: string;
  readonly nnodes: Machines;
  readonly nodeRank?: number;
  readonly masterAddr?: string;
  readonly masterPort?: number;
  readonly standalone?: true;
  readonly jobId?: string;
  readonly secretFile?: string;
  readonly maxRestarts: number;
  readonly min?: number;
  readonly grace: number;
  readonly killAfter: number;
  readonly joinTimeout: number;
  readonly workers?: string;
  readonly servers?: number;
  readonly ps?: number;
  readonly serverRestarts?: number;
  readonly nodeOption: readonly string[];
  /** commander: `--no-node` sets `node` to false. */
  readonly node: boolean;
  readonly report?: true;
  readonly reportDir?: string;
  readonly watch?: true;
  readonly metrics?: string;
  readonly metricsTextfile?: string;
  readonly quiet?: true;
  readonly json?: string;
}

const examples = `
Examples:
  shoal run -n 4 train.ts                        4 processes on this machine
  shoal run -n auto train.ts -- --epochs 3       one per processor; what follows the script is the script's
  shoal run -n 2 --log-dir logs train.ts         also writes logs/rank-0/stdout.log and so on
  shoal run -n 4 --min 2 --max-restarts 3 train.ts
                                                 goes on without lost ranks, which are started again alone
  shoal run --workers 4 --servers 2 train.ts     4 processes and 2 parameter servers, which need no script
  shoal run --workers 3 --ps 2 train.ts          5 processes of a graph's script, the last 2 of them its parameter servers
  SHOAL_SECRET=… shoal run --nnodes 2 --node-rank 0 --master-addr 10.0.0.4 -n 2 train.ts
  SHOAL_SECRET=… shoal run --nnodes 1:4 --master-addr 10.0.0.4 -n 2 train.ts
                                                 the same on each machine: up to 4 join and leave while it trains

The script finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, … in its environment; initProcessGroup() reads them.
The exit code is that of the first rank that failed (128 + signal when a signal ended it).`;

const machines = valueOf('a whole number from 1, or two, the least and the most: 1:4', (text): Machines | undefined => {
  const [, least, most] = /^([1-9]\d{0,4})(?::([1-9]\d{0,4}))?$/.exec(text) ?? [];
  if (least === undefined || Number(most ?? least) < Number(least)) return undefined;
  return most === undefined || most === '1' ? { min: Number(least) } : { min: Number(least), max: Number(most) };
});
const place = valueOf('a port, or an address and a port: 9464, 0.0.0.0:9464', (text) => (/^(.*:)?\d+$/.test(text) ? text : undefined));
const port = valueOf('a port, 1 to 65535', (text) => (natural(text) <= 65_535 ? natural(text) : undefined));
const duration = valueOf('a time such as 500ms, 30s or 5min', parseMilliseconds);

export function runCommand(setExitCode: (code: number) => void): Command {
  return new Command('run')
    .summary('start a script on several processes')
    .description('Starts a JavaScript or TypeScript file on several processes, as the ranks of one job, and follows them to their end.')
    .argument('<script>', 'the file to run')
    .argument('[args...]', 'arguments of the script, after -- if you like')
    .option('-n, --nproc-per-node <count>', 'processes on this machine: a number, or auto: one per processor we may use; default 1')
    .option('--nnodes <count>', 'machines in the job, `shoal run` is started on each; 1:4: they join and leave while it runs', machines, {
      min: 1,
    })
    .option('--node-rank <index>', 'this machine among them, from 0; with 1:4 not needed', natural)
    .option('--master-addr <address>', 'where machine 0 can be reached; default for one machine: 127.0.0.1')
    .option('--master-port <port>', 'port of the store on machine 0; default for one machine: any free port, else 29500', port)
    .option('--standalone', 'one machine, any free port, whatever the other options say')
    .option('--job-id <name>', 'name of the job, the same on every machine')
    .option('--secret-file <path>', "file with the job's secret, for several machines; default: SHOAL_SECRET")
    .option('--max-restarts <count>', 'how often all ranks are started again after a failure; with --min, also each alone', natural, 0)
    .option(
      '--min <count>',
      'goes on while so many ranks are left, as with elastic.run; for one machine, or --nnodes 1:4; default: all',
      positive,
    )
    .option('--log-dir <path>', 'writes the output of every rank to <path>/rank-<n>/{stdout,stderr}.log, too')
    .option('-r, --redirects <streams>', 'to the files only: 0 none, 1 stdout, 2 stderr, 3 both, or per local rank: 0:3,1:1')
    .option('-t, --tee <streams>', 'to the files and the console, as --redirects; default with --log-dir: 3')
    .option('--local-ranks-filter <ranks>', 'only these local ranks write to the console: 0,2')
    .addOption(timeOption('--grace <time>', 'after a failure, how long the other ranks may take to end by themselves', '5s'))
    .addOption(timeOption('--kill-after <time>', 'from SIGTERM to SIGKILL', '10s'))
    .addOption(timeOption('--join-timeout <time>', 'how long machines wait for each other', '5min'))
    .option('--workers <count>', 'the same as --nproc-per-node, beside --servers')
    .option('--servers <count>', 'parameter servers in the job, for scripts that use shoal/kvstore', positive)
    .option('--ps <count>', 'parameter servers of a graph, for scripts that use shoal/graph: the last ranks, beside --workers', positive)
    .option('--worker-groups <count>', 'groups of workers that do not wait for each other', positive, 1)
    .option('--server-groups <count>', 'groups of servers, each with a copy of all parameters', positive, 1)
    .option('--replicas <count>', '2: every server has a standby that takes over', positive, 1)
    .option('--checkpoint-dir <path>', 'where servers save their state, and find it again when they are restarted')
    .option(
      '--server-restarts <count>',
      'how often a failed server is started again; default 3 with --checkpoint-dir or --replicas 2, else 0',
      natural,
    )
    .addOption(
      new Option('--node-option <flag>', 'flag for Node.js itself, such as --max-old-space-size=8192; may be repeated')
        .argParser(collect)
        .default([], 'none'),
    )
    .option('--no-node', 'the script is any executable program')
    .option('--report', 'records the run, and writes runs/<time>/report.html at its end')
    .option('--report-dir <path>', 'the same, into this folder')
    .option('--watch', 'records the run, and shows its page while it goes on: for who has the address that is printed')
    .option('--metrics <[address:]port>', 'serves metrics of the ranks of this machine to Prometheus: 9464, 0.0.0.0:9464', place)
    .option('--metrics-textfile <folder>', 'writes them for node_exporter every 5 s, as <folder>/shoal-<pid>.prom, until the job ends')
    .option('-q, --quiet', 'no lines about ranks that start and end well')
    .option('--json <file>', 'at the end writes how the job went, as JSON; - for standard output, after what ranks wrote')
    .addHelpText('after', examples)
    .passThroughOptions()
    .action(async (script: string, args: readonly string[], flags: RunFlags) => {
      setExitCode(await run(script, args[0] === '--' ? args.slice(1) : args, flags));
    });
}

async function run(script: string, args: readonly string[], flags: RunFlags): Promise<number> {
  const [{ systemClock }, { systemRandom }, { launch }, { scriptCommand }] = await Promise.all([
    import('../../../base/clock.ts'),
    import('../../../base/random.ts'),
    import('../../../launch/launch.ts'),
    import('../../../launch/script-command.ts'),
  ]);
  const { min: nodes, max: nodesMax }: Machines = flags.standalone === true ? { min: 1 } : flags.nnodes;
  const several = (nodesMax ?? nodes) > 1;
  if (several && nodesMax === undefined && flags.nodeRank === undefined)
    throw new ShoalError('usage', '--nnodes needs --node-rank: 0 on the first machine, 1 on the next, …');
  const directory = process.cwd();
  const { stdout, stderr } = process;
  const localSize = (await ranksPerNode(flags)) + checkedPs(flags, several);
  const command = scriptCommand({ script, args, directory, nodeArgs: flags.nodeOption, kind: flags.node ? 'node' : 'program' });
  for (const warning of await checkSettings(process.env)) stderr.write(`shoal: ${warning}\n`);
  const startedAt = systemClock.wallNow();
  const report = await reportOf(flags, { directory, command: [script, ...args] });
  const recording = report?.variables(process.env, { isWatched: flags.watch === true });
  const watch = flags.watch === true ? await report?.watch() : undefined;
  if (watch !== undefined) stderr.write(`shoal: watch: ${watch.url}\n`);
  const view = await viewOf(flags, [script, ...args]);
  const job = launch({
    clock: systemClock,
    random: systemRandom,
    command,
    directory,
    environment: flags.logDir === undefined ? withColours(process.env, stdout) : process.env,
    variables: { ...recording, ...view.variables(), ...(flags.ps !== undefined && { SHOAL_PS: String(flags.ps) }) },
    // Rank 0 reads the launcher's input when it is a pipe or a file.
    stdinToRank0: !isatty(0),
    localSize,
    ...(await serversOf(flags, { directory, workers: several ? undefined : localSize })),
    nodes,
    nodesMax,
    node: several ? flags.nodeRank : 0,
    masterAddress: flags.standalone === true ? undefined : flags.masterAddr,
    masterPort: flags.standalone === true ? undefined : flags.masterPort,
    secret: await readSecret(flags.secretFile, several),
    job: flags.jobId,
    maxRestarts: flags.maxRestarts,
    restartedRanks: { count: flags.ps ?? 0, restarts: flags.serverRestarts ?? 0 },
    ranksMin: ranksMinOf(flags, { several, localSize }),
    graceMs: flags.grace,
    killAfterMs: flags.killAfter,
    joinTimeoutMs: flags.joinTimeout,
    logDir: flags.logDir,
    redirects: flags.redirects,
    tee: flags.tee,
    localRanksFilter: flags.localRanksFilter,
    stdout,
    stderr,
    colour: wantsColours(process.env, stdout) ? 'always' : 'never',
    events: flags.quiet === true ? 'failures' : 'all',
  });
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const) process.on(name, () => job.signal(name));
  stdout.once('error', (error) => job.outputLost(error));
  view.follow(job);
  const { exitCode, failure, changes } = await job.result.finally(() => view.close());
  if (report !== undefined) {
    stderr.write(`shoal: report: ${report.write(exitCode, failure, changes)}\n`);
  }
  await watch?.close();
  if (flags.json !== undefined) {
    const { writeJson } = await import('../write-json.ts');
    const seconds = (systemClock.wallNow() - startedAt) / 1000;
    const times = { startedAt: new Date(startedAt).toISOString(), seconds };
    const outcome = { exitCode, failure: failure ?? null, changes };
    writeJson(flags.json, { version: 1, command: [script, ...args], ranks: localSize, ...times, ...outcome });
  }
  return exitCode;
}

async function viewOf({ metrics, metricsTextfile }: RunFlags, command: readonly string[]): Promise<JobView> {
  const { JobView } = await import('../status/job-view.ts');
  const warn = (line: string): void => void process.stderr.write(`shoal: ${line}\n`);
  const view = new JobView({ environment: process.env, command, metrics, textfile: metricsTextfile, warn });
  await view.open();
  return view;
}

async function reportOf(
  { report, reportDir, watch }: RunFlags,
  run: { readonly directory: string; readonly command: readonly string[] },
): Promise<RunReport | undefined> {
  if (report === undefined && reportDir === undefined && watch === undefined) return undefined;
  const [{ systemClock }, { RunReport }] = await Promise.all([import('../../../base/clock.ts'), import('../run-report.ts')]);
  return new RunReport(reportDir, { ...run, startedAt: new Date(systemClock.wallNow()) });
}

function wantsColours(environment: Environment, { isTTY }: WriteStream): boolean {
  return isTTY && environment['NO_COLOR'] === undefined;
}

/** Ranks write to pipes; their output ends in our terminal all the same. FORCE_COLOR is what Node.js and most packages go by. */
function withColours(environment: Environment, stdout: WriteStream): Environment {
  if (!wantsColours(environment, stdout) || environment['FORCE_COLOR'] !== undefined) return environment;
  const level = { 1: '0', 4: '1', 8: '2' }[stdout.getColorDepth()] ?? '3';
  return { ...environment, FORCE_COLOR: level };
}

/** Warnings about variables nobody reads. What every rank would refuse is refused once, before any is started.
 *  @throws ShoalError `config`. */
async function checkSettings(environment: Environment): Promise<readonly string[]> {
  const [{ resolveSettings }, { parseSelection }, { checkMetrics }, { launchVariables }, { placeVariables }, { clusterVariables }] =
    await Promise.all([
      import('../../../base/settings/settings.ts'),
      import('../../../collectives/select.ts'),
      import('../../../metrics/rank-teller.ts'),
      import('../../../store/environment.ts'),
      import('../../../ps/job/environment.ts'),
      import('../../../graph/cluster/environment.ts'),
    ]);
  const { settings, warnings } = resolveSettings(environment, { reserved: [...launchVariables, ...placeVariables, ...clusterVariables] });
  parseSelection(settings.algorithms);
  checkMetrics(settings);
  return warnings;
}

/** `workers`: of the whole job; undefined where only the launchers together know.
 *  @throws ShoalError `usage` for options about servers without `--servers`, `config` for numbers that cannot be. */
async function serversOf(
  flags: RunFlags,
  { directory, workers }: { directory: string; workers: number | undefined },
): Promise<{ servers?: ServerOptions }> {
  const { servers, serverGroups, workerGroups, replicas, checkpointDir, serverRestarts, ps, min } = flags;
  if (servers === undefined) {
    const isAlone = serverRestarts === undefined || ps !== undefined;
    if (serverGroups + workerGroups + replicas === 3 && checkpointDir === undefined && isAlone) return {};
    throw new ShoalError('usage', 'options about servers and worker groups need --servers <count>');
  }
  const [{ builtEntry }, { detectPlace }, { serverVariables }, { resolve }] = await Promise.all([
    import('../../../base/packages/package-root.ts'),
    import('../../../ps/job/environment.ts'),
    import('../../../launch/server-specs.ts'),
    import('node:path'),
  ]);
  const command = [process.execPath, ...flags.nodeOption, builtEntry('ps/server/server-entry.js')];
  const folder = checkpointDir === undefined ? {} : { checkpointDir: resolve(directory, checkpointDir) };
  const restarts = serverRestarts === undefined ? {} : { restarts: serverRestarts };
  const options = { command, servers, serverGroups, workerGroups, replicas, workersMin: min, ...folder, ...restarts };
  // Checks the variables as every server will read them.
  if (workers !== undefined) detectPlace(serverVariables(options, workers), { async: false, localWorkers: 1 });
  return { servers: options };
}

/** @throws ShoalError `usage` for `--ps` where ranks would not know which of them are meant. */
function checkedPs({ ps, servers }: RunFlags, several: boolean): number {
  if (ps === undefined) return 0;
  if (servers !== undefined)
    throw new ShoalError('usage', '--ps is for shoal/graph and --servers for shoal/kvstore; a script has one or the other');
  if (several) throw new ShoalError('usage', '--ps is for one machine; on several, give -n on each and the cluster in the script');
  return ps;
}

/** @throws ShoalError `usage` for `--min` where ranks cannot go on without others, or that is no number of ranks. */
function ranksMinOf(
  { min, servers, ps, workerGroups, serverGroups, nnodes: { min: nodes, max } }: RunFlags,
  { several, localSize }: { several: boolean; localSize: number },
): number | undefined {
  if (servers !== undefined && several && max !== undefined)
    throw new ShoalError('usage', `--servers need a fixed number of machines, and --nnodes ${nodes}:${max} is a range`);
  if (min === undefined) return undefined;
  if ((several && max === undefined) || ps !== undefined) {
    const message = '--min is for ranks of one machine or of a range of machines, without --ps; --max-restarts starts all ranks again';
    throw new ShoalError('usage', message);
  }
  if (servers !== undefined && workerGroups + serverGroups > 2)
    throw new ShoalError(
      'usage',
      '--min with --servers is for one group of workers and one of servers; dist_async makes its groups itself',
    );
  const first = several ? nodes * localSize : localSize;
  if (min > first)
    throw new ShoalError('usage', `--min ${min} is more than the ${first} ranks ${several ? 'with which the job begins' : 'of -n'}`);
  return min;
}

/** Far beyond what one machine runs. */
const ranksPerNodeMax = 99_999;

async function ranksPerNode({ workers, nprocPerNode }: RunFlags): Promise<number> {
  const [flag, text] = workers === undefined ? ['--nproc-per-node', nprocPerNode ?? '1'] : ['--workers', workers];
  if (workers !== undefined && nprocPerNode !== undefined && nprocPerNode !== workers) {
    throw new ShoalError('usage', `--workers ${workers} and --nproc-per-node ${nprocPerNode} are the same number; give one of them`);
  }
  if (/^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= ranksPerNodeMax) return Number(text);
  if (text !== 'auto' && text !== 'cpu')
    throw new ShoalError('usage', `${flag} ${text}: expected a number from 1 to ${ranksPerNodeMax}, auto or cpu`);
  const { allowedCpus } = await import('../../../base/files/allowed-cpus.ts');
  return allowedCpus().count;
}

/** One machine needs no secret from outside: the launcher makes a fresh one. A file of this user's that others can read is refused, like ssh
 *  refuses such a key. */
async function readSecret(file: string | undefined, several: boolean): Promise<string | undefined> {
  if (file === undefined) return several ? process.env['SHOAL_SECRET'] : undefined;
  const [{ readRegularFile }, { stat }] = await Promise.all([import('../../../base/files/read-file.ts'), import('node:fs/promises')]);
  const [{ mode, uid }, bytes] = await Promise.all([stat(file), readRegularFile(file, { bytesMax: 2 ** 16 })]).catch((error: unknown) => {
    throw new ShoalError('usage', `--secret-file ${file} cannot be read: ${messageOf(error)}`);
  });
  const secret = bytes.toString().trim();
  if (uid === process.getuid?.() && (mode & 0o077) !== 0)
    throw new ShoalError('usage', `--secret-file ${file} can be read by others (mode ${(mode & 0o777).toString(8)}): chmod 600 ${file}`);
  if (secret === '') throw new ShoalError('usage', `--secret-file ${file} is empty`);
  return secret;
}

/** An option in milliseconds whose default is shown as people write it. */
function timeOption(flags: string, about: string, fallback: string): Option {
  return new Option(flags, about).argParser(duration).default(duration(fallback), fallback);
}
