/** Random programs of real ranks. `npx tsx test/soaks/random-programs.ts` runs more of them, on a busy machine. */
import { expect, it } from 'vitest';
import { systemRandom } from '../../src/base/random.ts';
import { runTrial, trialOf } from '../soaks/random-programs.ts';

const calls = 60;
const first = systemRandom.integer(2 ** 31);

it.each(Array.from({ length: 3 }, (_, k) => first + k))('random program %i gives what its calls say, or names who failed', async (seed) => {
  const trial = trialOf(seed, calls);
  const { ended, wrong } = await runTrial(trial);
  expect(wrong, `${JSON.stringify(trial)}\n${ended.stdout}${ended.stderr}`).toEqual([]);
});
