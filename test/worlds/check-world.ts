/** A world that went wrong, made as small as it goes, and the lines that replay it. */
import { runWorld } from './world.ts';
import { smallerWorlds, worldOf, type WorldPlan } from './world-plan.ts';

/** Most worlds that are tried on the way to a smaller one. */
const triesMax = 400;

/** The smallest world found in which something is still wrong. */
export async function shrink(plan: WorldPlan, isWrong: (plan: WorldPlan) => Promise<boolean>, tries = triesMax): Promise<WorldPlan> {
  let left = tries;
  let smallest = plan;
  for (let found = true; found;) {
    found = false;
    for (const smaller of smallerWorlds(smallest)) {
      if (left-- <= 0) return smallest;
      if (!(await isWrong(smaller))) continue;
      smallest = smaller;
      found = true;
      break;
    }
  }
  return smallest;
}

export const isWrong = async (plan: WorldPlan): Promise<boolean> => (await runWorld(plan)).problems.length > 0;

/** The report on a world that went wrong. */
export async function describeWrong(plan: WorldPlan, problems: readonly string[]): Promise<string> {
  const { seed } = plan;
  // A world may have been shaped, and then differs from the one of its seed.
  const isOfSeed = JSON.stringify(plan) === JSON.stringify(worldOf(seed));
  const smallest = await shrink(plan, isWrong);
  const { problems: those } = await runWorld(smallest);
  return [
    `seed ${seed}: ${problems.join('\n  ')}`,
    `again: npx tsx test/soaks/worlds.ts ${isOfSeed ? `--seed ${seed}` : `--world '${JSON.stringify(plan)}'`}`,
    `smallest: npx tsx test/soaks/worlds.ts --world '${JSON.stringify(smallest)}'`,
    `  ${those.join('\n  ')}`,
  ].join('\n');
}
