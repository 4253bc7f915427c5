/** `shoal run --nnodes 1:4`: machines that join and leave a running job, here all on one, with real processes and hosts of their own. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { freePort } from '../../src/base/testing/free-port.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { allGone, isRunning, pidsOf, rankScript, shoal, type Running } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const trains = fixtureScript('elastic-rank');
const storeLost = /ShoalError: store at tcp:\/\/127\.0\.0\.1:\d+ was lost: .* The process that serves it \(the launcher or rank 0\) ended/;

/** Nodes of one job, which have the same command. */
async function job(range: string, script: readonly string[], flags: readonly string[] = ['-n', '2']) {
  const port = await freePort();
  const runtime = temporaryFolder('runtime');
  const place = ['--nnodes', range, '--master-addr', '127.0.0.1', '--master-port', `${port}`];
  const node = (host: string, ...more: readonly string[]): Running =>
    shoal(['run', ...place, ...flags, ...more, ...script], {
      env: { SHOAL_SECRET: 'a secret', SHOAL_HOST_ID: host, XDG_RUNTIME_DIR: runtime },
    });
  return { node, port, runtime };
}

/** A job that trains until it is told to end. */
async function training(range: string, flags?: readonly string[]) {
  const file = join(temporaryFolder('node-range'), 'done');
  const { node, runtime } = await job(range, [trains, '1000000', '50', `file:${file}`], flags);
  return { node, runtime, end: () => writeFileSync(file, '') };
}

/** The ranks that `shoal status` shows on the machine of this launcher, and their states. */
async function shownBy({ pid }: Running, runtime: string): Promise<{ rank: number; state: string }[]> {
  await using asked = shoal(['status', '--json', '--job', String(pid)], { env: { XDG_RUNTIME_DIR: runtime } });
  const { ranks } = JSON.parse((await asked.ended).stdout) as { ranks: { rank: number; state: string }[] };
  return ranks.map(({ rank, state }) => ({ rank, state }));
}

const killedBy = (launcher: Running, signal: NodeJS.Signals): void => void process.kill(launcher.pid, signal);
const pidsOfRanks = async (launcher: Running, count: number): Promise<number[]> =>
  pidsOf(await launcher.output(/rank \d+ started \(pid (\d+)\)|, rank \d+ started \(pid (\d+)\)/, count));

/** The ranks' words at the end: all say the same, and every step counts once. */
function said(stdout: string): { ranks: number[]; changes: [number, string][] } {
  const all = [...stdout.matchAll(/^\[rank \d+\] (\{.*\})$/gm)].map(
    ([, text]) => JSON.parse(text) as { ranks: number[]; steps: number; total: number; changes: [number, string][] },
  );
  for (const each of all) expect(each).toEqual(all[0]);
  expect(all[0].total).toBe((all[0].steps * (all[0].steps + 1)) / 2);
  return all[0];
}

describe('machines that come and go', () => {
  it('join while the others train; one leaves by SIGTERM, one dies, and a new one joins', async () => {
    const { node, runtime, end } = await training('1:3');
    await using first = node('a');
    await first.output(/has joined/, 2);
    await using second = node('b');
    await second.output(/rank \d joined the job/, 2);
    await using third = node('c');
    await third.output(/rank \d joined the job/, 2);
    for (const launcher of [first, second, third]) {
      const shown = await shownBy(launcher, runtime);
      expect(shown.map(({ rank }) => rank)).toEqual([0, 1, 2, 3, 4, 5]);
      expect(shown.map(({ state }) => state)).not.toContain('unknown');
    }
    const pids = await pidsOfRanks(third, 1);
    killedBy(second, 'SIGTERM');
    const left = await second.ended;
    expect(left.code, left.stderr).toBe(0);
    expect(left.stderr).toMatch(/SIGTERM: the ranks of this node leave the job, the others go on\n/);
    await first.output(/world 5 → 4: rank \d was killed by SIGTERM; the others go on, and it was asked to leave/, 1);
    killedBy(third, 'SIGKILL');
    for (const pid of pids) if (isRunning(pid)) process.kill(pid, 'SIGKILL');
    await first.output(/world 4 → 2: node 2 \(.+\) was lost with ranks 4, 5; the others go on/, 1);
    await using fourth = node('d');
    await fourth.output(/rank \d joined the job/, 2);
    end();
    const [whole, joined] = await Promise.all([first.ended, fourth.ended]);
    expect([whole.code, joined.code], whole.stderr + joined.stderr).toEqual([0, 0]);
    const { ranks, changes } = said(whole.stdout + joined.stdout);
    // Ranks of a machine may be taken in one after the other.
    expect(ranks.toSorted((a, b) => a - b)).toEqual([0, 1, 6, 7]);
    const worlds = changes.map(([, each]) => each.split(',').toSorted().join(','));
    expect(worlds).toEqual(expect.arrayContaining(['0,1', '0,1,2,3', '0,1,2,3,4,5', '0,1,6,7']));
    expect(whole.stderr).toMatch(/world 2 → [34]: ranks? [23](, [23])? on node 1 \(.+\) joined\n/);
    await allGone(pids);
  });

  it('join one that has one rank alone, and a lost rank is started again on its machine', async () => {
    const { node, end } = await training('1:2', ['-n', '1', '--max-restarts', '1']);
    await using first = node('a');
    await first.output(/has joined/, 1);
    await using second = node('b');
    await second.output(/rank 1 joined the job/, 1);
    process.kill((await pidsOfRanks(second, 1))[0], 'SIGKILL');
    await first.output(/world 2 → 1: rank 1 was killed by SIGKILL.*; the others go on; it is started again in 1 s \(1 of 1\)/, 1);
    await first.output(/world 1 → 2: rank 2 \(started again for rank 1\) joined/, 1);
    end();
    const ended = await Promise.all([first.ended, second.ended]);
    expect(ended.map(({ code }) => code)).toEqual([0, 0]);
    expect(said(ended[0].stdout + ended[1].stdout).ranks).toEqual([0, 2]);
  });

  it('go on without the ranks of node 0, whose launcher serves the store until the end', async () => {
    const { node, end } = await training('1:2', ['-n', '1']);
    await using first = node('a');
    await first.output(/has joined/, 1);
    await using second = node('b');
    await second.output(/rank 1 joined the job/, 1);
    // Else it would end the job, of which it knows no other rank.
    await first.output(/world 1 → 2/, 1);
    killedBy(first, 'SIGTERM');
    await first.output(/no rank is left on this node; its launcher serves the store until the job ends/, 1);
    end();
    const ended = await Promise.all([first.ended, second.ended]);
    expect(
      ended.map(({ code }) => code),
      ended[0].stderr + ended[1].stderr,
    ).toEqual([0, 0]);
    expect(said(ended[1].stdout).ranks).toEqual([1]);
  });

  it.each(['with', 'without'])('all end with one message when the launcher of node 0 is killed, %s ranks of node 0', async (how) => {
    const { node } = await training('1:3', ['-n', '1', '--grace', '60s']);
    await using first = node('a');
    await first.output(/has joined/, 1);
    const others = [node('b'), node('c')];
    await using second = others[0];
    await using third = others[1];
    for (const other of others) await other.output(/rank \d joined the job/, 1);
    if (how === 'without') {
      await first.output(/world \d → 3/, 1);
      killedBy(first, 'SIGTERM');
      await first.output(/no rank is left on this node/, 1);
    }
    killedBy(first, 'SIGKILL');
    for (const { code, stderr } of await Promise.all([second.ended, third.ended])) {
      expect(code).toBe(1);
      expect(stderr).toMatch(new RegExp(`rank \\d exited with code 1: ${storeLost.source}`));
      expect(stderr).toMatch(/the job ended: the launcher of node 0 was lost/);
    }
  });

  it('are as many as begin, at least: with too few ranks the job ends, and with too few machines it does not begin', async () => {
    const { node } = await training('2:3', ['-n', '1', '--join-timeout', '60s']);
    await using first = node('a');
    await using second = node('b');
    const launchers = [first, second];
    await Promise.all(launchers.map((each) => each.output(/has joined/, 1)));
    const served = await Promise.race(launchers.map((each) => each.output(/rank 0 started/, 1).then(() => each)));
    const other = launchers.find((each) => each !== served)!;
    killedBy(other, 'SIGKILL');
    const { code, stderr } = await served.ended;
    expect(code).toBe(1);
    expect(stderr).toMatch(/node 1 \(.+\) failed: its launcher was lost with rank 1, and 1 of the 2 ranks that the job needs are left/);
    const { node: lonely } = await training('2:3', ['-n', '1', '--join-timeout', '2s']);
    const alone = await lonely('a').ended;
    expect(alone.code).toBe(1);
    expect(alone.stderr).toContain('of at least 2 nodes, 1 did not join within 2000 ms');
  });
});

describe('a range of machines', () => {
  it('admits no more than its most, until one leaves', async () => {
    const { node } = await job('1:4', [rankScript, 'stay'], ['-n', '1']);
    await using first = node('a');
    await first.output(/ready/, 1);
    await using second = node('b');
    await using third = node('c');
    await using fourth = node('d');
    for (const each of [second, third, fourth]) await each.output(/ready/, 1);
    const fifth = await node('e').ended;
    expect([fifth.code, fifth.stderr]).toEqual([
      2,
      'shoal: the job has 4 nodes, and --nnodes 1:4 allows no more; another may join when one has left\n',
    ]);
    killedBy(third, 'SIGTERM');
    expect((await third.ended).code).toBe(0);
    await using sixth = node('f');
    await sixth.output(/ready/, 1);
    killedBy(first, 'SIGINT');
    const ended = await Promise.all([first, second, fourth, sixth].map((each) => each.ended));
    expect(ended.map(({ code }) => code)).toEqual([130, 130, 130, 130]);
  });

  it('is the same on all machines; a machine on which the script fails ends alone, with its exit code', async () => {
    const { node } = await job(
      '1:3',
      ['--no-node', 'sh', '-c', '[ "$SHOAL_JOIN" = 1 ] && exit 7; echo ready; exec sleep 1000'],
      ['-n', '1'],
    );
    await using first = node('a');
    await first.output(/ready/, 1);
    const [failed, odd] = await Promise.all([node('b').ended, node('c', '--nnodes', '1:2').ended]);
    expect(failed.code, failed.stderr).toBe(7);
    expect(failed.stderr).toMatch(/rank 1 did not join: rank 1 exited with code 7\n/);
    expect([odd.code, odd.stderr]).toEqual([2, 'shoal: --nnodes is 1:2 here but 1:3 on node 0\n']);
    killedBy(first, 'SIGTERM');
    expect((await first.ended).code).toBe(143);
  });

  it('is for jobs without servers', async () => {
    const { node } = await job('1:3', [rankScript, 'stay'], ['--workers', '1', '--servers', '1']);
    expect((await node('a').ended).stderr).toBe('shoal: --servers need a fixed number of machines, and --nnodes 1:3 is a range\n');
  });
});
