/** Processes, files and sockets that jobs of a soak leave behind. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { filesLeftBy } from './shared-memory-files.ts';

/** Things that a job may leave, by kind. */
export class Leftovers {
  readonly #mark: string;
  readonly #temporary: string;
  readonly #shared = sharedNames();
  readonly #sockets: number;

  constructor(mark: string, temporary: string) {
    this.#mark = mark;
    this.#temporary = temporary;
    this.#sockets = ownSockets();
  }

  /** @param pids the processes that there were, where they are known: shared memory is looked for by their names only, as other jobs that run on
   *         this machine may leave some. @throws when something is still there after a while. */
  async expectNone(pids?: readonly number[]): Promise<void> {
    let left = this.#left(pids);
    for (let tries = 0; left.length > 0 && tries < 100; tries++) {
      await sleep(systemClock, 100);
      left = this.#left(pids);
    }
    if (left.length > 0) throw new Error(`left behind: ${left.join(', ')}`);
  }

  #left(pids: readonly number[] | undefined): string[] {
    const sockets = ownSockets() - this.#sockets;
    const shared = pids === undefined ? [...sharedNames()].filter((name) => !this.#shared.has(name)) : filesLeftBy(pids);
    return [
      ...markedProcesses(this.#mark).map((pid) => `process ${pid}`),
      ...shared.map((name) => `/dev/shm/${name}`),
      ...filesUnder(this.#temporary),
      ...(sockets > 0 ? [`${sockets} open sockets of this process`] : []),
    ];
  }
}

/** Other processes that have the variable, and so are this program's own. */
function markedProcesses(mark: string): number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => pid > 0 && pid !== process.pid && environmentOf(pid).includes(mark));
}

/** Empty for processes that have ended, and for helpers of this program that are no part of a job. */
function environmentOf(pid: number): string {
  try {
    if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('/esbuild')) return '';
    return readFileSync(`/proc/${pid}/environ`, 'latin1');
  } catch {
    return '';
  }
}

/** Names of this process's jobs only: others may run on this machine. */
function sharedNames(): ReadonlySet<string> {
  const isGone = (pid: string): boolean => environmentOf(Number(pid)) === '';
  return new Set(
    readdirSync('/dev/shm').filter((name) => {
      const pid = /shoal.*?-(\d+)-/.exec(name)?.[1];
      return pid !== undefined && isGone(pid);
    }),
  );
}

/** Files of any kind, sockets too. Folders may stay for the next job. Caches of compilers do, as well. */
function filesUnder(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    if (/^(tsx-|node-compile-cache)/.test(entry.name)) return [];
    const path = join(folder, entry.name);
    return entry.isDirectory() ? filesUnder(path) : [path];
  });
}

function ownSockets(): number {
  return readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`).startsWith('socket:');
    } catch {
      return false;
    }
  }).length;
}

/** Runs jobs whose processes have a variable and a temporary folder of their own. @param mark the variable, as `NAME=value`. @param body is given a
 *  folder for its own files, too. */
export async function watchLeftovers(mark: string, body: (leftovers: Leftovers, temporary: string) => Promise<void>): Promise<void> {
  const [name, value] = mark.split('=');
  const temporary = mkdtempSync(join(tmpdir(), 'shoal-soak-'));
  const theirs = join(temporary, 'theirs');
  mkdirSync(theirs);
  const before = { TMPDIR: process.env['TMPDIR'], XDG_RUNTIME_DIR: process.env['XDG_RUNTIME_DIR'] };
  Object.assign(process.env, { TMPDIR: theirs, XDG_RUNTIME_DIR: theirs, [name]: value });
  try {
    await body(new Leftovers(mark, theirs), temporary);
  } finally {
    delete process.env[name];
    for (const [each, was] of Object.entries(before)) {
      if (was === undefined) delete process.env[each];
      else process.env[each] = was;
    }
    rmSync(temporary, { recursive: true, force: true });
  }
}
