/** Checkpoints of real processes: whatever kills them, a whole checkpoint is left, and a job that starts again, as itself or with
 *  other ranks, goes on where it was. */
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { seededRandom } from '../../src/base/random.ts';
import { shoalRun } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';
import { killRanks } from '../soaks/checkpoint-kills.ts';
import { startRanks } from '../support/ranks.ts';

const program = fixtureScript('ddp-checkpoints');
const folder = temporaryFolder('ddp-checkpoints', afterAll);

/** Every item once in each of three epochs. */
const all = Array.from({ length: 24 }, () => 3);

it('a job that is killed while it saves is started again by --max-restarts, and sees every item once', { timeout: 240_000 }, async () => {
  const at = join(folder, 'restarts');
  const { code, stdout, stderr } = await shoalRun('-q', '-n', '2', '--max-restarts', '1', program, 'train', at, '8').ended;
  expect({ code, stderr }).toMatchObject({ code: 0 });
  const [, step] = /resumed after step (\d+), saved by 2/.exec(stdout) ?? [];
  // Rank 1 was killed before, or just after, its part of step 8 was written.
  expect(['7', '8']).toContain(step);
  expect(stdout).toContain(JSON.stringify({ counts: all, steps: 18 }));
});

it('another number of ranks goes on, and the sum of what they see is the same', { timeout: 240_000 }, async () => {
  const at = join(folder, 'others');
  const first = await shoalRun('-q', '-n', '2', program, 'train', at, '3').ended;
  expect(first.code).not.toBe(0);
  const { code, stdout } = await shoalRun('-q', '-n', '4', '--max-restarts', '0', program, 'train', at).ended;
  expect(code).toBe(0);
  expect(stdout).toMatch(/resumed after step [23], saved by 2/);
  const last = JSON.parse(/{"counts.*}/.exec(stdout)?.[0] ?? '{}') as { counts: number[] };
  expect(last.counts).toEqual(all);
});

it('kill -9 of ranks at any moment leaves a whole checkpoint, no older than the last that was saved', { timeout: 240_000 }, async () => {
  await killRanks({ kills: 3, random: seededRandom(20_261_124), folder: join(folder, 'killed') });
});

it(
  'a sharded Adam has the bits of the whole one, on ranks that run out at different times, and a part of its state',
  { timeout: 240_000 },
  async () => {
    await using world = await startRanks({ fixture: 'ddp-zero', n: 3 });
    const ends = (await world.outcomes()).map(({ lines, stderr }) => {
      expect(stderr).toBe('');
      return lines[0] as { steps: number; stepsMax: number; whole: string; sharded: string; stateBytes: number };
    });
    expect(ends.map(({ steps, stepsMax }) => [steps, stepsMax])).toEqual([
      [2, 6],
      [4, 6],
      [6, 6],
    ]);
    for (const { whole, sharded } of ends) expect([whole, sharded]).toEqual([ends[0].whole, ends[0].whole]);
    // State per element: two moments of four bytes, and four counters of steps.
    expect(ends.reduce((sum, { stateBytes }) => sum + stateBytes, 0)).toBe(8 * 90_903 + 4 * 8);
    for (const { stateBytes } of ends) expect(stateBytes).toBeLessThan(8 * 50_000 + 100);
  },
);
