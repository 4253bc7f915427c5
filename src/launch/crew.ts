/** The ranks of one generation on this node: starts them all, notices the first that fails, stops the others in three steps
 *  (let them fail by themselves, SIGTERM, SIGKILL), and leaves no process of theirs behind. It must not know other nodes. */
import { spawn, type ChildProcess } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Clock } from '../base/clock.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import type { ConsoleSink } from './console-sink.ts';
import { describeEnding, succeeded, type Ending } from './exit-reason.ts';
import { signalGroup, startGuard, type Guard } from './guard.ts';
import type { Route, Stream } from './output-routes.ts';
import { RankOutput } from './rank-output.ts';

export interface Berth {
  readonly rank: number;
  readonly localRank: number;
  readonly environment: Record<string, string | undefined>;
}

export interface CrewOptions {
  readonly clock: Clock;
  readonly berths: readonly Berth[];
  /** Program and arguments, the same for all. */
  readonly command: readonly string[];
  readonly directory: string;
  readonly stdout: ConsoleSink;
  readonly stderr: ConsoleSink;
  /** What stands before each line of a rank's output. */
  readonly prefix: (rank: number) => string;
  readonly route: (localRank: number, stream: Stream) => Route;
  /** Holds a folder per rank; undefined: no files. */
  readonly logDir: string | undefined;
  /** Kept of a failing rank's stderr. Default 64 KiB. */
  readonly tailBytes?: number;
  /** One line about a rank. */
  readonly report: (line: string) => void;
}

/** A rank that has ended badly. */
export interface Casualty {
  readonly rank: number;
  readonly pid: number | undefined;
  readonly ending: Ending;
  /** `exited with code 3`. */
  readonly text: string;
  /** Milliseconds since the ranks were started. */
  readonly afterMs: number;
  /** What it wrote to stderr last; complete once the crew has disembarked. */
  tail(): { text: string; droppedBytes: number };
}

interface Member {
  readonly berth: Berth;
  readonly child: ChildProcess;
  readonly outputs: Record<Stream, RankOutput>;
  ended: boolean;
}

/** Outputs that a process outside the ranks' groups keeps open are given up after this. */
const drainMs = 2000;

/** @throws ShoalError `config`. */
function makeFolder(path: string | undefined): void {
  if (path === undefined) return;
  try {
    mkdirSync(path, { recursive: true });
  } catch (error) {
    throw new ShoalError('config', `the log folder ${path} cannot be made: ${messageOf(error)}`, { cause: error });
  }
}

export class Crew {
  /** Resolves with the first rank that ends badly, or with undefined when all have ended well. */
  readonly firstCasualty: Promise<Casualty | undefined>;
  readonly #options: CrewOptions;
  readonly #guard: Guard;
  readonly #members: Member[];
  readonly #startMs: number;
  readonly #allEnded: Promise<void>;
  #ended!: () => void;
  #settle!: (casualty: Casualty | undefined) => void;

  /** Starts all ranks. @throws ShoalError `config` when their log folders cannot be made; then none was started. */
  constructor(options: CrewOptions) {
    this.#options = options;
    this.#startMs = options.clock.now();
    this.firstCasualty = new Promise((resolve) => (this.#settle = resolve));
    this.#allEnded = new Promise((resolve) => (this.#ended = resolve));
    for (const { rank } of options.berths) makeFolder(this.#folder(rank));
    this.#guard = startGuard();
    try {
      this.#members = options.berths.map((berth) => this.#start(berth));
    } catch (error) {
      void this.#guard.end();
      throw error;
    }
  }

  /** Ranks that have not ended. */
  get running(): number {
    return this.#members.filter((member) => !member.ended).length;
  }

  /** To the groups of all ranks that have not ended. */
  signal(signal: NodeJS.Signals): void {
    for (const { child, ended } of this.#members) {
      if (!ended && child.pid !== undefined) signalGroup(child.pid, signal);
    }
  }

  /** Waits for all ranks to end: `graceMs` by themselves, `killAfterMs` after SIGTERM, then SIGKILL. */
  async stop(options: { graceMs: number; killAfterMs: number }): Promise<void> {
    if (await this.#endedWithin(options.graceMs)) return;
    this.#options.report(`${this.#runningRanks()} still running after ${options.graceMs} ms: SIGTERM`);
    this.signal('SIGTERM');
    if (await this.#endedWithin(options.killAfterMs)) return;
    this.#options.report(`${this.#runningRanks()} still running ${options.killAfterMs} ms after SIGTERM: SIGKILL`);
    this.signal('SIGKILL');
    await this.#allEnded;
  }

  /** After all ranks have ended: ends what they left in their groups, and completes their output. */
  async disembark(): Promise<void> {
    await this.#allEnded;
    await this.#guard.end();
    const outputs = this.#members.flatMap(({ outputs: { stdout, stderr } }) => [stdout, stderr]);
    const timer = this.#options.clock.setTimer(drainMs, () => outputs.forEach((output) => output.abandon()), { keepAlive: true });
    await Promise.all(outputs.map((output) => output.finished));
    timer.cancel();
  }

  #start(berth: Berth): Member {
    const { command, directory, report } = this.#options;
    const [program, ...args] = this.#guard.wrap(command) as [string, ...string[]];
    const child = spawn(program, args, {
      cwd: directory,
      env: berth.environment,
      // A session of its own: signals from the terminal reach the launcher alone, which forwards them once.
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe', this.#guard.pipe],
    });
    const member: Member = { berth, child, outputs: this.#route(berth, child), ended: false };
    child.once('spawn', () => report(`rank ${berth.rank} started (pid ${child.pid})`));
    child.once('exit', (code, signal) => this.#onEnd(member, { code, signal }));
    child.once('error', (error) => {
      report(`rank ${berth.rank} could not be started: ${messageOf(error)}`);
      if (child.pid === undefined) this.#onEnd(member, { code: 126, signal: null });
    });
    return member;
  }

  #onEnd(member: Member, ending: Ending): void {
    if (member.ended) return;
    member.ended = true;
    const { berth, child, outputs } = member;
    const text = describeEnding(ending);
    this.#options.report(`rank ${berth.rank} ${text}`);
    // Processes it has started may live on in its group; then the guard still knows it, and ends them with the others.
    if (child.pid !== undefined && !signalGroup(child.pid, 0)) this.#guard.forget(child.pid);
    if (!succeeded(ending)) {
      const afterMs = this.#options.clock.now() - this.#startMs;
      this.#settle({ rank: berth.rank, pid: child.pid, ending, text, afterMs, tail: () => outputs.stderr.tail() });
    }
    if (this.running > 0) return;
    this.#settle(undefined);
    this.#ended();
  }

  #route(berth: Berth, child: ChildProcess): Record<Stream, RankOutput> {
    const { prefix, report, tailBytes = 65_536 } = this.#options;
    const folder = this.#folder(berth.rank);
    const open = (stream: Stream): RankOutput => {
      const route = this.#options.route(berth.localRank, stream);
      const file = folder !== undefined && route.file ? join(folder, `${stream}.log`) : undefined;
      return new RankOutput(child[stream]!, {
        console: route.console ? { sink: this.#options[stream], prefix: prefix(berth.rank) } : undefined,
        file,
        tailBytes: stream === 'stderr' ? tailBytes : 0,
        onFileError: (error) => report(`${file} cannot be written: ${messageOf(error)}; rank ${berth.rank} goes on without it`),
      });
    };
    return { stdout: open('stdout'), stderr: open('stderr') };
  }

  #folder(rank: number): string | undefined {
    const { logDir } = this.#options;
    return logDir === undefined ? undefined : join(logDir, `rank-${rank}`);
  }

  async #endedWithin(delayMs: number): Promise<boolean> {
    if (this.running === 0) return true;
    return new Promise((resolve) => {
      const timer = this.#options.clock.setTimer(delayMs, () => resolve(false), { keepAlive: true });
      void this.#allEnded.then(() => timer.cancel()).then(() => resolve(true));
    });
  }

  #runningRanks(): string {
    const ranks = this.#members.filter((member) => !member.ended).map((member) => member.berth.rank);
    return ranks.length === 1 ? `rank ${ranks[0]} is` : `ranks ${ranks.join(', ')} are`;
  }
}
