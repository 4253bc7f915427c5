/** Whole worlds from seeds: launcher, ranks, stores and parameter servers in one process, on virtual time, networks and memory.
 *  `WORLD_SEEDS=n` runs other than 100; a failing world is shrunk, and printed with the line that replays it. */
import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { seededRandom } from '../src/base/random.ts';
import { SeededWorld } from '../src/base/testing/seeded-world.ts';
import { packageFile } from '../src/base/packages/package-root.ts';
import { describeWrong, shrink } from './worlds/check-world.ts';
import { mendedDefects } from './worlds/mended-defects.ts';
import { runWorld } from './worlds/world.ts';
import { paths, worldOf, type WorldPlan } from './worlds/world-plan.ts';

const seeds = Number(process.env.WORLD_SEEDS ?? 100);

it(`${seeds} worlds give right results, or errors that name the failed one, and leave nothing`, async () => {
  let [withFaults, failed, restarted] = [0, 0, 0];
  for (let seed = 1; seed <= seeds; seed++) {
    const verdict = await runWorld(worldOf(seed));
    if (verdict.problems.length > 0) throw new Error(await describeWrong(worldOf(seed), verdict.problems));
    if (verdict.hits > 0) withFaults++;
    if (verdict.failed) failed++;
    if (verdict.generations > 1) restarted++;
  }
  if (seeds < 100) return;
  expect({ withFaults, failed, restarted }).toEqual({
    withFaults: expect.toSatisfy((count: number) => count > seeds / 4),
    failed: expect.toSatisfy((count: number) => count > seeds / 10),
    restarted: expect.toSatisfy((count: number) => count > seeds / 10),
  });
});

it('the same seed gives the same trace', async () => {
  // The seeds cover every path, with servers and without.
  const chosen = paths.flatMap((path) =>
    [0, 1].map((servers) => firstSeed((plan) => plan.path === path && plan.servers === servers && plan.faults.length > 0)),
  );
  for (const seed of chosen) {
    const [first, second] = [await runWorld(worldOf(seed)), await runWorld(worldOf(seed))];
    expect(second.trace, `seed ${seed}`).toBe(first.trace);
  }
});

it('a world that goes wrong is made smaller until nothing can be left out', async () => {
  const seed = firstSeed(({ ranks, faults, actions }) => ranks > 4 && faults.length > 1 && actions.length > 3);
  const plan = worldOf(seed);
  const [{ kind }] = plan.faults;
  const small = await shrink(
    plan,
    async ({ faults, ranks, actions }) => ranks >= 3 && actions.length > 0 && faults.some((fault) => fault.kind === kind),
  );
  expect(small).toMatchObject({ ranks: 3, servers: 0, replicas: 1, maxRestarts: 0, delayedOneIn: 0 });
  expect([small.actions.length, small.faults.map((fault) => fault.kind)]).toEqual([1, [kind]]);
});

const shown = mendedDefects.flatMap(({ name, seed, shaped = (plan) => plan }) => (seed === undefined ? [] : [{ name, seed, shaped }]));
it.each(shown)('world $seed, which has shown that $name, is right', async ({ seed, shaped }) => {
  const plan = shaped(worldOf(seed));
  const { problems } = await runWorld(plan);
  if (problems.length > 0) throw new Error(await describeWrong(plan, problems));
});

it('time that does not pass is an error', async () => {
  const world = new SeededWorld({ random: seededRandom(1) });
  const role = world.role('busy');
  const again = (): void => role.turn(again);
  again();
  await expect(world.until(new Promise(() => undefined), 1000)).rejects.toThrow('busy for ever');
});

it('every mended defect can be put back', () => {
  const texts = mendedDefects.map(({ file, mended }) => readFileSync(packageFile(file), 'utf8').split(mended).length - 1);
  expect(mendedDefects.filter((_, index) => texts[index] !== 1).map(({ name }) => name)).toEqual([]);
});

function firstSeed(fits: (plan: WorldPlan) => boolean): number {
  let seed = 1;
  while (!fits(worldOf(seed))) seed++;
  return seed;
}
