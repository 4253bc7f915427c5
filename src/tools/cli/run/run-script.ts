/** Runs a script on several processes, as `shoal run` was told to. One file loads all that each job needs. */
import { stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { isatty, type WriteStream } from 'node:tty';
import { systemClock } from '../../../base/clock.ts';
import { messageOf, ShoalError } from '../../../base/errors.ts';
import { allowedCpus } from '../../../base/files/allowed-cpus.ts';
import { readRegularFile } from '../../../base/files/read-file.ts';
import { builtEntry } from '../../../base/packages/package-root.ts';
import { systemRandom } from '../../../base/random.ts';
import { resolveSettings, type Environment } from '../../../base/settings/settings.ts';
import { parseSelection } from '../../../collectives/select.ts';
import { clusterVariables } from '../../../graph/cluster/environment.ts';
import { launch } from '../../../launch/launch.ts';
import type { RouteOptions } from '../../../launch/output/output-routes.ts';
import { scriptCommand } from '../../../launch/script-command.ts';
import { serverVariables, type ServerOptions } from '../../../launch/server-specs.ts';
import { checkMetrics } from '../../../metrics/rank-teller.ts';
import { placeVariables } from '../../../launch/rank-environment.ts';
import { detectPlace } from '../../../ps/job/environment.ts';
import { launchVariables } from '../../../store/environment.ts';
import type { RunReport } from '../run-report.ts';
import { JobView } from '../status/job-view.ts';
import { writeJson } from '../write-json.ts';

type GroupNumbers = 'serverGroups' | 'workerGroups' | 'replicas';

/** Machines with which the job begins; `max`: most at once, where they may come and go. */
export interface Machines {
  readonly min: number;
  readonly max?: number;
}

/** The command line of `shoal run`. */
export interface RunFlags extends RouteOptions, Pick<ServerOptions, 'checkpointDir'>, Required<Pick<ServerOptions, GroupNumbers>> {
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

/** @returns the exit code. @throws ShoalError `usage` or `config`. */
export async function runScript(script: string, args: readonly string[], flags: RunFlags): Promise<number> {
  const { min: nodes, max: nodesMax }: Machines = flags.standalone === true ? { min: 1 } : flags.nnodes;
  const several = (nodesMax ?? nodes) > 1;
  if (several ? nodesMax === undefined && flags.nodeRank === undefined : flags.standalone !== true && (flags.nodeRank ?? 0) > 0)
    throw new ShoalError('usage', '--nnodes needs --node-rank, and --node-rank needs --nnodes: 0 is the first machine, 1 the next, …');
  const directory = process.cwd();
  const { stdout, stderr } = process;
  const localSize = ranksPerNode(flags) + checkedPs(flags, several);
  const command = scriptCommand({ script, args, directory, nodeArgs: flags.nodeOption, kind: flags.node ? 'node' : 'program' });
  for (const warning of checkSettings(process.env)) stderr.write(`shoal: ${warning}\n`);
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
    ...serversOf(flags, { directory, workers: several ? undefined : localSize }),
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
    const seconds = (systemClock.wallNow() - startedAt) / 1000;
    const times = { startedAt: new Date(startedAt).toISOString(), seconds };
    const outcome = { exitCode, failure: failure ?? null, changes };
    writeJson(flags.json, { version: 1, command: [script, ...args], ranks: localSize, ...times, ...outcome });
  }
  return exitCode;
}

async function viewOf({ metrics, metricsTextfile }: RunFlags, command: readonly string[]): Promise<JobView> {
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
  const { RunReport } = await import('../run-report.ts');
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
function checkSettings(environment: Environment): readonly string[] {
  const { settings, warnings } = resolveSettings(environment, { reserved: [...launchVariables, ...placeVariables, ...clusterVariables] });
  parseSelection(settings.algorithms);
  checkMetrics(settings);
  return warnings;
}

/** `workers`: of the whole job; undefined where only the launchers together know.
 *  @throws ShoalError `usage` for options about servers without `--servers`, `config` for numbers that cannot be. */
function serversOf(
  flags: RunFlags,
  { directory, workers }: { directory: string; workers: number | undefined },
): { servers?: ServerOptions } {
  const { servers, serverGroups, workerGroups, replicas, checkpointDir, serverRestarts, ps, min } = flags;
  if (servers === undefined) {
    const isAlone = serverRestarts === undefined || ps !== undefined;
    if (serverGroups + workerGroups + replicas === 3 && checkpointDir === undefined && isAlone) return {};
    throw new ShoalError('usage', 'options about servers and worker groups need --servers <count>');
  }
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
  if (servers !== undefined && workerGroups + serverGroups > 2) {
    const message = '--min with --servers is for one group of workers and one of servers; dist_async makes its groups itself';
    throw new ShoalError('usage', message);
  }
  const first = several ? nodes * localSize : localSize;
  if (min > first)
    throw new ShoalError('usage', `--min ${min} is more than the ${first} ranks ${several ? 'with which the job begins' : 'of -n'}`);
  return min;
}

/** Far beyond what one machine runs. */
const ranksPerNodeMax = 99_999;

function ranksPerNode({ workers, nprocPerNode }: RunFlags): number {
  const [flag, text] = workers === undefined ? ['--nproc-per-node', nprocPerNode ?? '1'] : ['--workers', workers];
  if (workers !== undefined && nprocPerNode !== undefined && nprocPerNode !== workers) {
    throw new ShoalError('usage', `--workers ${workers} and --nproc-per-node ${nprocPerNode} are the same number; give one of them`);
  }
  if (/^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= ranksPerNodeMax) return Number(text);
  if (text !== 'auto' && text !== 'cpu')
    throw new ShoalError('usage', `${flag} ${text}: expected a number from 1 to ${ranksPerNodeMax}, auto or cpu`);
  return allowedCpus().count;
}

/** One machine needs no secret from outside: the launcher makes a fresh one. A file of this user's that others can read is refused, like
 *  ssh refuses such a key. */
async function readSecret(file: string | undefined, several: boolean): Promise<string | undefined> {
  if (file === undefined) return several ? process.env['SHOAL_SECRET'] : undefined;
  const [{ mode, uid }, bytes] = await Promise.all([stat(file), readRegularFile(file, { bytesMax: 2 ** 16 })]).catch((error: unknown) => {
    throw new ShoalError('usage', `--secret-file ${file} cannot be read: ${messageOf(error)}`);
  });
  const secret = bytes.toString().trim();
  if (uid === process.getuid?.() && (mode & 0o077) !== 0)
    throw new ShoalError('usage', `--secret-file ${file} can be read by others (mode ${(mode & 0o777).toString(8)}): chmod 600 ${file}`);
  if (secret === '') throw new ShoalError('usage', `--secret-file ${file} is empty`);
  return secret;
}
