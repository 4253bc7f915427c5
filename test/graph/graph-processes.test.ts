/** Graphs over processes: workers and parameter servers that `shoal run` starts, and one that is killed. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { isAlive } from '../../src/base/files/process-identity.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import type { ReportData } from '../../src/tools/report/data/report-data.ts';
import { shoalRun, start } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const script = fixtureScript('graph-worker');

describe('a graph over processes', () => {
  it('ends with an error that names the server that was killed', async () => {
    await using job = runWith({ FUSE: '1', FOREVER: '1' }, '--ps', '2', '--workers', '2', '--grace', '60s');
    const [[, pid]] = await job.output(/\/job:ps\/task:1 pid (\d+)/, 1);
    await job.output(/\/job:worker\/task:\d runs/, 2);
    process.kill(Number(pid), 'SIGKILL');
    const { stderr } = await job.ended;
    expect(stderr).toMatch(/ShoalError: .*\/job:ps\/task:1 (?:is lost|has ended)/);
    // The other server, which only serves, ends, too.
    expect(stderr).toMatch(/rank 2 exited with code 1: ShoalError: rank 3 was killed by SIGKILL/);
    expect(stderr).not.toContain('still running');
  });

  it('ends at once when a task is killed that no step in flight needs', async () => {
    const stuck = fixtureScript('graph-stuck');
    await using job = shoalRun('--ps', '2', '--workers', '1', '--grace', '60s', stuck);
    const [[, pid]] = await job.output(/\/job:ps\/task:1 pid (\d+)/, 1);
    await job.output(/\/job:worker\/task:0 runs/, 1);
    process.kill(Number(pid), 'SIGKILL');
    const { stderr } = await job.ended;
    expect(stderr).toMatch(/rank 0 exited with code 1: ShoalError: \/job:ps\/task:1 is lost: rank 2 was killed by SIGKILL/);
    expect(stderr).not.toContain('still running');
  });

  it.each([
    ['while it begins a step', /\/job:worker\/task:0 (runs)/],
    ['in a step', /(never) was called/],
  ])('a task that hears at once of all that have ended, %s, names the one that was killed', async (_, ready) => {
    const stuck = fixtureScript('graph-stuck');
    await using job = shoalRun('--ps', '2', '--workers', '1', '--grace', '60s', stuck);
    const [[, pid]] = await job.output(/rank 0 started \(pid (\d+)\)/, 1);
    const [[, killed]] = await job.output(/\/job:ps\/task:1 pid (\d+)/, 1);
    const [[, other]] = await job.output(/\/job:ps\/task:0 pid (\d+)/, 1);
    await job.output(ready, 1);
    process.kill(Number(pid), 'SIGSTOP');
    process.kill(Number(killed), 'SIGKILL');
    // The other server ends because it is told.
    await expect.poll(() => isAlive(Number(other)), { timeout: 60_000 }).toBe(false);
    process.kill(Number(pid), 'SIGCONT');
    const { stderr } = await job.ended;
    expect(stderr).toMatch(/rank 0 exited with code 1: ShoalError: \/job:ps\/task:1 is lost: rank 2 was killed by SIGKILL/);
  });

  it.each<Record<string, string>>([{}, { FUSE: '1' }])('runs a loop on two tasks, %j', async (env) => {
    const { code, stdout, stderr } = await runLoop({ N: '300', ...env }).ended;
    expect(code, stderr).toBe(0);
    expect(stdout).toContain('/job:worker/task:0 counted to 300');
    expect(stdout).toContain('/job:ps/task:0 is in iteration 100');
  });

  it('ends a loop with an error that names the task that was killed in it', async () => {
    await using job = runLoop({}, '--grace', '60s');
    const [[, pid]] = await job.output(/\/job:ps\/task:0 pid (\d+)/, 1);
    await job.output(/is in iteration 100/, 1);
    process.kill(Number(pid), 'SIGKILL');
    const { stderr } = await job.ended;
    expect(stderr).toMatch(/rank 0 exited with code 1: ShoalError: .*\/job:ps\/task:0 is lost/);
    expect(stderr).not.toContain('still running');
  });

  it('ends a loop at the time limit of its step when a task is stopped in it, and names it', async () => {
    await using job = runLoop({ LIMIT_MS: '8000' }, '--grace', '1s');
    const [[, pid]] = await job.output(/\/job:ps\/task:0 pid (\d+)/, 1);
    await job.output(/is in iteration 100/, 1);
    process.kill(Number(pid), 'SIGSTOP');
    const { stderr } = await job.ended;
    expect(stderr).toMatch(/did not end within 8000 ms: it waits for '\S*seen' from \/job:ps\/task:0/);
  });

  it('goes on from its checkpoint after a server was killed in the middle of training', async () => {
    const folder = temporaryFolder('graph-checkpoint');
    const counter = fixtureScript('graph-checkpoint');
    const job = (env: Record<string, string>): ReturnType<typeof start> =>
      start([process.execPath, 'dist/tools/cli/main.js', 'run', '--ps', '1', '--workers', '1', counter], {
        env: { CHECKPOINT: join(folder, 'variables'), ...env },
      });
    await using broken = job({});
    const [[, pid]] = await broken.output(/\/job:ps\/task:0 pid (\d+)/, 1);
    await broken.output(/has saved 6 steps/, 1);
    process.kill(Number(pid), 'SIGKILL');
    const { code, stderr } = await broken.ended;
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/\/job:ps\/task:0/);
    await using again = job({ STEPS: '3' });
    const { code: ended, stdout, stderr: said } = await again.ended;
    expect(ended, said).toBe(0);
    const from = Number(/goes on from (\d+)/.exec(stdout)?.[1]);
    expect(from).toBeGreaterThanOrEqual(6);
    expect(stdout).toContain(`ends with ${from + 3}`);
  });

  it('goes on with the step that failed when its server is killed and started again, twice', async () => {
    const path = join(temporaryFolder('graph-monitored'), 'variables');
    const counter = fixtureScript('graph-monitored');
    const flags = ['--ps', '1', '--workers', '1', '--server-restarts', '2'];
    await using job = start([process.execPath, 'dist/tools/cli/main.js', 'run', ...flags, counter], {
      env: { CHECKPOINT: path, STEPS: '900' },
    });
    for (const [kill, steps] of [100, 400].entries()) {
      await job.output(new RegExp(`has run ${steps} steps`), 1);
      const pids = await job.output(/\/job:ps\/task:0 pid (\d+)/, kill + 1);
      process.kill(Number(pids[kill][1]), 'SIGKILL');
    }
    const { code, stdout, stderr } = await job.ended;
    expect(stderr).toContain('starting rank 1 again, restart 2 of 2');
    // A step may be lost with each kill: the one after the last save.
    expect(stdout).toMatch(/ends with (898|899|900)$/m);
    expect(code).toBe(0);
  });

  it('ends when a task does before it has started', async () => {
    await using job = runWith({ FUSE: '1' }, '--ps', '2', '--workers', '2', '--grace', '60s');
    const [[, pid]] = await job.output(/rank 3 started \(pid (\d+)\)/, 1);
    process.kill(Number(pid), 'SIGKILL');
    const { code, stderr, stdout } = await job.ended;
    expect(code).toBe(137);
    expect(stderr).not.toContain('still running');
    expect(`${stdout}${stderr}`).toMatch(/ShoalError: rank 3 was killed by SIGKILL.* before it joined/);
  });

  it.each<{ by: string; env: Record<string, string>; requestsMost: number; method: string; most: number }>([
    { by: 'a request for every tensor', env: {}, requestsMost: 1 + 6, method: 'RecvTensor', most: 1 },
    { by: 'fused requests', env: { FUSE: '1' }, requestsMost: 1 + 2, method: 'FuseRecvTensor', most: 3 },
    { by: 'fusion at run time', env: { RECV_SOME: '1' }, requestsMost: 2 + 2, method: 'RecvSome', most: 3 },
  ])('computes what one process would, by $by; its trace tells waits, holds and requests', async ({ env, requestsMost, method, most }) => {
    const folder = temporaryFolder('graph-trace');
    const lateMs = 100;
    const { code, stderr, stdout } = await runWith({ ...env, SLOW_MS: String(lateMs), SHOAL_TRACE: folder }, '--ps', '2', '--workers', '2')
      .ended;
    expect(stderr).not.toContain('failed');
    expect(code, stderr).toBe(0);
    const counted = [...stdout.matchAll(/worker\/task:(\d) has ([\d.]+) requests per step/g)].map(([, task, count]) => [task, count]);
    expect(counted).toHaveLength(2);
    // The ids go to two servers, the rows of six tables come back.
    for (const [, count] of counted) expect(Number(count)).toBeLessThanOrEqual(requestsMost + 1.5);
    const report = await start([process.execPath, 'dist/tools/cli/main.js', 'report', folder, '--json']).ended;
    const { steps, requests, receives, counters, warnings } = JSON.parse(report.stdout) as ReportData;
    expect(warnings).toEqual([]);
    // The sessions' own counts, with the step that initialises.
    expect(steps.map(({ rank, requestsPerStep }) => [String(rank), requestsPerStep.toFixed(2)])).toEqual(
      counted.sort(([a], [b]) => Number(a) - Number(b)),
    );
    const own = requests.filter((each) => each.method === method && each.from.startsWith('/job:ps'));
    expect(new Set(own.map(({ rank, from }) => `${rank} ${from}`)).size).toBe(4);
    expect(Math.max(...own.map(({ tensorsMost }) => tensorsMost))).toBe(most);
    expect(new Set(counters.map(({ name }) => name))).toEqual(new Set(['RPCs per step', 'tensors per request']));
    const late = receives.filter(({ tensor }) => tensor.includes('late_0'));
    const besides = receives.filter(({ tensor, from }) => tensor.includes('prompt_') && from === late[0].from);
    expect([late.length, besides.length]).toEqual([2, 4]);
    for (const each of late) expect(each).toMatchObject({ receives: 20, bytes: 36 });
    for (const { waitUs } of late) expect(waitUs).toBeGreaterThan(lateMs * 900);
    // Only static fusion makes tensors that are ready wait for those that are not.
    for (const { heldUs } of besides)
      if (method === 'FuseRecvTensor') expect(heldUs).toBeGreaterThan(lateMs * 100);
      else expect(heldUs).toBeLessThan(lateMs * 500);
  });

  it('processes that are in a group as well leave both timelines, as one rank each', async () => {
    const folder = temporaryFolder('graph-trace');
    const both = fixtureScript('graph-and-group');
    const { code, stderr } = await shoalRun('--ps', '1', '--workers', '1', '--report-dir', folder, both).ended;
    expect(code, stderr).toBe(0);
    expect(readdirSync(folder).filter((name) => name.startsWith('trace-'))).toEqual([
      'trace-rank-0-graph.json',
      'trace-rank-0.json',
      'trace-rank-1-graph.json',
      'trace-rank-1.json',
    ]);
    const report = await start([process.execPath, 'dist/tools/cli/main.js', 'report', folder, '--json']).ended;
    const { ranks, rows, steps, operations, warnings } = JSON.parse(report.stdout) as ReportData;
    expect(warnings).toEqual([]);
    expect(ranks.map(({ rank }) => rank)).toEqual([0, 1]);
    expect(steps).toMatchObject([{ rank: 0, steps: 2 }]);
    expect(operations.reduce((sum, { calls }) => sum + calls, 0)).toBeGreaterThanOrEqual(2);
    for (const rank of [0, 1]) expect(rows.filter((row) => row.rank === rank).length).toBeGreaterThanOrEqual(2);
    const merged = await start([process.execPath, 'dist/tools/cli/main.js', 'trace', 'merge', folder, '--json']).ended;
    expect(JSON.parse(merged.stdout)).toMatchObject({ ranks: 2 });
  });

  it('refuses --ps beside --servers', async () => {
    const { code, stderr } = await shoalRun('--ps', '1', '--servers', '1', script).ended;
    expect(code).not.toBe(0);
    expect(stderr).toContain('--ps is for shoal/graph and --servers for shoal/kvstore');
  });
});

function runLoop(env: Record<string, string>, ...args: readonly string[]): ReturnType<typeof start> {
  const loop = fixtureScript('graph-loop');
  return start([process.execPath, 'dist/tools/cli/main.js', 'run', '--ps', '1', '--workers', '1', ...args, loop], { env });
}

function runWith(env: Record<string, string>, ...args: readonly string[]): ReturnType<typeof start> {
  return start([process.execPath, 'dist/tools/cli/main.js', 'run', ...args, script], { env });
}
