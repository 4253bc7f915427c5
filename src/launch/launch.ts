/** Runs a job's ranks on this node and follows it to its end: store, generations of ranks, restarts, signals, and the
 *  report about the first failure. Command lines are parsed elsewhere.
 *
 *      join nodes ─▶ generation g: start ranks ─▶ all well, on all nodes ─────────────────▶ 0
 *                        ▲                    └▶ first failure ─▶ stop the others ─┬▶ report it last, its exit code
 *                        └──────────────── g + 1, while restarts are left ─────────┘
 *
 *  Where the job goes on without ranks that fail, these are started again alone (elastic-ranks.ts); where nodes come and go, one that gets
 *  SIGTERM leaves, and one that has no rank left ends. */
import { hostname } from 'node:os';
import { join } from 'node:path';
import { messageOf, ShoalError } from '../base/errors.ts';
import { readSettings } from '../base/settings/settings.ts';
import type { ProcessFacts } from '../metrics/job-status.ts';
import { ConsoleSink } from './output/console-sink.ts';
import { Supervisor, type EndedProcess } from './supervisor.ts';
import { ElasticRanks, type ElasticRanksOptions } from './elastic-ranks.ts';
import { exitCodeOf, succeeded } from './exit-reason.ts';
import {
  describeEnd,
  describeEnds,
  describeFailure,
  describeFirst,
  describeOthers,
  errorOf,
  failureOf,
  withErrorOf,
} from './failure-text.ts';
import { checkSeveralNodes, type Launch, type LaunchOptions, type LaunchResult } from './launch-options.ts';
import { answerNodes, watchJob, type JobWatch, type WatchedJob } from './job-watch.ts';
import { NodeAgreement } from './node-agreement.ts';
import type { JobFailure } from './node-records.ts';
import { parseRoutes } from './output/output-routes.ts';
import { JobProcesses } from './job-processes.ts';
import type { JobPlace } from './rank-environment.ts';
import { WorldLedger, type WorldChange } from './world-ledger.ts';

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
  readonly #startMs: number;
  readonly #changes: WorldChange[] = [];
  #supervisor: Supervisor | undefined;
  #elastic: ElasticRanks | undefined;
  /** The world of all nodes, on node 0. */
  #ledger: WorldLedger | undefined;
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
  /** When the ranks of this node, and not of others, were asked to leave. */
  #leavingMs: number | undefined;
  /** The first process that has ended badly. */
  #firstBad: EndedProcess | undefined;
  /** The job goes on without this node; `failure` is undefined when it was asked to leave. */
  #left: { readonly failure: JobFailure | undefined } | undefined;

  constructor(options: LaunchOptions) {
    const { random, nodes = 1, nodesMax, node = 0, masterAddress = '127.0.0.1' } = options;
    const isOneNode = (nodesMax ?? nodes) === 1;
    if (!isOneNode) checkSeveralNodes(options);
    if (options.localSize < 1) throw new ShoalError('usage', `${options.localSize} ranks per node; at least 1 is needed`);
    // Each rank takes two pipes, and a connection to the store.
    this.#options = options;
    this.#startMs = options.clock.now();
    this.#stdout = new ConsoleSink(options.stdout);
    this.#stderr = options.stderr === options.stdout ? this.#stdout : new ConsoleSink(options.stderr);
    // Nodes share a command line, and may differ in their sizes.
    this.#route = parseRoutes(options, isOneNode ? options.localSize : Infinity);
    const job = options.job ?? (isOneNode ? Buffer.from(random.bytes(8)).toString('hex') : 'shoal');
    const secret = options.secret ?? Buffer.from(random.bytes(32)).toString('hex');
    const place = { job, secret, node, nodes, nodesMax, masterAddress };
    const processes = (): readonly ProcessFacts[] => this.#supervisor?.processes ?? [];
    const worldRanks = (): readonly number[] => this.#ledger?.ranks ?? [];
    this.#watched = { place, localSize: options.localSize, agreement: undefined, generation: 0, processes, worldRanks };
  }

  get #place(): JobPlace {
    return this.#watched.place;
  }

  signal(name: NodeJS.Signals): void {
    if (this.#interrupted === undefined) {
      if (this.#leave(name)) return;
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

  /** SIGTERM to one of the nodes that come and go: its ranks leave, and the others go on. False: the job is to end. */
  #leave(name: NodeJS.Signals): boolean {
    const { clock, nodesMax, killAfterMs = 10_000 } = this.#options;
    const hasOthers = this.#place.node > 0 || this.#ledger?.hasOthers(0) === true;
    if (name !== 'SIGTERM' || nodesMax === undefined || this.#watched.agreement === undefined || !hasOthers) return false;
    if (this.#leavingMs === undefined) {
      this.#leavingMs = clock.now();
      this.#say('SIGTERM: the ranks of this node leave the job, the others go on');
      this.#elastic?.close();
      this.#supervisor?.askToEnd('SIGTERM');
      clock.setTimer(killAfterMs, () => this.#supervisor?.isIdle === false && this.#supervisor.askToEnd('SIGKILL'));
      return true;
    }
    if (clock.now() - this.#leavingMs < sameSignalMs) return true;
    if (this.#supervisor?.isIdle === true) return false;
    this.#say('SIGTERM again: killing the ranks of this node');
    this.#supervisor?.askToEnd('SIGKILL');
    return true;
  }

  /** Called when no rank is left here, and the job goes on. */
  #onIdle(supervisor: Supervisor): void {
    const isAsked = this.#leavingMs !== undefined;
    if (this.#elastic?.isAboutToStart === true) return;
    if (this.#place.node === 0) return this.#say('no rank is left on this node; its launcher serves the store until the job ends');
    if (!isAsked && (this.#firstBad === undefined || this.#ends.some(({ ending }) => succeeded(ending)))) return;
    this.#left = { failure: isAsked ? undefined : this.#failureOf(this.#firstBad!) };
    supervisor.dismiss();
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
    this.#watched.place = { ...this.#place, node: agreement.node };
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

  /** Joins the other nodes. @returns undefined when the user's signal came first. */
  async #join(): Promise<NodeAgreement | undefined> {
    const { clock, random, surroundings, localSize, environment, variables, joinTimeoutMs = 300_000 } = this.#options;
    const { nodes, nodesMax = nodes } = this.#place;
    const masterPort = this.#options.masterPort ?? (nodesMax === 1 ? 0 : defaultSeveralNodesPort);
    const node = this.#options.nodesMax === undefined ? this.#place.node : this.#options.node;
    const { signal } = this.#joining;
    try {
      const settings = readSettings({ ...environment, ...variables });
      const local = { clock, random, network: surroundings?.network, settings, localSize };
      return await NodeAgreement.join({ ...this.#place, ...local, node, masterPort, joinTimeoutMs, signal });
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
    const supervisor = await this.#startOrTell(agreement, generation, over.signal);
    void agreement.failing(generation, over.signal).then(() => supervisor.noteFailing());
    try {
      const own = this.#outcome(agreement, { supervisor, generation, signal: over.signal });
      const failure = await Promise.race([own.then(({ failure: first }) => first), elsewhere]);
      this.#elastic?.close();
      this.#ledger?.close();
      if (failure === undefined) {
        await supervisor.terminate({ killAfterMs });
        const good = this.#ends.filter(({ ending }) => succeeded(ending));
        if (this.#options.events !== 'failures' && good.length > 0) this.#say(describeEnds(good));
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
    const failed = await run.supervisor.firstFailure;
    if (this.#interrupted !== undefined) return { failure: await this.#tellInterruption(agreement, run.generation, this.#interrupted) };
    if (failed !== undefined) return { failure: await this.#fail(agreement, run, this.#failureOf(failed)) };
    if (this.#left !== undefined) return this.#left;
    try {
      await agreement.done(run.generation, run.signal);
      return { failure: undefined };
    } catch {
      // The store is lost, or another node failed: whoever waits for the failure says it.
      return new Promise(() => undefined);
    }
  }

  /** @returns the failure with which the job ends. */
  async #fail(agreement: NodeAgreement, run: { supervisor: Supervisor; generation: number }, failure: JobFailure): Promise<JobFailure> {
    void agreement.noteFailing(run.generation);
    const cause = await agreement.firstCause(run.generation, failure, this.#options.graceMs ?? 5000);
    return agreement.fail(run.generation, this.#withError(cause, run.supervisor));
  }

  /** Ranks that cannot be started here end the job on all nodes, unless it has begun without them. */
  async #startOrTell(agreement: NodeAgreement, generation: number, over: AbortSignal): Promise<Supervisor> {
    try {
      const supervisor = await this.#start(agreement, generation, over);
      if (this.#interrupted !== undefined) supervisor.signal(this.#interrupted.signal);
      else if (this.#leavingMs !== undefined) supervisor.askToEnd('SIGTERM');
      return supervisor;
    } catch (error) {
      if (!agreement.isLate) await agreement.fail(generation, this.#endedBy({ exitCode: 1, text: messageOf(error) }));
      throw error;
    }
  }

  async #start(agreement: NodeAgreement, generation: number, over: AbortSignal): Promise<Supervisor> {
    const { clock, directory, logDir, surroundings, localSize } = this.#options;
    const processes = new JobProcesses(this.#options, this.#place, agreement, generation);
    const start: ElasticRanksOptions['start'] = (newcomer) => supervisor.add(processes.newcomer(newcomer));
    this.#elastic = this.#elasticRanks(agreement, { generation, start, supervisor: () => supervisor });
    const late = agreement.isLate ? await this.#elastic?.numbers(localSize) : undefined;
    for (const newcomer of late ?? []) this.#elastic?.expect(newcomer);
    this.#ends = [];
    this.#told = undefined;
    this.#saidLines = 0;
    const supervisor: Supervisor = new Supervisor({
      clock,
      ...(surroundings && { startGuard: surroundings.startGuard }),
      specs: processes.first(late),
      elastic: this.#elastic,
      directory,
      stdout: this.#stdout,
      stderr: this.#stderr,
      prefix: (spec) => processes.prefix(spec),
      route: this.#route,
      logDir: logDir && this.#logFolder(logDir, generation),
      report: (line) => this.#event(line),
      onEnd: (ended) => this.#onEnd(agreement, generation, ended),
      onIdle: () => this.#onIdle(supervisor),
    });
    this.#supervisor = supervisor;
    if (this.#place.node > 0 && this.#place.nodesMax !== undefined) void agreement.over(over).then(() => supervisor.dismiss());
    if (this.#ledger !== undefined) agreement.follow(this.#ledger);
    return supervisor;
  }

  /** Ranks without which the job goes on; undefined: the job needs all ranks. */
  #elasticRanks(
    agreement: NodeAgreement,
    { generation, start, supervisor }: { generation: number; start: ElasticRanksOptions['start']; supervisor: () => Supervisor },
  ): ElasticRanks | undefined {
    const { clock, localSize, ranksMin, nodesMax, maxRestarts: restarts = 0 } = this.#options;
    if (ranksMin === undefined && nodesMax === undefined) return undefined;
    const say = (line: string): void => this.#say(line);
    this.#ledger =
      this.#place.node > 0
        ? undefined
        : new WorldLedger({
            clock,
            sizes: agreement.sizes,
            min: ranksMin ?? this.#place.nodes * localSize,
            hostOf: (node) => agreement.hostOf(node),
            say,
            onChange: (change) => this.#changes.push({ seconds: (clock.now() - this.#startMs) / 1000, ...change }),
            onTooFew: (failure) => void this.#fail(agreement, { supervisor: supervisor(), generation }, failure),
            onLostWithNode: (rank, failure) =>
              void agreement.rankEnded(generation, { rank, ending: failure.text, because: undefined, failure }),
            onOver: () => {
              agreement.tellOver();
              supervisor().dismiss();
            },
          });
    const world = this.#ledger?.listener(0) ?? agreement.listener(say);
    const { worldSize: size, firstRank } = agreement;
    const { store } = agreement.partsOf(generation);
    return new ElasticRanks({ clock, size, firstRank, restarts, store, world, start, say });
  }

  #onEnd(agreement: NodeAgreement, generation: number, ended: EndedProcess): void {
    const { rank, text, ending, isLost, waited } = ended;
    if (!succeeded(ending)) this.#firstBad ??= ended;
    if (waited) {
      this.#elastic?.onNewcomerEnd(ended);
      return;
    }
    const failure = succeeded(ending) ? undefined : this.#failureOf(ended);
    const leaves = failure === undefined && this.#leavingMs !== undefined;
    if (isLost || leaves) this.#elastic?.onLost(ended, withErrorOf(this.#failureOf(ended), ended));
    else if (failure === undefined && rank !== undefined) this.#elastic?.onEndedWell(rank);
    // The later ones are told together, at the end, and so are all that the user's signal ends.
    else if (failure && !this.#interrupted && this.#ends.every((each) => each.isLost || succeeded(each.ending))) {
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
    // No restart of all ranks where nodes come and go: some may be gone that they had.
    return failureOf(failed, { node: this.#place.node, final: this.#place.nodesMax !== undefined });
  }

  /** Adds to a failure what its rank has written so far, if the rank is one of this node. */
  #withError(failure: JobFailure, supervisor: Supervisor): JobFailure {
    return withErrorOf(failure, failure.node === this.#place.node ? supervisor.failed(failure.rank) : undefined);
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
