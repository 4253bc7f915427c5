/** Real ranks for tests: one Node process each, meeting at a store that this process serves, as under a launcher. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { reportEnded } from '../../src/store/ended-ranks.ts';
import { HashStore } from '../../src/store/hash-store.ts';
import { PrefixStore } from '../../src/store/store.ts';
import { generationPrefix } from '../../src/store/open-store.ts';
import { StoreServer } from '../../src/store/store-server.ts';
import { describeEnding } from '../../src/launch/exit-reason.ts';
import { fixtureCommand } from './fixtures.ts';

/** A warning about late ranks would only say how busy the machine is, so its limit is long. */
const calm = { SHOAL_SLOW_MS: '600000' };
const secret = 'a secret for tests';

export interface RanksOptions {
  /** Name of a fixture in test/fixtures, without extension. */
  readonly fixture: string;
  /** Arguments of the fixture. Default: none. */
  readonly args?: readonly string[];
  readonly n: number;
  /** Further variables, for all ranks or per rank. */
  readonly env?: Record<string, string>;
  readonly envOf?: (rank: number) => Readonly<Record<string, string | undefined>>;
  /** Ranks that are started; default all. */
  readonly only?: readonly number[];
  /** Shell commands that run before, such as `ulimit -n 40`. */
  readonly limits?: string;
  /** The command that starts a rank's process, such as `unshare`. Default: none. */
  readonly within?: (rank: number) => readonly string[];
  /** User of the processes; default: the test's. */
  readonly user?: number;
  /** Working directory; default: the test's. */
  readonly cwd?: string;
}

export interface Outcome {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly lines: readonly unknown[];
  readonly stderr: string;
}

/** One rank's process. */
export class RankProcess {
  readonly rank: number;
  readonly child: ChildProcess;
  readonly lines: unknown[] = [];
  stderr = '';
  #stdout = '';
  readonly #waiting: { matches: (line: unknown) => boolean; resolve: (line: unknown) => void }[] = [];
  readonly exited: Promise<Outcome>;

  constructor(rank: number, child: ChildProcess) {
    this.rank = rank;
    this.child = child;
    child.stdout?.setEncoding('utf8').on('data', (text: string) => this.#read(text));
    child.stderr?.setEncoding('utf8').on('data', (text: string) => (this.stderr += text));
    // A pipe to a rank that has ended fails; its exit code tells the rest.
    child.stdin?.on('error', () => undefined);
    this.exited = once(child, 'close').then(([code, signal]) => ({
      code: code as number | null,
      signal: signal as NodeJS.Signals | null,
      lines: this.lines,
      stderr: this.stderr,
    }));
  }

  /** The first line, past or future, that matches. Rejects when the process ends without one. */
  line<T>(matches: (line: T) => boolean): Promise<T> {
    const test = matches as (line: unknown) => boolean;
    const known = this.lines.find(test);
    if (known !== undefined) return Promise.resolve(known as T);
    const coming = new Promise<unknown>((resolve) => this.#waiting.push({ matches: test, resolve }));
    const ended = this.exited.then(({ code, signal, stderr }) => {
      throw new Error(
        `rank ${this.rank} ended (${code ?? signal}) without the expected line; it said ${JSON.stringify(this.lines)}\n${stderr}`,
      );
    });
    return Promise.race([coming, ended]) as Promise<T>;
  }

  kill(signal: NodeJS.Signals = 'SIGKILL'): void {
    this.child.kill(signal);
  }

  /** Lets a rank that waits go on, or sends it an order. */
  tell(order = 'go'): void {
    this.child.stdin?.write(`${order}\n`);
  }

  #read(text: string): void {
    this.#stdout += text;
    for (let end = this.#stdout.indexOf('\n'); end >= 0; end = this.#stdout.indexOf('\n')) {
      const line = this.#stdout.slice(0, end);
      this.#stdout = this.#stdout.slice(end + 1);
      const value: unknown = line.startsWith('{') ? JSON.parse(line) : line;
      this.lines.push(value);
      for (const waiting of this.#waiting.filter((each) => each.matches(value))) waiting.resolve(value);
    }
  }
}

export interface Ranks extends AsyncDisposable {
  readonly ranks: readonly RankProcess[];
  readonly server: StoreServer;
  /** Name of the job. */
  readonly job: string;
  /** Starts one more. */
  start(rank: number): RankProcess;
  /** Waits for all to end. */
  outcomes(): Promise<Outcome[]>;
}

/** Starts the fixture on every rank. Disposal kills what still runs. */
export async function startRanks(options: RanksOptions): Promise<Ranks> {
  const job = `test-${systemRandom.integer(2 ** 32)}`;
  const base = { clock: systemClock, random: systemRandom };
  const server = await StoreServer.listen({ ...base, secret: new TextEncoder().encode(secret), world: job });
  const store = new PrefixStore(new HashStore({ clock: systemClock, table: server.table }), generationPrefix(0));
  const started = options.only ?? Array.from({ length: options.n }, (_, rank) => rank);
  const ranks: RankProcess[] = [];
  const start = (rank: number): RankProcess => {
    const env = {
      PATH: process.env.PATH ?? '',
      HOME: process.env.HOME ?? '',
      RANK: String(rank),
      WORLD_SIZE: String(options.n),
      LOCAL_RANK: String(rank),
      LOCAL_WORLD_SIZE: String(options.n),
      MASTER_ADDR: '127.0.0.1',
      MASTER_PORT: String(server.port),
      SHOAL_JOB: job,
      SHOAL_SECRET: secret,
      ...(process.env.SHOAL_NATIVE === undefined ? {} : { SHOAL_NATIVE: process.env.SHOAL_NATIVE }),
      ...calm,
      ...options.env,
      ...options.envOf?.(rank),
    };
    const shell = ['-c', `${options.limits ?? ':'}; exec "$0" "$@"`];
    const child = spawn(
      '/bin/sh',
      [...shell, ...(options.within?.(rank) ?? []), ...fixtureCommand(options.fixture), ...(options.args ?? [])],
      {
        env,
        stdio: ['pipe', 'pipe', 'pipe'],
        ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
        ...(options.user === undefined ? {} : { uid: options.user, gid: options.user }),
      },
    );
    const rankProcess = new RankProcess(rank, child);
    void rankProcess.exited.then(({ code, signal }) => reportEnded(store, rank, { ending: describeEnding({ code, signal }) }));
    ranks.push(rankProcess);
    return rankProcess;
  };
  started.forEach(start);
  return {
    ranks,
    server,
    job,
    start,
    outcomes: () => Promise.all(ranks.map((rank) => rank.exited)),
    async [Symbol.asyncDispose]() {
      for (const rank of ranks) rank.kill();
      await Promise.all(ranks.map((rank) => rank.exited));
      await server.close();
    },
  };
}
