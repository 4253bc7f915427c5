/** A few thousand hostile inputs; `npx tsx test/rendezvous-fuzz.ts` plays as many as one likes. */
import { expect, it } from 'vitest';
import { seededRandom, systemRandom } from '../../base/random.ts';
import { fuzz } from '../testing/fuzz.ts';

const seed = systemRandom.integer(2 ** 31);

it(`hostile control messages end their connection with \`protocol\`, and each request once (seed ${seed})`, () => {
  const { inputs, refused } = fuzz(seededRandom(seed), 10_000);
  expect(inputs).toBeGreaterThanOrEqual(10_000);
  expect(refused).toBeGreaterThan(1000);
});
