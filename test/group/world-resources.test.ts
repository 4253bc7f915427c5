/** Resources that a world takes from its process and gives back: time, descriptors, memory. Also the errors on other ranks when
 *  one has run out. */
import { spawnSync } from 'node:child_process';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import { fixtureScript as script } from '../support/fixtures.ts';
import { start } from '../fixtures/launch-harness.ts';
import { readingThisPackage } from '../support/foreign-places.ts';
import { startRanks, type Outcome, type RanksOptions } from '../support/ranks.ts';

it('a process ends with its world, on whichever thread communication runs', async () => {
  // A limit of joining that went on running would keep the process for 20 minutes.
  const env = { SHOAL_CONNECT_TIMEOUT_MS: '600000' };
  for (const thread of ['inline', 'worker']) {
    await using world = await startRanks({ fixture: 'one-call', n: 2, env: { ...env, SHOAL_COMM_THREAD: thread } });
    for (const { code, lines, stderr } of await world.outcomes()) {
      expect(stderr).toBe('');
      expect(lines).toEqual([{ sum: 3 }]);
      expect(code).toBe(0);
    }
  }
});

/** The launcher, with a limit of descriptors. */
const launcherWith = (descriptors: number): string[] => {
  return ['/bin/sh', '-c', `ulimit -n ${descriptors}; exec "$0" "$@"`, process.execPath, 'dist/tools/cli/main.js'];
};

interface Heard {
  readonly code: string;
  readonly message: string;
  readonly peer?: number;
  readonly resource?: string;
}

const missing = nativeUnavailableReason();

describe.skipIf(missing !== undefined)(`a rank without descriptors${missing === undefined ? '' : ` (skipped: ${missing})`}`, () => {
  let directory: string;

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'shoal-resources-'));
  });

  afterAll(async () => {
    await rm(directory, { recursive: true });
  });

  interface Fault {
    readonly moment: string;
    readonly left?: number;
    readonly culprit?: number;
    readonly thread?: 'inline' | 'worker';
    /** Hosts, one letter per rank. */
    readonly hosts?: string;
  }

  function faulty({ moment, left = 0, culprit = 2, thread = 'worker', hosts = 'aaa' }: Fault): RanksOptions {
    const meeting = join(directory, `${moment}-${left}-${culprit}-${thread}`.replaceAll(' ', '-'));
    // If ranks that share memory come in time, the calling threads need no memory for an array.
    const env = {
      MOMENT: moment,
      LEFT: String(left),
      CULPRIT: String(culprit),
      MEETING: `file://${meeting}`,
      SHOAL_COMM_THREAD: thread,
      SHOAL_SYNC_BYTES: '0',
    };
    const envOf = (rank: number): Record<string, string> => ({
      SHOAL_HOST_ID: hosts[rank],
      LOCAL_RANK: String(hosts.slice(0, rank).split(hosts[rank]).length - 1),
      LOCAL_WORLD_SIZE: String(hosts.split(hosts[rank]).length - 1),
    });
    return { fixture: 'run-out', n: hosts.length, env, envOf, limits: 'ulimit -n 256' };
  }

  const heardBy = ({ lines }: Outcome): Heard => lines.find((line) => (line as Partial<Heard>).code !== undefined) as Heard;

  /** Checks that all ranks report the same error, and name the culprit. */
  function expectNamed(outcomes: readonly Outcome[], culprit = 2): void {
    for (const [rank, outcome] of outcomes.entries()) {
      const heard = heardBy(outcome);
      expect(heard).toMatchObject({ code: 'out-of-memory', resource: 'file descriptors' });
      expect(heard.message).toMatch(new RegExp(`rank ${culprit} ran out of file descriptors \\(limit \\d+\\) while .*ulimit -n`));
      expect(heard.peer).toBe(rank === culprit ? undefined : culprit);
      expect(outcome.stderr).not.toContain('Unhandled');
    }
  }

  it.each<Fault>([
    { moment: 'start', left: 10 },
    { moment: 'start', left: 7, thread: 'inline' },
    { moment: 'second world', left: 10 },
    { moment: 'tensor' },
    { moment: 'array' },
    { moment: 'array', left: 1, thread: 'inline' },
    { moment: 'memory of others' },
    { moment: 'array', hosts: 'aab' },
    { moment: 'recv' },
    { moment: 'split' },
    { moment: 'newGroup', left: 1 },
    { moment: 'newGroup', left: 1, hosts: 'abc' },
    { moment: 'subgroup' },
  ])('$moment, $left left, hosts $hosts, $thread: all ranks name it', async (fault) => {
    await using world = await startRanks(faulty(fault));
    await Promise.all([0, 1].map((rank) => world.ranks[rank].line(({ code }: Heard) => code !== undefined)));
    world.ranks[2].tell();
    expectNamed(await world.outcomes());
  });

  it.each(['inline', 'worker'] as const)('rank 0 while the others join, %s: all name it', async (thread) => {
    const fault: Fault = { moment: 'joining', culprit: 0, thread };
    await using world = await startRanks(faulty(fault));
    await world.ranks[0].line((line: { listens?: boolean }) => line.listens === true);
    for (const rank of [1, 2]) world.ranks[rank].tell();
    expectNamed(await world.outcomes(), 0);
  });

  it('with none at all: it says so itself, and the others that it did not join', async () => {
    await using world = await startRanks(faulty({ moment: 'start' }));
    const outcomes = await world.outcomes();
    expect(heardBy(outcomes[2]).message).toMatch(/^rank 2 ran out of file descriptors/);
    for (const rank of [0, 1]) expect(heardBy(outcomes[rank])).toMatchObject({ peer: 2, message: expect.stringMatching(/rank 2/) });
  });

  it('too few for a network path: the group does without', async () => {
    await using world = await startRanks(faulty({ moment: 'newGroup', left: 8, hosts: 'aab' }));
    for (const outcome of await world.outcomes()) expect(heardBy(outcome)).toEqual({ code: 'ok' });
  });

  it('the launcher names the rank and shows its output', async () => {
    const env = { MOMENT: 'newGroup', CULPRIT: '2' };
    await using job = start([...launcherWith(256), 'run', '-n', '3', script('run-out')], { env });
    const { code, stderr } = await job.ended;
    expect(code).toBe(1);
    expect(stderr).toContain('rank 2 failed first');
    expect(stderr).toMatch(/rank 2 ran out of file descriptors/);
  });

  it('a launcher that cannot start its ranks says so before it starts any', async () => {
    await using job = start([...launcherWith(120), 'run', '-n', '64', script('one-call')]);
    const { code, stderr } = await job.ended;
    expect(code).toBe(1);
    expect(stderr).toMatch(/the launcher ran out of file descriptors \(limit 120\) while starting 64 processes/);
    expect(stderr).not.toContain('started (pid');
  });
});

describe('a worker of a parameter server without descriptors', () => {
  it.for([
    { moment: 'create', left: 6 },
    { moment: 'create', left: 10 },
    { moment: 'init', left: 0 },
  ])('$moment, $left left: is told', async ({ moment, left }, context) => {
    if (moment === 'init' && missing !== undefined) context.skip(`${missing}: no memory is mapped`);
    const env = { MOMENT: moment, LEFT: String(left) };
    await using job = start([...launcherWith(256), 'run', '-n', '1', '--servers', '1', '--grace', '100ms', script('kvstore-run-out')], {
      env,
    });
    const { code, stdout, stderr } = await job.ended;
    expect(stdout, stderr).toMatch(
      /"code":"out-of-memory","resource":"file descriptors","message":"(this process|rank 0) ran out of file descriptors/,
    );
    expect(code).toBe(1);
  });
});

/** A user for the ranks: limits of threads do not count for root, so ranks are another user's, who must be able to read this package. */
const user = process.getuid?.() === 0 ? 61_000 + (process.pid % 1000) : undefined;
const noThreadLimit = ((): string | undefined => {
  if (spawnSync('prlimit', ['--version']).error !== undefined) return 'there is no prlimit here';
  const [program, ...args] = readingThisPackage;
  const { status } = spawnSync(program, args, user === undefined ? {} : { uid: user });
  return status === 0 ? undefined : 'another user cannot read this folder';
})();

describe.skipIf(noThreadLimit !== undefined)(
  `a rank without threads${noThreadLimit === undefined ? '' : ` (skipped: ${noThreadLimit})`}`,
  () => {
    it.each(['start', 'second world'])('%s: all ranks name it', async (moment) => {
      const directory = temporaryFolder('threads');
      await chmod(directory, 0o777);
      const env = { WHAT: 'threads', MOMENT: moment, MEETING: `file://${join(directory, 'meeting')}` };
      await using world = await startRanks({ fixture: 'run-out', n: 3, env, ...(user !== undefined && { user }) });
      for (const [rank, { lines, stderr }] of (await world.outcomes()).entries()) {
        const heard = lines.find((line) => (line as Partial<Heard>).code !== undefined) as Heard;
        expect(heard, stderr).toMatchObject({ code: 'out-of-memory', resource: 'threads' });
        expect(heard.message).toMatch(/rank 2 ran out of threads \(limit 1\) while .*ulimit -u/);
        expect(heard.peer).toBe(rank === 2 ? undefined : 2);
      }
    });
  },
);
