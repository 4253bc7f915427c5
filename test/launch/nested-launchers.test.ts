/** `shoal run` inside a rank of another `shoal run`, and two jobs at once that ask for the same port; real processes. */
import { readdirSync } from 'node:fs';
import { expect, it } from 'vitest';
import { freePort } from '../../src/base/testing/free-port.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { allGone, nestedScript, shoal, shoalRun, storeScript, type Running } from '../fixtures/launch-harness.ts';

const outer = (flags: readonly string[], ...inner: readonly (readonly string[])[]): Running =>
  shoalRun('-q', ...flags, nestedScript, 'outer', ...inner.map((args) => JSON.stringify([...args])));

const tracesOf = (folder: string): string[] => readdirSync(folder).filter((name) => name.startsWith('trace-'));

it('a job that a rank starts has its own ranks, servers and records, while the other job works on', async () => {
  const [records, innerRecords] = [temporaryFolder('outer'), temporaryFolder('inner')];
  await using job = outer(
    ['--workers', '2', '--servers', '1', '--report-dir', records],
    ['-q', '-n', '3', nestedScript, 'inner'],
    ['-q', '--workers', '2', '--servers', '1', '--report-dir', innerRecords, nestedScript, 'inner'],
  );
  const { code, stdout, stderr } = await job.ended;
  expect(code, stderr).toBe(0);
  const said = (text: string): number => stdout.split(text).length - 1;
  expect(said('outer: sum 3 of 2, pushed 3 of 2, inner exited with 0')).toBe(2);
  expect(said('inner: sum 6 of 3, no parameter servers: SHOAL_ROLE is not set')).toBe(3);
  expect(said('inner: sum 3 of 2, pushed 3 of 2')).toBe(2);
  expect(tracesOf(records)).toEqual(['trace-rank-0.json', 'trace-rank-1.json']);
  expect(tracesOf(innerRecords)).toEqual(['trace-rank-0.json', 'trace-rank-1.json']);
});

it('a job that a rank starts ends with that rank', async () => {
  await using job = outer(['-n', '1'], ['-n', '2', nestedScript, 'stay']);
  const pids = [...(await job.output(/inner: sum 3 of 2.*pid (\d+)/, 2)), ...(await job.output(/started \(pid (\d+)\)/, 1))];
  job.child.kill('SIGKILL');
  await allGone(pids.map((match) => Number(match[1])));
});

it('the second of two jobs with one port is refused, and the first goes on', async () => {
  const flags = ['-n', '2', '--master-port', String(await freePort())];
  await using first = outer(flags, ['-q', nestedScript, 'stay'], ['-q', nestedScript, 'inner']);
  await first.output(/inner: sum 1 of 1/, 2);
  const second = await shoalRun(...flags, storeScript).ended;
  expect(second.code).toBe(2);
  expect(second.stderr).toMatch(
    /^shoal: the store cannot listen on 127\.0\.0\.1:\d+: .*; another job uses the port; choose another one \(--master-port, MASTER_PORT\)\n$/,
  );
  expect(first.child.exitCode).toBe(null);
});

it.each([
  { differ: 'secrets', refusal: /have different secrets/ },
  { differ: 'names', refusal: /belongs to another world/ },
])(
  'two jobs of two nodes with one port and different $differ started at once: one runs, each node of the other is refused',
  async ({ differ, refusal }) => {
    const port = String(await freePort());
    const launcher = (job: string, node: number): Running => {
      const flags = ['--nnodes', '2', '--node-rank', String(node), '--master-addr', '127.0.0.1', '--master-port', port];
      const name = differ === 'names' ? ['--job-id', job] : [];
      const env = { SHOAL_SECRET: differ === 'secrets' ? job : 'one' };
      return shoal(['run', '-q', ...flags, ...name, nestedScript, 'stay'], { env });
    };
    const jobs = ['a', 'b'].map((job) => [launcher(job, 0), launcher(job, 1)]);
    try {
      const refused = await Promise.race(jobs.map((nodes) => nodes[0].ended.then(() => nodes)));
      // The job that runs stays until both nodes of the other one have met its store.
      const loser = await Promise.all(refused.map(({ ended }) => ended));
      expect(loser.map(({ code, stdout }) => [code === 0, stdout])).toEqual([
        [false, ''],
        [false, ''],
      ]);
      expect(loser[0].stderr).toContain('another job uses the port');
      expect(loser[1].stderr).toMatch(refusal);
      const winner = jobs.find((nodes) => nodes !== refused)!;
      await Promise.all(winner.map((node) => node.output(/inner: sum 3 of 2/, 1)));
    } finally {
      await Promise.all(jobs.flat().map((node) => node[Symbol.asyncDispose]()));
    }
  },
);
