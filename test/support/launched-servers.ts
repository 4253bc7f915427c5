/** A job with servers under the launcher, for tests that kill, stop and resume its servers: the output of the launcher and the
 *  servers tells the processes apart. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../../scripts/repository.ts';
import { fixtureScript } from './fixtures.ts';

/** Limit that catches hangs. */
const patienceMs = 120_000;
const pollMs = 20;

/** A silence that is long for a process that is only busy, short for a test that waits until it has passed. */
export const freezeSilenceMs = 8000;

export interface LaunchedServersOptions {
  readonly workers: number;
  readonly servers: number;
  readonly store: 'dist_sync' | 'dist_async';
  /** Processes per server. Default: 2, with standbys. */
  readonly replicas?: 1 | 2;
  /** Script of the workers. Default: one that keeps books. */
  readonly script?: string;
  /** Milliseconds after which a stopped process counts as lost. Default: so many that no busy machine is slower. */
  readonly silenceMs?: number;
  /** Further arguments of `shoal run`. */
  readonly flags?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

/** A server, with the facts that the output has told so far. */
export interface LaunchedServer {
  readonly index: number;
  primary: number;
  /** Process id of the standby, which has the whole state. */
  standby: number | undefined;
  /** Number of standbys that it has lost. */
  losses: number;
}

export class LaunchedServers implements AsyncDisposable {
  readonly servers: LaunchedServer[];
  readonly #launcher: ChildProcess;
  readonly #folder: string;
  /** The launcher's exit code. */
  readonly ended: Promise<number | null>;
  readonly #workers: number;
  #pushing = 0;
  #over = false;
  #output = '';
  #read = 0;
  /** The process that the launcher started last in each seat, by the launcher's name of the seat. */
  readonly #pids = new Map<string, number>();

  constructor(options: LaunchedServersOptions) {
    const { workers, servers, store, replicas = 2, script = 'kvstore-ledger', silenceMs = 60_000, flags = [], env } = options;
    this.#workers = workers;
    this.#folder = mkdtempSync(join(tmpdir(), 'shoal-servers-'));
    this.servers = Array.from({ length: servers }, (_, index) => ({ index, primary: 0, standby: undefined, losses: 0 }));
    const given = ['--workers', String(workers), '--servers', String(servers), '--replicas', String(replicas), ...flags];
    this.#launcher = spawn(process.execPath, [join(repositoryRoot, 'dist/tools/cli/main.js'), 'run', ...given, fixtureScript(script)], {
      env: {
        ...process.env,
        SHOAL_LOG_LEVEL: 'info',
        SHOAL_SLOW_MS: '600000',
        SHOAL_KV_SILENCE_MS: String(silenceMs),
        STOP: this.#stopFile,
        STORE: store,
        ...env,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of [this.#launcher.stdout, this.#launcher.stderr])
      stream?.setEncoding('utf8').on('data', (text: string) => this.#listen(text));
    this.ended = once(this.#launcher, 'close').then(([code]) => {
      this.#over = true;
      return code as number | null;
    });
  }

  get #stopFile(): string {
    return join(this.#folder, 'stop');
  }

  get output(): string {
    return this.#output;
  }

  /** Resolves when the server has a standby that can take over, and workers push. */
  async stoodBy(server: LaunchedServer): Promise<void> {
    await this.until(`server ${server.index} has a standby`, () => server.standby !== undefined && this.#pushing === this.#workers);
  }

  /** @throws when the job ends first, or it takes too long. */
  async until(what: string, condition: () => boolean): Promise<void> {
    for (const endMs = Date.now() + patienceMs; !condition(); await new Promise((resolve) => setTimeout(resolve, pollMs))) {
      if (this.#over) throw new Error(`the job has ended before this: ${what}\n${this.#output}`);
      if (Date.now() > endMs) throw new Error(`this has not happened: ${what}\n${this.#output}`);
    }
  }

  signal(pid: number, signal: NodeJS.Signals): void {
    try {
      process.kill(pid, signal);
    } catch {
      // The process has ended already.
    }
  }

  async killPrimary(server: LaunchedServer): Promise<void> {
    const { primary, standby } = server;
    server.standby = undefined;
    this.signal(primary, 'SIGKILL');
    await this.until(`process ${standby} is server ${server.index}`, () => server.primary === standby);
  }

  async killStandby(server: LaunchedServer): Promise<void> {
    const { standby, losses } = server;
    server.standby = undefined;
    this.signal(standby!, 'SIGKILL');
    await this.until(`server ${server.index} goes on alone`, () => server.losses > losses);
  }

  /** Stops the primary until its standby has taken over, and resumes it. */
  async freezePrimary(server: LaunchedServer): Promise<void> {
    const { primary, standby } = server;
    server.standby = undefined;
    this.signal(primary, 'SIGSTOP');
    await this.until(`process ${standby} is server ${server.index}`, () => server.primary === standby);
    this.signal(primary, 'SIGCONT');
  }

  async freezeStandby(server: LaunchedServer): Promise<void> {
    const { standby, losses } = server;
    server.standby = undefined;
    this.signal(standby!, 'SIGSTOP');
    await this.until(`server ${server.index} goes on alone`, () => server.losses > losses);
    this.signal(standby!, 'SIGCONT');
  }

  /** Kills the process that is the server; without standbys, the launcher starts it again. */
  killServer(index: number): void {
    this.signal(this.#pids.get(`server ${index}`)!, 'SIGKILL');
  }

  /** Lets the workers end. @throws when the job fails. */
  async finish(): Promise<void> {
    writeFileSync(this.#stopFile, '');
    const late = setTimeout(() => this.#launcher.kill('SIGKILL'), patienceMs);
    const code = await this.ended;
    clearTimeout(late);
    if (code !== 0) throw new Error(`the job ended with code ${code}\n${this.#output}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#over) this.#launcher.kill('SIGTERM');
    // Stopped processes do not hear the signal, so they are resumed.
    for (const pid of this.#over ? [] : this.#pids.values()) this.signal(pid, 'SIGCONT');
    await this.ended;
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #listen(text: string): void {
    this.#output += text;
    for (let end = this.#output.indexOf('\n', this.#read); end >= 0; end = this.#output.indexOf('\n', this.#read)) {
      this.#line(this.#output.slice(this.#read, end));
      this.#read = end + 1;
    }
  }

  #line(line: string): void {
    if (line.startsWith('shoal: '))
      for (const [, name, pid] of line.matchAll(/((?:server|standby) \d+) started \(pid (\d+)\)/g)) this.#pids.set(name, Number(pid));
    if (/^\[rank \d+\] worker \d+ pushes$/.test(line)) this.#pushing++;
    const said = /^\[((?:server|standby) (\d+))\] .*(?:process (\d+) stands by|takes over with the state|goes on alone)/.exec(line);
    if (said === null) return;
    const server = this.servers[Number(said[2])];
    // The process that prints this is the primary now.
    server.primary = this.#pids.get(said[1])!;
    server.standby = said[3] === undefined ? undefined : Number(said[3]);
    if (line.endsWith('goes on alone')) server.losses++;
  }
}
