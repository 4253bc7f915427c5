/** The processes of one generation on this node: starts them all, notices the first rank that fails, stops the others in
 *  three steps (let them fail by themselves, SIGTERM, SIGKILL), and leaves no process of theirs behind. Servers that the
 *  ranks use are started again when they fail, and dismissed when the ranks have ended, as are newcomers that the ranks have not taken in.
 *  It must not know other nodes. */
import { join } from 'node:path';
import type { Clock } from '../base/clock.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { checkDescriptors } from '../base/exhaustion.ts';
import { stateOf } from '../base/files/process-identity.ts';
import type { ProcessFacts } from '../metrics/job-status.ts';
import { makeFolders } from '../base/files/make-folders.ts';
import type { ConsoleSink } from './output/console-sink.ts';
import { describeEnding, succeeded, type Ending } from './exit-reason.ts';
import { startGuard, type Guard, type GuardedProcess } from './guard.ts';
import type { Route, Stream } from './output/output-routes.ts';
import { RankOutput } from './output/rank-output.ts';
import type { UncaughtError } from './output/uncaught-error.ts';

/** A process to be. Ranks decide when the job is done; servers serve them. */
export interface ProcessSpec {
  readonly kind: 'rank' | 'server';
  /** For people, and for the folder of its logs: `rank 3`, `server 0`. */
  readonly name: string;
  /** Ranks only. */
  readonly rank?: number;
  /** It reads what the launcher's standard input has. Default: it has none. */
  readonly readsStdin?: boolean;
  /** Ranks only: names its output routes. Servers write to the console, and to files when there are any. */
  readonly localRank?: number;
  /** Program and arguments. */
  readonly command: readonly string[];
  readonly environment: Record<string, string | undefined>;
  /** Failures after which the process is started again. Default 0. */
  readonly restarts?: number;
  /** Servers only: which. A server and its standby have the same. */
  readonly seat?: number;
  /** Servers only: whether another process goes on when it ends, of this node or of another. Default `none`. */
  readonly substitute?: 'none' | 'here' | 'elsewhere';
}

/** Ranks that the job goes on without; `dismiss` says when it is over. */
export interface ExpendableRanks {
  /** True for a newcomer that has not joined: the job does not wait for its end. */
  isWaiting(rank: number): boolean;
  /** Takes a rank that has ended badly out of the world. False: too few are left. */
  goOnWithout(rank: number): boolean;
}

export interface SupervisorOptions {
  readonly clock: Clock;
  /** The starter and signaller of processes. Default: the system. */
  readonly startGuard?: () => Guard;
  readonly specs: readonly ProcessSpec[];
  /** Ranks without which the job goes on. Default: it needs all. */
  readonly elastic?: ExpendableRanks | undefined;
  readonly directory: string;
  readonly stdout: ConsoleSink;
  readonly stderr: ConsoleSink;
  /** The text before each line of a process's output. */
  readonly prefix: (spec: ProcessSpec) => string;
  readonly route: (localRank: number, stream: Stream) => Route;
  /** Holds a folder per process; undefined: no files. */
  readonly logDir: string | undefined;
  /** One line about a process. */
  readonly report: (line: string) => void;
  /** A process has ended, and is not started again. */
  readonly onEnd: (ended: EndedProcess) => void;
  /** No process is left here, though the job goes on. */
  readonly onIdle?: () => void;
}

/** A process that has ended, well or not. */
export interface EndedProcess {
  readonly name: string;
  readonly rank: number | undefined;
  readonly pid: number | undefined;
  readonly ending: Ending;
  /** `exited with code 3`. */
  readonly text: string;
  /** Milliseconds since the first was started. */
  readonly afterMs: number;
  /** It ended badly, and the others go on without it. */
  readonly isLost: boolean;
  /** It was a newcomer that had not joined. */
  readonly waited: boolean;
  /** Its last words on stderr, and the error that ended it; complete after `finish`. */
  words(): { said: string; uncaught: UncaughtError | undefined };
}

interface Member {
  readonly spec: ProcessSpec;
  child: GuardedProcess;
  outputs: Record<Stream, RankOutput>;
  ended: boolean;
  /** The description of its end. */
  end?: string;
  /** Number of times that the process was started again. */
  restarted: number;
}

/** Outputs that a process outside the ranks' groups keeps open are given up after this. */
const drainMs = 2000;
/** More processes than these are not named one by one when they start. */
const startsNamed = 8;
/** Kept of a failing process's stderr. */
const tailBytesMax = 65_536;

/** @throws ShoalError `config`. */
function makeFolder(path: string | undefined): void {
  if (path === undefined) return;
  try {
    makeFolders(path);
  } catch (error) {
    throw new ShoalError('config', `the log folder ${path} cannot be made: ${messageOf(error)}`, { cause: error });
  }
}

export class Supervisor {
  /** Resolves with the first process that ends badly, or with undefined when all ranks have ended well. */
  readonly firstFailure: Promise<EndedProcess | undefined>;
  readonly #options: SupervisorOptions;
  readonly #guard: Guard;
  readonly #members: Member[] = [];
  /** Processes that have not been started. */
  readonly #toStart: ProcessSpec[];
  readonly #startMs: number;
  readonly #ranksEnded: Promise<void>;
  readonly #allEnded: Promise<void>;
  readonly #failures: EndedProcess[] = [];
  /** When the first process ended badly, here or on another node. */
  #failingMs: number | undefined;
  /** Outputs of processes that were started again. */
  readonly #earlierOutputs: RankOutput[] = [];
  #stopping = false;
  /** True once all processes that the job waits for have ended. */
  #ranksOver = false;
  /** Processes that have been spawned and have not reported it. */
  #starting = 0;
  readonly #started: { readonly name: string; readonly pid: number }[] = [];
  #noteRanksEnded!: () => void;
  #ended!: () => void;
  #settle!: (failed: EndedProcess | undefined) => void;

  /** Starts the first, and the others one after another. @throws ShoalError `config` when their log folders cannot be made,
   *  `out-of-memory` when they take more descriptors than there are; then none was started. */
  constructor(options: SupervisorOptions) {
    this.#options = options;
    this.#startMs = options.clock.now();
    this.firstFailure = new Promise((resolve) => (this.#settle = resolve));
    this.#ranksEnded = new Promise((resolve) => (this.#noteRanksEnded = resolve));
    this.#allEnded = new Promise((resolve) => (this.#ended = resolve));
    this.#checkDescriptors();
    for (const spec of options.specs) makeFolder(this.#folder(spec, 0));
    this.#guard = (options.startGuard ?? startGuard)();
    const [first, ...others] = options.specs;
    this.#toStart = others;
    try {
      this.#start(first);
    } catch (error) {
      void this.#guard.end();
      throw error;
    }
    this.#startOthers(this.#startMs);
  }

  /** Each process takes descriptors for its outputs, their files, and a connection to the store. @throws ShoalError `out-of-memory`. */
  #checkDescriptors(): void {
    const { specs, logDir } = this.#options;
    const each = logDir === undefined ? 3 : 5;
    checkDescriptors('the launcher', each * specs.length + 4, `starting ${specs.length} processes`);
  }

  /** Signals the groups of all processes that have not ended; none is started again from now on. */
  signal(signal: NodeJS.Signals): void {
    this.#startNoMore();
    this.askToEnd(signal);
  }

  /** Signals all processes, and goes on without those that end. */
  askToEnd(signal: NodeJS.Signals): void {
    this.#toStart.length = 0;
    this.#reportStarted(0);
    for (const { child, ended } of this.#members) {
      if (ended || child.pid === undefined) continue;
      // One that has just been started may not have made its group.
      if (!this.#guard.signal(child.pid, signal)) child.kill(signal);
    }
    this.#noteAllEnded();
  }

  /** Starts one more process, unless the job is over. */
  add(spec: ProcessSpec): void {
    if (this.#stopping || this.#ranksOver) return;
    this.#toStart.push(spec);
    if (this.#toStart.length === 1) this.#startNext();
  }

  /** The ranks' work is done: those that still run are not waited for. */
  dismiss(): void {
    this.#ranksOver = true;
    this.#settle(undefined);
    this.#noteRanksEnded();
    this.#noteAllEnded();
  }

  /** Ends what still runs: SIGTERM, on which servers end well, then SIGKILL. */
  async terminate({ killAfterMs }: { killAfterMs: number }): Promise<void> {
    this.signal('SIGTERM');
    if (await this.#within(killAfterMs, this.#allEnded)) return;
    this.#options.report(`${this.#runningNames()} still running ${killAfterMs} ms after SIGTERM: SIGKILL`);
    this.signal('SIGKILL');
    await this.#allEnded;
  }

  /** A process has ended badly, perhaps on another node. */
  noteFailing(): void {
    this.#failingMs ??= this.#options.clock.now();
  }

  /** Waits for all to end: ranks by themselves until `graceMs` after the first process that ended badly, and servers with the last rank;
   *  `killAfterMs` after SIGTERM, then SIGKILL. */
  async stop(options: { graceMs: number; killAfterMs: number }): Promise<void> {
    this.#startNoMore();
    const nowMs = this.#options.clock.now();
    const spentMs = nowMs - (this.#failingMs ?? nowMs);
    if (!(await this.#within(Math.max(0, options.graceMs - spentMs), this.#ranksEnded)))
      this.#options.report(`${this.#runningNames()} still running after ${options.graceMs} ms: SIGTERM`);
    await this.terminate(options);
  }

  /** After all have ended: ends what they left in their groups, and completes their output. */
  async finish(): Promise<void> {
    await this.#allEnded;
    await this.#guard.end();
    const outputs = [...this.#earlierOutputs, ...this.#members.flatMap(({ outputs: { stdout, stderr } }) => [stdout, stderr])];
    const timer = this.#options.clock.setTimer(drainMs, () => outputs.forEach((output) => output.abandon()), { keepAlive: true });
    await Promise.all(outputs.map((output) => output.finished));
    timer.cancel();
  }

  /** The process of this rank, if it has ended badly, also where the others went on; without a rank, the first process that is none. */
  failed(rank: number | undefined): EndedProcess | undefined {
    return this.#failures.find((each) => each.rank === rank);
  }

  /** All that have been started, as they are now. */
  get processes(): readonly ProcessFacts[] {
    return this.#members.map(({ spec: { name, rank }, child: { pid }, restarted: restarts, end }) => {
      return { name, rank, pid, restarts, end, state: end === undefined && pid !== undefined ? stateOf(pid) : undefined };
    });
  }

  get isIdle(): boolean {
    return this.#running.length === 0;
  }

  get #running(): Member[] {
    return this.#members.filter((member) => !member.ended);
  }

  /** One by one. Where CPUs are busy, starting a process blocks this one for long, and those that run already ask it for the store: it
   *  serves them for as long as the last start has taken. */
  #startOthers(sinceMs: number): void {
    const { clock } = this.#options;
    clock.setTimer(clock.now() - sinceMs, () => this.#startNext(), { keepAlive: true });
  }

  #startNext(): void {
    const spec = this.#toStart.shift();
    if (spec === undefined) return;
    const sinceMs = this.#options.clock.now();
    try {
      this.#start(spec);
    } catch (error) {
      const text = `could not be started: ${messageOf(error)}`;
      this.#noteEnd(spec, { ending: { code: 126, signal: null }, text, pid: undefined, words: () => ({ said: '', uncaught: undefined }) });
    }
    this.#noteAllEnded();
    if (this.#toStart.length > 0) this.#startOthers(sinceMs);
  }

  #startNoMore(): void {
    this.#stopping = true;
    this.#toStart.length = 0;
    this.#reportStarted(0);
    this.#noteAllEnded();
  }

  #start(spec: ProcessSpec): void {
    makeFolder(this.#folder(spec, 0));
    const child = this.#spawn(spec);
    const member: Member = { spec, child, outputs: this.#outputsOf(spec, child, 0), ended: false, restarted: 0 };
    this.#members.push(member);
    this.#follow(member);
  }

  /** Starts a process again. @returns false when it may not be started again. */
  #startAgain(member: Member, text: string): boolean {
    const { spec, outputs } = member;
    const { name, restarts = 0 } = spec;
    if (this.#stopping || member.restarted >= restarts) return false;
    member.restarted++;
    this.#options.report(`${name} ${text}`);
    this.#options.report(`starting ${name} again, restart ${member.restarted} of ${restarts}`);
    makeFolder(this.#folder(spec, member.restarted));
    this.#earlierOutputs.push(outputs.stdout, outputs.stderr);
    member.child = this.#spawn(spec);
    member.outputs = this.#outputsOf(spec, member.child, member.restarted);
    this.#follow(member);
    return true;
  }

  #spawn({ command, environment, readsStdin = false }: ProcessSpec): GuardedProcess {
    return this.#guard.spawn({ command, directory: this.#options.directory, environment, readsStdin });
  }

  #follow(member: Member): void {
    const { spec, child } = member;
    const { report } = this.#options;
    this.#starting++;
    child.once('spawn', () => {
      this.#started.push({ name: spec.name, pid: child.pid! });
      this.#reportStarted(1);
    });
    child.once('exit', (code, signal) => this.#onEnd(member, child, { code, signal }));
    child.once('error', (error) => {
      if (child.pid === undefined) this.#reportStarted(1);
      report(`${spec.name} could not be started: ${messageOf(error)}`);
      if (child.pid === undefined) this.#onEnd(member, child, { code: 126, signal: null });
    });
  }

  /** Reports all starts in one line, after the last one. @param begun processes that are not awaited any more. */
  #reportStarted(begun: number): void {
    this.#starting -= begun;
    if (this.#starting > 0 || this.#toStart.length > 0 || this.#started.length === 0) return;
    const [first, ...others] = this.#started.splice(0).map(({ name, pid }) => ({ name, pid: `(pid ${pid})` }));
    const last = others.at(-1);
    const few = [first, ...others].map(({ name, pid }) => `${name} started ${pid}`).join(', ');
    const many = `${others.length + 1} processes started: ${first.name} ${first.pid} … ${last?.name} ${last?.pid}`;
    this.#options.report(others.length < startsNamed ? few : many);
  }

  #onEnd(member: Member, child: GuardedProcess, ending: Ending): void {
    if (member.ended || member.child !== child) return;
    const { stderr } = member.outputs;
    const text = describeEnding(ending);
    // Processes it has started may live on in its group; then the guard still knows it, and ends them with the others.
    if (child.pid !== undefined && !this.#guard.signal(child.pid, 0)) this.#guard.forget(child.pid);
    if (!succeeded(ending) && this.#startAgain(member, text)) return;
    member.ended = true;
    member.end = text;
    this.#noteEnd(member.spec, { ending, text, pid: child.pid, words: () => ({ said: stderr.tail(), uncaught: stderr.uncaught() }) });
    this.#noteAllEnded();
  }

  #noteEnd(spec: ProcessSpec, how: Pick<EndedProcess, 'ending' | 'text' | 'pid' | 'words'>): void {
    const { name, rank } = spec;
    const isGood = succeeded(how.ending);
    const waited = this.#isWaiting(spec);
    const mayGoOn = !isGood && !waited && rank !== undefined && this.#failingMs === undefined && !this.#stopping;
    const isLost = mayGoOn && this.#options.elastic?.goOnWithout(rank) === true;
    const ended = { name, rank, afterMs: this.#options.clock.now() - this.#startMs, isLost, waited, ...how };
    this.#options.onEnd(ended);
    if (isGood || waited || this.#hasSubstitute(spec)) return;
    this.#failures.push(ended);
    if (isLost) return;
    this.noteFailing();
    this.#settle(ended);
  }

  #isWaiting({ rank }: ProcessSpec): boolean {
    return rank !== undefined && this.#options.elastic?.isWaiting(rank) === true;
  }

  #noteAllEnded(): void {
    if (this.#toStart.length > 0) return;
    const running = this.#running;
    // Ranks that go on without others end when the world says so, which is on other nodes as well.
    const mayBeOver = this.#options.elastic === undefined || this.#stopping;
    const isOver = mayBeOver && running.every(({ spec }) => spec.kind === 'server' || this.#isWaiting(spec));
    if (isOver && !this.#ranksOver) return this.dismiss();
    if (running.length > 0) return;
    if (this.#ranksOver) this.#ended();
    else this.#options.onIdle?.();
  }

  /** A server whose place another process takes is no loss to the ranks. Of one that is elsewhere we do not know how it is:
   *  when it has ended as well, the ranks' operations say so. */
  #hasSubstitute({ seat, substitute }: ProcessSpec): boolean {
    if (substitute === 'here') return this.#running.some(({ spec }) => spec.seat === seat);
    return substitute === 'elsewhere';
  }

  #outputsOf(spec: ProcessSpec, child: GuardedProcess, restart: number): Record<Stream, RankOutput> {
    const { prefix, report } = this.#options;
    const folder = this.#folder(spec, restart);
    const open = (stream: Stream): RankOutput => {
      const route = spec.localRank === undefined ? { console: true, file: true } : this.#options.route(spec.localRank, stream);
      const file = folder !== undefined && route.file ? join(folder, `${stream}.log`) : undefined;
      return new RankOutput(child[stream]!, {
        console: route.console ? { sink: this.#options[stream], prefix: prefix(spec) } : undefined,
        file,
        tailBytes: stream === 'stderr' ? tailBytesMax : 0,
        onFileError: (error) => report(`${file} cannot be written: ${messageOf(error)}; ${spec.name} goes on without it`),
      });
    };
    return { stdout: open('stdout'), stderr: open('stderr') };
  }

  /** `rank-3`, `server-0`, `server-0-restart-1`. */
  #folder({ name }: ProcessSpec, restart: number): string | undefined {
    const { logDir } = this.#options;
    if (logDir === undefined) return undefined;
    return join(logDir, `${name.replace(' ', '-')}${restart > 0 ? `-restart-${restart}` : ''}`);
  }

  async #within(delayMs: number, event: Promise<void>): Promise<boolean> {
    return new Promise((resolve) => {
      const timer = this.#options.clock.setTimer(delayMs, () => resolve(false), { keepAlive: true });
      void event.then(() => timer.cancel()).then(() => resolve(true));
    });
  }

  /** `rank 3 is`, `rank 0, rank 2, server 1 are`. */
  #runningNames(): string {
    const names = this.#running.map(({ spec }) => spec.name);
    return `${names.join(', ')} ${names.length === 1 ? 'is' : 'are'}`;
  }
}
