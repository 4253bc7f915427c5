/** The law of data parallelism, with real processes: N ranks with batch B follow one rank with batch N·B. Also training in which
 *  ranks disagree or die. */
import { defaultDevice, init } from '@jax-js/jax';
import { beforeAll, describe, expect, it } from 'vitest';
import { LocalWorld, onEveryRank } from '../../src/ddp/testing/local-world.ts';
import { train, type Training } from '../fixtures/ddp-training.ts';
import { startRanks } from '../support/ranks.ts';

/** Largest relative difference of a loss. Sums of float32 in another order differ by about 1e-7; twenty steps amplify that. */
const tolerance = 1e-4;

let single: Training;

beforeAll(async () => {
  await init('wasm');
  defaultDevice('wasm');
  [single] = await onEveryRank(new LocalWorld(1), train);
  expect(single.losses).toHaveLength(20);
  expect(single.losses[19]).toBeLessThan(single.losses[0] - 0.1);
});

function expectSameCurve(trainings: readonly Training[]): void {
  for (const training of trainings) expect(training).toEqual(trainings[0]);
  expect(trainings[0].buckets).toBeGreaterThan(2 * 20);
  for (const [step, loss] of single.losses.entries()) {
    expect(Math.abs(trainings[0].losses[step] - loss) / loss, `step ${step}`).toBeLessThan(tolerance);
  }
}

/** Trainings by ranks and fabrics: several tests use one. */
const trainings = new Map<string, Promise<Training[]>>();

function trainProcesses(n: number, fabrics: string): Promise<Training[]> {
  const known = trainings.get(`${n} ${fabrics}`);
  if (known !== undefined) return known;
  const training = (async () => {
    await using world = await startRanks({ fixture: 'ddp-training', n, env: { SHOAL_FABRICS: fabrics } });
    const outcomes = await world.outcomes();
    expect(outcomes.map(({ code, stderr }) => ({ code, stderr }))).toEqual(outcomes.map(() => ({ code: 0, stderr: '' })));
    return outcomes.map(({ lines }) => lines[0] as Training);
  })();
  trainings.set(`${n} ${fabrics}`, training);
  return training;
}

describe('the loss curve of one rank is followed', () => {
  it.each([2, 3, 4])('by %i ranks in one thread', async (n) => {
    expectSameCurve(await onEveryRank(new LocalWorld(n), train));
  });

  it.each([
    { n: 2, fabrics: '' },
    { n: 2, fabrics: 'tcp' },
    { n: 3, fabrics: '' },
  ])('by $n processes, fabrics "$fabrics"', async ({ n, fabrics }) => {
    expectSameCurve(await trainProcesses(n, fabrics));
  });

  it('bit for bit, whatever carries the gradients', async () => {
    const [local] = await onEveryRank(new LocalWorld(2), train);
    for (const fabrics of ['', 'tcp']) for (const training of await trainProcesses(2, fabrics)) expect(training).toEqual(local);
  });
});

describe('in real processes', () => {
  it.each([
    ['other parameters', 'mismatch', /parameter 1 is "c" float32\[3000\] on rank 1 but "b" float32\[3000\] on rank 0/],
    ['drift', 'mismatch', /replicas differ, first in 'b': rank 1 has [0-9a-f]{16}; ranks 0, 2 have [0-9a-f]{16}/],
  ])('%s: %s on every rank', async (scenario, code, message) => {
    await using world = await startRanks({ fixture: 'ddp-scenario', n: 3, env: { SCENARIO: scenario } });
    for (const { lines } of await world.outcomes()) {
      expect(lines).toEqual([expect.objectContaining({ ok: false, code, message: expect.stringMatching(message) as string })]);
    }
  });

  it('the death of a rank in the middle of a step: its name on every other', async () => {
    await using world = await startRanks({ fixture: 'ddp-scenario', n: 3, env: { SCENARIO: 'death' } });
    const outcomes = await world.outcomes();
    expect(outcomes[1].signal).toBe('SIGKILL');
    for (const { lines } of [outcomes[0], outcomes[2]]) {
      expect(lines).toEqual([
        expect.objectContaining({ ok: false, code: 'peer-lost', message: expect.stringMatching(/rank 1/) as string }),
      ]);
    }
  });

  it('nothing wrong: nothing reported', async () => {
    await using world = await startRanks({ fixture: 'ddp-scenario', n: 3, env: { SCENARIO: 'none' } });
    for (const { lines, code } of await world.outcomes()) expect({ lines, code }).toEqual({ lines: [{ ok: true }], code: 0 });
  });
});
