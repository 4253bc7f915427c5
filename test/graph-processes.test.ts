/** Graphs over processes: workers and parameter servers that `shoal run` starts, over the fabric and gRPC; one that is killed. */
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { shoalRun, start } from './fixtures/launch-harness.ts';

const script = fileURLToPath(new URL('fixtures/graph-worker.ts', import.meta.url));

describe('a graph over processes', () => {
  it.each([
    ['a request for every tensor', {}, 1 + 6],
    ['fused requests', { FUSE: '1' }, 1 + 2],
    ['fusion at run time', { RECV_SOME: '1' }, 2 + 2],
    ['fused requests over gRPC', { FUSE: '1', CARRIER: 'grpc' }, 1 + 2],
    ['fusion at run time over gRPC', { RECV_SOME: '1', CARRIER: 'grpc' }, 2 + 2],
  ])('computes what one process would, by %s', async (_, env, requestsMost) => {
    const { code, stdout, stderr } = await runWith(env, '--ps', '2', '--workers', '2').ended;
    expect(stderr).not.toContain('failed');
    expect(code).toBe(0);
    const counts = [...stdout.matchAll(/has ([\d.]+) requests per step/g)].map((match) => Number(match[1]));
    expect(counts).toHaveLength(2);
    // The ids go to two servers, the rows of six tables come back.
    for (const count of counts) expect(count).toBeLessThanOrEqual(requestsMost + 1.5);
  });

  it.each([['fabric'], ['grpc']])('ends with an error that names the server that was killed (%s)', async (CARRIER) => {
    await using job = runWith({ FUSE: '1', FOREVER: '1', CARRIER }, '--ps', '2', '--workers', '2', '--grace', '60s');
    const [[, pid]] = await job.output(/\/job:ps\/task:1 pid (\d+)/, 1);
    await job.output(/\/job:worker\/task:\d runs/, 2);
    process.kill(Number(pid), 'SIGKILL');
    await job.output(/ShoalError: .*\/job:ps\/task:1 (?:is lost|has ended)/, 1);
    await job.output(/code: 'peer-lost'/, 1);
    // The other server, which only serves, too.
    expect((await job.ended).stderr).not.toContain('still running');
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

  it('refuses --ps beside --servers', async () => {
    const { code, stderr } = await shoalRun('--ps', '1', '--servers', '1', script).ended;
    expect(code).not.toBe(0);
    expect(stderr).toContain('--ps is for shoal/graph and --servers for shoal/kvstore');
  });
});

function runWith(env: Record<string, string>, ...args: readonly string[]): ReturnType<typeof start> {
  return start([process.execPath, 'dist/cli/main.js', 'run', ...args, script], { env });
}
