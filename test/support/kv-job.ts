/** A parameter-server job for tests: the store of the job in this process, servers as real processes that can be killed, and
 *  workers either in this process (several: they share nothing) or wherever their environment is given to. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { StoreServer } from '../../src/store/store-server.ts';
import { readSettings } from '../../src/base/settings/settings.ts';
import { create } from '../../src/kvstore/stores/create.ts';
import { builtEntry } from '../../src/base/packages/package-root.ts';
import type { KVStore, KVStoreType } from '../../src/kvstore/calls/types.ts';
import { fixtureCommand } from './fixtures.ts';

const secret = 'a secret for tests';

export interface KVJobOptions {
  readonly workers: number;
  readonly servers: number;
  readonly workerGroups?: number;
  readonly serverGroups?: number;
  readonly replicas?: 1 | 2;
  readonly checkpointDir?: string;
  /** `apart`: servers map no memory of workers, as if they were on other hosts. Default: all on one. */
  readonly hosts?: 'one' | 'apart';
  /** The command that starts each server's process, such as `unshare`. Default: none. */
  readonly within?: readonly string[];
  /** Further variables, for all processes. */
  readonly env?: Readonly<Record<string, string>>;
}

type Seat = 'server' | 'standby';

export class KVJob implements AsyncDisposable {
  readonly #options: KVJobOptions;
  readonly #store: StoreServer;
  readonly #job: string;
  readonly #processes = new Map<string, ChildProcess>();
  /** Further processes of a seat that has one. */
  readonly #more: ChildProcess[] = [];
  readonly #stores: KVStore[] = [];
  /** Output of servers to stderr. */
  stderr = '';

  private constructor(options: KVJobOptions, store: StoreServer, job: string) {
    this.#options = options;
    this.#store = store;
    this.#job = job;
  }

  static async start(options: KVJobOptions): Promise<KVJob> {
    const job = `test-${systemRandom.integer(2 ** 32)}`;
    const settings = readSettings({ ...options.env });
    const world = { clock: systemClock, random: systemRandom, secret: new TextEncoder().encode(secret), world: job, settings };
    const started = new KVJob(options, await StoreServer.listen(world), job);
    for (let index = 0; index < options.servers; index++) {
      started.startServer(index);
      if (options.replicas === 2) started.startServer(index, 'standby');
    }
    return started;
  }

  /** The variables of one process. */
  environment(role: 'worker' | Seat, index: number): Record<string, string> {
    const { workers, servers, workerGroups = 1, serverGroups = 1, replicas = 1, checkpointDir, hosts = 'one', env } = this.#options;
    const rank = role === 'worker' ? index : 0;
    return {
      PATH: process.env.PATH ?? '',
      HOME: process.env.HOME ?? '',
      RANK: String(rank),
      WORLD_SIZE: String(workers),
      LOCAL_RANK: String(rank),
      LOCAL_WORLD_SIZE: String(workers),
      MASTER_ADDR: '127.0.0.1',
      MASTER_PORT: String(this.#store.port),
      SHOAL_JOB: this.#job,
      SHOAL_SECRET: secret,
      SHOAL_ROLE: role,
      SHOAL_WORKERS: String(workers),
      SHOAL_WORKER_GROUPS: String(workerGroups),
      SHOAL_SERVERS: String(servers),
      SHOAL_SERVER_GROUPS: String(serverGroups),
      SHOAL_REPLICAS: String(replicas),
      ...(role === 'worker' ? {} : { SHOAL_SERVER: String(index) }),
      ...(checkpointDir === undefined ? {} : { SHOAL_CHECKPOINT_DIR: checkpointDir }),
      ...(process.env.SHOAL_NATIVE === undefined ? {} : { SHOAL_NATIVE: process.env.SHOAL_NATIVE }),
      ...(hosts === 'apart' ? { SHOAL_HOST_ID: role === 'worker' ? 'workers' : 'servers' } : {}),
      // A silent process is busy, unless a test kills it.
      SHOAL_KV_SILENCE_MS: '60000',
      ...env,
    };
  }

  /** The store of every worker, all in this thread. */
  async stores(type: KVStoreType): Promise<KVStore[]> {
    const { workers } = this.#options;
    const stores = await Promise.all(
      Array.from({ length: workers }, (_, worker) => create(type, { environment: this.environment('worker', worker) })),
    );
    this.#stores.push(...stores);
    return stores;
  }

  startServer(index: number, seat: Seat = 'server'): void {
    this.#processes.set(`${seat} ${index}`, this.#spawnServer(index, seat));
  }

  /** Starts a server too many. @returns its exit code. */
  async startAnother(index: number, seat: Seat = 'server'): Promise<number | null> {
    const child = this.#spawnServer(index, seat);
    this.#more.push(child);
    const [code] = (await once(child, 'exit')) as [number | null];
    return code;
  }

  #spawnServer(index: number, seat: Seat): ChildProcess {
    const [program, ...args] = [...(this.#options.within ?? []), process.execPath, builtEntry('ps/server/server-entry.js')];
    const child = spawn(program, args, {
      env: this.environment(seat, index),
      stdio: ['ignore', 'inherit', 'pipe'],
    });
    child.stderr?.setEncoding('utf8').on('data', (text: string) => (this.stderr += text));
    return child;
  }

  /** Starts the process of a worker, which ends before the job does. */
  startWorker(index: number, fixture: string, env: Readonly<Record<string, string>> = {}): ChildProcess {
    const [program, ...args] = fixtureCommand(fixture);
    const child = spawn(program, args, { env: { ...this.environment('worker', index), ...env }, stdio: 'pipe' });
    this.#more.push(child);
    return child;
  }

  /** Process id of a server that was started. */
  pidOf(index: number, seat: Seat = 'server'): number {
    return this.#processes.get(`${seat} ${index}`)?.pid ?? 0;
  }

  /** Kills a server with SIGKILL; resolves when it is gone. */
  async kill(index: number, seat: Seat = 'server'): Promise<void> {
    const child = this.#processes.get(`${seat} ${index}`);
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, 'exit');
    child.kill('SIGKILL');
    await gone;
  }

  /** Exit codes of the servers that end by themselves. */
  async served(): Promise<(number | null)[]> {
    return Promise.all(
      [...this.#processes.values()].map(async (child) => {
        if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
        return child.exitCode;
      }),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // Stores close while their servers can hear the goodbye, which is waited for; servers that a test has killed cannot.
    await Promise.all(this.#stores.map((store) => Promise.race([store.close().catch(() => undefined), later(3000)])));
    for (const child of [...this.#processes.values(), ...this.#more]) child.kill('SIGKILL');
    await this.#store.close();
  }
}

function later(delayMs: number): Promise<void> {
  return new Promise((resolve) => systemClock.setTimer(delayMs, resolve));
}
