/** Runs a job's ranks on this node and follows it to its end: store, generations of ranks, restarts, signals, and the
 *  report about the first failure. Command lines are parsed elsewhere.
 *
 *      join nodes ─▶ generation g: start ranks ─▶ all well, on all nodes ─────────────────▶ 0
 *                        ▲                    └▶ first failure ─▶ stop the others ─┬▶ report it last, its exit code
 *                        └──────────────── g + 1, while restarts are left ─────────┘
 *
 *  Where the job goes on without ranks that fail, these are started again alone (elastic-ranks.ts). */
import { hostname } from 'node:os';
import { join } from 'node:path';
import type { Writable } from 'node:stream';
import type { Clock } from '../base/clock.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import type { Random } from '../base/random.ts';
import { readSettings } from '../base/settings/settings.ts';
import type { StreamNetwork } from '../fabric/stream/stream-network.ts';
import type { ProcessFacts } from '../metrics/job-status.ts';
import { ConsoleSink } from './output/console-sink.ts';
import { Supervisor, type EndedProcess } from './supervisor.ts';
import { ElasticRanks, type ElasticRanksOptions, type WorldChange } from './elastic-ranks.ts';
import { exitCodeOf, succeeded } from './exit-reason.ts';
import { describeEnd, describeEnds, describeFailure, describeFirst, describeOthers, errorOf } from './failure-text.ts';
import type { Guard } from './guard.ts';
import { answerNodes, watchJob, type JobWatch, type WatchedJob } from './job-watch.ts';
import { NodeAgreement, type JobFailure } from './node-agreement.ts';
import { parseRoutes, type RouteOptions } from './output/output-routes.ts';
import { JobProcesses, type JobProcessOptions } from './job-processes.ts';
import type { JobPlace } from './rank-environment.ts';

export interface LaunchOptions extends RouteOptions, JobProcessOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** The starter of processes, and the network of the job's store. Default: the system's. */
  readonly surroundings?: { readonly startGuard: () => Guard; readonly network: StreamNetwork };
  readonly directory: string;
  /** Default 1. */
  readonly nodes?: number;
  /** Default 0. */
  readonly node?: number;
  /** Address of node 0. Default 127.0.0.1, for one node. */
  readonly masterAddress?: string;
  /** Default: any free port for one node, 29500 for several. */
  readonly masterPort?: number;
  /** Required for several nodes. Default: fresh. */
  readonly secret?: string;
  /** Name of the job. Default: random for one node, `shoal` for several. */
  readonly job?: string;
  /** For one node, without servers: the job goes on without ranks that end badly while so many are left, and each is started again alone
   *  `maxRestarts` times. Default: it needs all. */
  readonly ranksMin?: number | undefined;
  /** Time that the other ranks have to fail by themselves. Default 5000. */
  readonly graceMs?: number;
  /** Time from SIGTERM, or from a signal of the user's, to SIGKILL. Default 10,000. */
  readonly killAfterMs?: number;
  /** Default 5 minutes. */
  readonly joinTimeoutMs?: number;
  readonly stdout: Writable;
  readonly stderr: Writable;
  /** `all` (default): a line per start and end of a rank; `failures`: only what goes wrong. */
  readonly events?: 'all' | 'failures';
}

export interface LaunchResult {
  /** 0, the failing rank's exit code, or 128 + signal. */
  readonly exitCode: number;
  readonly failure: JobFailure | undefined;
  /** Changes of the world, in their order; none where the job needs all ranks. */
  readonly changes: readonly WorldChange[];
}

export interface Launch {
  /** Rejects with `ShoalError` when the job could not be started at all. */
  readonly result: Promise<LaunchResult>;
  /** The user's signal: forwarded to all ranks; a second one, not at the same moment, kills them at once. */
  signal(name: NodeJS.Signals): void;
  /** `stdout` can no longer be written, and what the ranks say is lost: they are ended as by SIGTERM. */
  outputLost(cause: Error): void;
  /** The same as `watchJob`. */
  watch(of: 'job' | 'node'): Promise<JobWatch>;
}

/** Starts the job. @throws ShoalError `usage` or `config` on options that contradict each other. */
export function launch(options: LaunchOptions): Launch {
  const run = new Run(options);
  return {
    result: run.result(),
    signal: (name) => run.signal(name),
    outputLost: (cause) => run.outputLost(cause),
    watch: (of) => run.watch(of),
  };
}

const defaultSeveralNodesPort = 29500;
/** Time that the serving node waits for the others' launchers at the end. */
const leaveMs = 10_000;
/** The same signal again within this time is the same request: `timeout` and some batch systems signal a process, and then
 *  all of its group. */
const sameSignalMs = 100;
/** Lines about the place of an error that a failure carries to other nodes and to the report. */
const detailsMax = 20;

/** A request from outside to end the job. */
interface Interruption {
  /** The signal that the ranks get. */
  readonly signal: NodeJS.Signals;
  /** The launcher's exit code. */
  readonly exitCode: number;
  readonly text: string;
}

class Run {
  readonly #options: LaunchOptions;
  readonly #stdout: ConsoleSink;
  readonly #stderr: ConsoleSink;
  readonly #route: ReturnType<typeof parseRoutes>;
  readonly #joining = new AbortController();
  readonly #place: JobPlace;
  readonly #startMs: number;
  readonly #changes: WorldChange[] = [];
  #supervisor: Supervisor | undefined;
  #elastic: ElasticRanks | undefined;
  readonly #watched: WatchedJob;
  /** Processes of the generation that have ended. */
  #ends: EndedProcess[] = [];
  /** The first of them that ended badly, if its error has been told. */
  #told: EndedProcess | undefined;
  /** Lines said in this generation. */
  #saidLines = 0;
  /** The reason for which the ranks are being ended; undefined while they are not. */
  #why: string | undefined;
  #interrupted: Interruption | undefined;
  #interruptedMs = 0;

  constructor(options: LaunchOptions) {
    const { random, nodes = 1, node = 0, masterAddress = '127.0.0.1' } = options;
    if (nodes > 1) checkSeveralNodes(options);
    if (options.localSize < 1) throw new ShoalError('usage', `${options.localSize} ranks per node; at least 1 is needed`);
    // Each rank takes two pipes, and a connection to the store.
    this.#options = options;
    this.#startMs = options.clock.now();
    this.#stdout = new ConsoleSink(options.stdout);
    this.#stderr = options.stderr === options.stdout ? this.#stdout : new ConsoleSink(options.stderr);
    // Nodes share a command line, and may differ in their sizes.
    this.#route = parseRoutes(options, nodes === 1 ? options.localSize : Infinity);
    const job = options.job ?? (nodes === 1 ? Buffer.from(random.bytes(8)).toString('hex') : 'shoal');
    const secret = options.secret ?? Buffer.from(random.bytes(32)).toString('hex');
    this.#place = { job, secret, node, nodes, masterAddress };
    const processes = (): readonly ProcessFacts[] => this.#supervisor?.processes ?? [];
    this.#watched = { place: this.#place, localSize: options.localSize, agreement: undefined, generation: 0, processes };
  }

  signal(name: NodeJS.Signals): void {
    if (this.#interrupted === undefined) {
      this.#say(`${name}: passing it on to all ranks`);
      this.#interrupt({ signal: name, exitCode: exitCodeOf({ code: null, signal: name }), text: `the launcher received ${name}` });
      return;
    }
    const { signal } = this.#interrupted;
    if (name === signal && this.#options.clock.now() - this.#interruptedMs < sameSignalMs) return;
    this.#say(`${name} again: killing all ranks`);
    this.#supervisor?.signal('SIGKILL');
  }

  outputLost(cause: Error): void {
    if (this.#interrupted !== undefined) return;
    const why = 'code' in cause && cause.code === 'EPIPE' ? 'nobody reads it any more' : cause.message;
    this.#say(`standard output cannot be written (${why}): ending all ranks`);
    this.#interrupt({ signal: 'SIGTERM', exitCode: 1, text: `standard output could not be written: ${why}` });
  }

  #interrupt(interruption: Interruption): void {
    const { clock, killAfterMs = 10_000 } = this.#options;
    this.#interrupted = interruption;
    this.#interruptedMs = clock.now();
    this.#joining.abort();
    this.#elastic?.close();
    this.#supervisor?.signal(interruption.signal);
    // Unreferenced: it ends with the launcher.
    clock.setTimer(killAfterMs, () => this.#supervisor?.signal('SIGKILL'));
  }

  async result(): Promise<LaunchResult> {
    const agreement = await this.#join();
    if (agreement === undefined) return this.#resultOf(this.#endedBy(this.#interrupted!));
    this.#watched.agreement = agreement;
    const over = new AbortController();
    answerNodes(this.#watched, agreement, over.signal);
    try {
      return this.#resultOf(await this.#generations(agreement));
    } finally {
      over.abort();
      await agreement.leave(leaveMs);
    }
  }

  watch(of: 'job' | 'node'): Promise<JobWatch> {
    return watchJob(this.#watched, of);
  }

  /** Undefined when the user's signal came first. */
  async #join(): Promise<NodeAgreement | undefined> {
    const { clock, random, surroundings, localSize, environment, variables, joinTimeoutMs = 300_000 } = this.#options;
    const masterPort = this.#options.masterPort ?? (this.#place.nodes === 1 ? 0 : defaultSeveralNodesPort);
    const { signal } = this.#joining;
    try {
      const settings = readSettings({ ...environment, ...variables });
      const local = { clock, random, network: surroundings?.network, settings, localSize };
      return await NodeAgreement.join({ ...this.#place, ...local, masterPort, joinTimeoutMs, signal });
    } catch (error) {
      if (this.#interrupted !== undefined) return undefined;
      throw error;
    }
  }

  async #generations(agreement: NodeAgreement): Promise<JobFailure | undefined> {
    const { maxRestarts = 0, graceMs = 5000, killAfterMs = 10_000 } = this.#options;
    for (let generation = 0; ; generation++) {
      const failure = await this.#generation(agreement, generation);
      if (failure === undefined || failure.final || generation >= maxRestarts) return failure;
      try {
        const refusal = await agreement.stopped(generation, graceMs + 2 * killAfterMs + leaveMs);
        if (refusal !== undefined) {
          this.#say(describeFailure(refusal, this.#place.node));
          return refusal;
        }
      } catch (error) {
        const why = `no restart: the other nodes did not stop: ${messageOf(error)}`;
        this.#say(why);
        return agreement.fail(generation + 1, { ...failure, text: `${failure.text}; ${why}`, final: true });
      }
      this.#say(`starting all ranks again, restart ${generation + 1} of ${maxRestarts}`);
    }
  }

  /** Runs all ranks once. Resolves, when nothing of them is left, with what ended them early. */
  async #generation(agreement: NodeAgreement, generation: number): Promise<JobFailure | undefined> {
    // The other nodes are about to start it, and would wait for this one's ranks.
    if (this.#interrupted !== undefined) return this.#tellInterruption(agreement, generation, this.#interrupted);
    const { graceMs = 5000, killAfterMs = 10_000 } = this.#options;
    this.#watched.generation = generation;
    const over = new AbortController();
    const elsewhere = agreement.failure(generation, over.signal);
    const supervisor = await this.#startOrTell(agreement, generation);
    void agreement.failing(generation, over.signal).then(() => supervisor.noteFailing());
    try {
      const own = this.#outcome(agreement, { supervisor, generation, signal: over.signal });
      const failure = await Promise.race([own.then(({ failure: first }) => first), elsewhere]);
      this.#elastic?.close();
      if (failure === undefined) {
        await supervisor.terminate({ killAfterMs });
        if (this.#options.events !== 'failures') this.#say(describeEnds(this.#ends.filter(({ ending }) => succeeded(ending))));
        return undefined;
      }
      this.#why = describeFailure(failure, this.#place.node);
      await supervisor.stop({ graceMs: this.#interrupted === undefined ? graceMs : killAfterMs, killAfterMs });
      await supervisor.finish();
      return this.#tell(this.#withError(failure, supervisor), { generation, failed: supervisor.failed(failure.rank) });
    } finally {
      over.abort();
      await supervisor.finish();
      this.#supervisor = undefined;
      this.#why = undefined;
    }
  }

  /** Waits for the end of this node's ranks and, when they end well, of all nodes' ranks. */
  async #outcome(
    agreement: NodeAgreement,
    run: { supervisor: Supervisor; generation: number; signal: AbortSignal },
  ): Promise<{ failure: JobFailure | undefined }> {
    const { graceMs = 5000 } = this.#options;
    const failed = await run.supervisor.firstFailure;
    if (this.#interrupted !== undefined) return { failure: await this.#tellInterruption(agreement, run.generation, this.#interrupted) };
    if (failed !== undefined) {
      void agreement.noteFailing(run.generation);
      const failure = await agreement.firstCause(run.generation, this.#failureOf(failed), graceMs);
      return { failure: await agreement.fail(run.generation, this.#withError(failure, run.supervisor)) };
    }
    try {
      await agreement.done(run.generation, run.signal);
      return { failure: undefined };
    } catch {
      // The store is lost, or another node failed: whoever waits for the failure says it.
      return new Promise(() => undefined);
    }
  }

  /** Ranks that cannot be started here end the job on all nodes. */
  async #startOrTell(agreement: NodeAgreement, generation: number): Promise<Supervisor> {
    try {
      return this.#start(agreement, generation);
    } catch (error) {
      await agreement.fail(generation, this.#endedBy({ exitCode: 1, text: messageOf(error) }));
      throw error;
    }
  }

  #start(agreement: NodeAgreement, generation: number): Supervisor {
    const { clock, directory, logDir, surroundings } = this.#options;
    const processes = new JobProcesses(this.#options, this.#place, agreement, generation);
    this.#elastic = this.#elasticRanks(agreement, { generation, start: (newcomer) => supervisor.add(processes.newcomer(newcomer)) });
    this.#ends = [];
    this.#told = undefined;
    this.#saidLines = 0;
    const supervisor: Supervisor = new Supervisor({
      clock,
      ...(surroundings && { startGuard: surroundings.startGuard }),
      specs: processes.first(),
      elastic: this.#elastic,
      directory,
      stdout: this.#stdout,
      stderr: this.#stderr,
      prefix: (spec) => processes.prefix(spec),
      route: this.#route,
      logDir: logDir && this.#logFolder(logDir, generation),
      report: (line) => this.#event(line),
      onEnd: (ended) => this.#onEnd(agreement, generation, ended),
    });
    this.#supervisor = supervisor;
    return supervisor;
  }

  #elasticRanks(
    agreement: NodeAgreement,
    { generation, start }: { readonly generation: number; readonly start: ElasticRanksOptions['start'] },
  ): ElasticRanks | undefined {
    const { clock, ranksMin: min, maxRestarts: restarts = 0 } = this.#options;
    if (min === undefined) return undefined;
    const { store } = agreement.partsOf(generation);
    const onChange: ElasticRanksOptions['onChange'] = (change) =>
      this.#changes.push({ seconds: (clock.now() - this.#startMs) / 1000, ...change });
    return new ElasticRanks({ clock, size: agreement.worldSize, min, restarts, store, start, onChange, say: (line) => this.#say(line) });
  }

  #onEnd(agreement: NodeAgreement, generation: number, ended: EndedProcess): void {
    const { rank, text, ending, ranksLeft, waited } = ended;
    if (waited) {
      this.#elastic?.onNewcomerEnd(ended);
      return;
    }
    const failure = succeeded(ending) ? undefined : this.#failureOf(ended);
    if (ranksLeft !== undefined) this.#elastic?.onLost(ended, ranksLeft);
    // The later ones are told together, at the end.
    else if (failure !== undefined && this.#ends.every((each) => each.ranksLeft !== undefined || succeeded(each.ending))) {
      this.#say(describeEnd(ended));
      if (errorOf(ended) !== undefined) this.#told = ended;
    }
    this.#ends.push(ended);
    if (rank !== undefined) void agreement.rankEnded(generation, { rank, ending: text, because: this.#why, failure });
  }

  #logFolder(logDir: string, generation: number): string {
    return generation === 0 ? logDir : join(logDir, `restart-${generation}`);
  }

  #failureOf(failed: EndedProcess): JobFailure {
    const { name, rank, pid, afterMs } = failed;
    const when = `${(afterMs / 1000).toFixed(1)} s after the start`;
    const text = `${rank === undefined ? `${name} ` : ''}${failed.text}, ${when} (pid ${pid})`;
    return {
      node: this.#place.node,
      host: hostname(),
      ...(rank === undefined ? {} : { rank }),
      exitCode: exitCodeOf(failed.ending),
      text,
      final: false,
    };
  }

  /** With what its rank has written so far, if that is one of this node. */
  #withError(failure: JobFailure, supervisor: Supervisor): JobFailure {
    const failed = failure.node === this.#place.node ? supervisor.failed(failure.rank) : undefined;
    const error = failed && errorOf(failed);
    if (error === undefined) return failure;
    const details = failed?.words().uncaught?.details.slice(0, detailsMax);
    return { ...failure, error, ...(details && { details }) };
  }

  /** The ranks have the user's signal, and may still want to save what they have. */
  #tellInterruption(agreement: NodeAgreement, generation: number, interruption: Interruption): Promise<JobFailure> {
    return agreement.fail(generation, this.#endedBy(interruption), { toRanks: false });
  }

  #endedBy({ exitCode, text }: Pick<JobFailure, 'exitCode' | 'text'>): JobFailure {
    return { node: this.#place.node, host: hostname(), exitCode, text, final: true };
  }

  /** The failure, after everything else. */
  #tell(failure: JobFailure, { generation, failed }: { generation: number; failed: EndedProcess | undefined }): JobFailure {
    const { logDir } = this.#options;
    const others = this.#ends.filter((ended) => ended !== failed && ended !== this.#told);
    for (const line of describeOthers(others, failed)) this.#say(line);
    const logFolder = logDir && failed && join(this.#logFolder(logDir, generation), failed.name.replace(' ', '-'));
    for (const line of describeFirst(failure, { node: this.#place.node, failed, saidLines: this.#saidLines, logFolder })) this.#say(line);
    return failure;
  }

  #resultOf(failure: JobFailure | undefined): LaunchResult {
    return { exitCode: failure?.exitCode ?? 0, failure, changes: this.#changes };
  }

  #event(line: string): void {
    if (this.#options.events === 'failures' && / started(:| \(pid)/.test(line)) return;
    this.#say(line);
  }

  #say(line: string): void {
    this.#saidLines++;
    this.#stderr.write(`shoal: ${line}\n`);
  }
}

function checkSeveralNodes(options: LaunchOptions): void {
  const { nodes = 1, node = 0, masterAddress, secret } = options;
  if (node >= nodes) throw new ShoalError('usage', `--node-rank ${node} must be below --nnodes ${nodes}`);
  if (masterAddress === undefined)
    throw new ShoalError('usage', 'several nodes need --master-addr, an address of node 0 that all can reach');
  if (secret === undefined || secret === '') {
    throw new ShoalError('config', 'several nodes need a secret: set SHOAL_SECRET, or give --secret-file, the same on every node');
  }
}
