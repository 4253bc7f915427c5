/** Horovod's tests of elastic jobs, told from their descriptions. Its hosts are the ranks' places here: a failed one is started again alone, and
 *  the ranks beside it go on. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { shoal, shoalRun, type Ended } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';
import { startRanks, type RankProcess } from '../support/ranks.ts';
import { horovodElastic } from './elastic-suites.ts';
import { SuiteCases } from './support/suite-cases.ts';

const script = fixtureScript('elastic-rank');
/** The last line of a rank. */
interface Said {
  readonly ranks: readonly number[];
  readonly steps: number;
  readonly total: number;
  readonly changes: readonly (readonly [number, string])[];
}

/** The words of ranks that agree: each step counts once. @returns the ranks of each epoch of the world. */
function epochsOf(said: readonly Said[]): string[] {
  for (const each of said) expect(each).toEqual(said[0]);
  const [{ ranks, steps, total, changes }] = said;
  expect([said.length, total]).toEqual([ranks.length, (steps * (steps + 1)) / 2]);
  return changes.map(([, each]) => each);
}

function epochsIn({ code, stdout, stderr }: Ended): string[] {
  expect({ code, stderr }).toMatchObject({ code: 0 });
  return epochsOf([...stdout.matchAll(/^\[rank \d+\] (\{.*\})$/gm)].map(([, text]) => JSON.parse(text) as Said));
}

const ways = [
  { way: 'throws', end: 'throws-20', cause: 'exited with code 1' },
  { way: 'is killed', end: '20', cause: 'was killed by SIGKILL' },
];

describe(horovodElastic.name, () => {
  const cases = new SuiteCases(horovodElastic);
  for (const { way, end, cause } of ways) {
    cases.add('single_rank_failure', `the first rank ${way}, and another one comes in its place`, async () => {
      const job = shoalRun('-n', '2', '--min', '1', '--max-restarts', '3', script, '40', '20', `0:${end}`, 'until:2');
      const ended = await job.ended;
      expect(epochsIn(ended)).toEqual(['0,1', '1', '1,2']);
      expect(ended.stderr).toContain(`world 2 → 1: rank 0 ${cause}`);
    });
    cases.add('fault_tolerance_without_scaling', `the first rank ${way}, and nobody comes in its place`, async () => {
      const ended = await shoalRun('-n', '3', '--min', '2', script, '40', '0', `0:${end}`).ended;
      expect(epochsIn(ended)).toEqual(['0,1,2', '1,2']);
    });
  }
  cases.add('all_ranks_failure', 'all ranks throw in one step, and the job fails', async () => {
    const { code, stderr } = await shoalRun('-n', '2', '--min', '1', script, '40', '0', '0:throws-20', '1:throws-20').ended;
    expect({ code, stderr }).toEqual({ code: 1, stderr: expect.stringMatching(/rank [01] failed first: .*enough/) as string });
  });
  cases.add('all_hosts_blacklisted', 'a rank of each host is lost, which leaves too few', async () => {
    const job = shoal(['run', '-n', '3', '--min', '2', fixtureScript('shrinks'), '40', '0:20', '2:20'], { env: { HOSTS: 'aab' } });
    const { code, stderr } = await job.ended;
    expect({ code, stderr }).toEqual({
      code: 137,
      stderr: expect.stringMatching(/rank [02] failed first: it was killed by SIGKILL/) as string,
    });
  });
  cases.add('min_hosts_timeout', 'a job that needs all of its ranks fails with one', async () => {
    const { code, stderr } = await shoalRun('-n', '2', '--min', '2', script, '40', '0', '0:20').ended;
    expect({ code, stderr }).toEqual({
      code: 137,
      stderr: expect.stringMatching(/rank 0 failed first: it was killed by SIGKILL/) as string,
    });
  });
  const restarts = [
    { limit: 1, code: 3 },
    { limit: 2, code: 0 },
  ];
  cases.each(
    'reset_limit',
    restarts,
    ({ limit, code }) => `a job that fails twice ends with ${code} when it may start again ${limit} times`,
    async ({ limit, code }) => {
      const program = '[ $RANK = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" -lt 2 ] && exit 3; exit 0';
      const flags = ['-n', '2', '--min', '2', '--max-restarts', String(limit), '--grace', '50ms', '--no-node'];
      const ended = await shoalRun(...flags, 'sh', '-c', program).ended;
      expect(ended.code, ended.stderr).toBe(code);
    },
  );
  cases.add('resurrecting_blacklisted_hosts_exponential_backoff', 'each failure in a place doubles the wait', async () => {
    const job = shoalRun('-n', '2', '--min', '1', '--max-restarts', '3', script, '40', '20', '1:20', '2:joins', 'until:3');
    const ended = await job.ended;
    expect(epochsIn(ended).at(-1)).toBe('0,3');
    expect(ended.stderr).toMatch(/rank 1 was killed[^\n]*; it is started again in 1 s \(1 of 3\)/);
    expect(ended.stderr).toMatch(/rank 2 [^\n]*was killed[^\n]*; it is started again in 2 s \(2 of 3\)/);
  });
  cases.add('hosts_added_and_removed', 'a host is joined by another one, and leaves it the work', async () => {
    const slots = 2;
    const file = join(temporaryFolder('hosts'), 'end');
    const envOf = (rank: number): Record<string, string | undefined> => ({
      WORLD_SIZE: String(slots),
      LOCAL_WORLD_SIZE: String(slots),
      ...(rank < slots ? { SHOAL_HOST_ID: 'a' } : { SHOAL_HOST_ID: 'b', SHOAL_JOIN: '1', RANK: undefined, LOCAL_RANK: undefined }),
    });
    await using job = await startRanks({ fixture: 'elastic-rank', args: ['0', '10', `file:${file}`], n: slots, envOf });
    const first = [...job.ranks];
    const steps = (ranks: readonly RankProcess[], size: number): Promise<unknown> => {
      const isOf = (line: unknown): boolean => typeof line === 'string' && line.startsWith('step') && line.split(',').length === size;
      return Promise.all(ranks.map((rank) => rank.line(isOf)));
    };
    await steps(first, slots);
    const second = first.map((_, place) => job.start(slots + place));
    await steps(second, 2 * slots);
    for (const rank of first) rank.kill('SIGTERM');
    for (const { exited } of first) expect((await exited).signal).toBe('SIGTERM');
    writeFileSync(file, '');
    const said = await Promise.all(second.map((rank) => rank.line<Said>((line) => typeof line === 'object')));
    const epochs = epochsOf(said);
    expect([epochs[0], epochs.at(-1)!.split(',').toSorted().join()]).toEqual(['0,1', '2,3']);
  });
  cases.complete();
});
