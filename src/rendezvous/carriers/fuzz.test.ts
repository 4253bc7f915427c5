/** Hostile control messages, a few thousand; `FUZZ_INPUTS=1000000` plays as many as one likes. */
import { expect, it } from 'vitest';
import { seededRandom, systemRandom } from '../../base/random.ts';
import { fuzz } from '../testing/fuzz.ts';

const inputs = Number(process.env.FUZZ_INPUTS ?? 10_000);
const seed = Number(process.env.FUZZ_SEED ?? systemRandom.integer(2 ** 31));

it(
  `hostile control messages are refused with \`protocol\`, and each request ends once (seed ${seed})`,
  { timeout: inputs + 120_000 },
  () => {
    const count = fuzz(seededRandom(seed), inputs);
    expect(count.inputs).toBeGreaterThanOrEqual(inputs);
    expect(count.refused).toBeGreaterThan(inputs / 10);
  },
);
