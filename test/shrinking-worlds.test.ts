/** Worlds from seeds whose ranks go on without those that they lose. SHRINKING_SEEDS=n runs other than 150. */
import { expect, it } from 'vitest';
import { growingWorldOf, reconfiguringWorldOf, runShrinkingWorld, shrinkingWorldOf } from './worlds/shrinking-world.ts';

const seeds = Number(process.env['SHRINKING_SEEDS'] ?? 150);
const from = Number(process.env['SHRINKING_FROM'] ?? 1);

it(`${seeds} worlds go on in one group with the right totals, or end with an error`, async () => {
  let shrinks = 0;
  for (let seed = from; seed < from + seeds; seed++) {
    const plan = shrinkingWorldOf(seed);
    const verdict = await runShrinkingWorld(plan);
    shrinks += verdict.shrinks;
    expect(verdict.problems, JSON.stringify(plan)).toEqual([]);
  }
  if (seeds >= 100) expect(shrinks).toBeGreaterThan(seeds);
});

it('a shrink that is called again after its limit takes another group than the one that it could not open', async () => {
  // One rank is stopped for long, and another one killed, while a group opens.
  expect((await runShrinkingWorld(shrinkingWorldOf(1232))).problems).toEqual([]);
});

it('the same seed gives the same trace', async () => {
  for (const seed of [3, 14, 15]) {
    const plan = shrinkingWorldOf(seed);
    expect((await runShrinkingWorld(plan)).trace).toBe((await runShrinkingWorld(plan)).trace);
  }
});

it(`${seeds} worlds go on with ranks that join, or end with an error`, async () => {
  let grows = 0;
  for (let seed = from; seed < from + seeds; seed++) {
    const plan = growingWorldOf(seed);
    const verdict = await runShrinkingWorld(plan);
    grows += verdict.grows;
    expect(verdict.problems, JSON.stringify(plan)).toEqual([]);
  }
  if (seeds >= 100) expect(grows).toBeGreaterThan(seeds / 4);
});

const third = Math.ceil(seeds / 3);

it(`${third} worlds of which some are aborted go on by reconfigure, or end with an error`, async () => {
  let [changes, aborts] = [0, 0];
  for (let seed = from; seed < from + third; seed++) {
    const plan = reconfiguringWorldOf(seed);
    const verdict = await runShrinkingWorld(plan);
    changes += verdict.shrinks + verdict.grows;
    aborts += plan.faults.filter(({ kind }) => kind === 'abort').length;
    expect(verdict.problems, JSON.stringify(plan)).toEqual([]);
  }
  if (seeds >= 100) expect(Math.min(changes, aborts)).toBeGreaterThan(third);
});
