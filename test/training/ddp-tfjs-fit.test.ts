/** `fit` of TensorFlow.js with the callbacks of shoal/ddp/tfjs, on real processes: one process and several see the same data and learn the same. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { testWorlds } from '../support/start-worlds.ts';

const directory = temporaryFolder('tfjs-fit', afterAll);

interface Lines {
  readonly whole: { readonly seen: number[][]; readonly loss: number[]; readonly rates: number[]; readonly values: number[] };
  readonly resumed: { readonly from: number[]; readonly values: number[] };
  readonly stopped: { readonly epochs: number[] };
  readonly buffers: { readonly statistics: number[][] };
  readonly rated: { readonly values: number[] };
  readonly refused: { readonly messages: string[] };
}

const worlds = [
  { name: 'one rank', scenario: 'one', n: 1 },
  { name: 'two ranks', scenario: 'two', n: 2, env: { SHOAL_SCHEDULING: '0' } },
  { name: 'three ranks', scenario: 'three', n: 3 },
  { name: 'two ranks of a scheduled group', scenario: 'scheduled', n: 2, env: { SHOAL_SCHEDULING: '1' } },
] as const;
const told = new Map<string, Lines[]>();

// The same processes are in all worlds: TensorFlow.js takes them longer to load than one of these trainings.
testWorlds(
  'tfjs-fit',
  worlds,
  async ({ linesOf }, { scenario }) => {
    const byName = (await linesOf()).map((lines) => Object.fromEntries(lines.map((line) => [line.what, line])));
    told.set(scenario, byName);
  },
  // Trainings that end early leave calls that nobody awaits, which are told of.
  { env: { FOLDER: directory }, mayWarn: true },
);

const close = (a: readonly number[], b: readonly number[]): void => {
  expect(a).toHaveLength(b.length);
  for (const [index, value] of a.entries()) expect(value).toBeCloseTo(b[index], 4);
};

it('one, two and three ranks see the same batches, and have the same losses and weights; a resumed training is the whole one', () => {
  const sorted = (values: readonly number[]): number[] => values.toSorted((a, b) => a - b);
  const [alone] = told.get('one')!;
  for (const [n, scenario] of [
    [2, 'two'],
    [3, 'three'],
  ] as const) {
    const ranks = told.get(scenario)!;
    for (const { whole, resumed, stopped, rated, buffers, refused } of ranks) {
      // Metrics are the mean over ranks, bit by bit the same on all.
      expect(whole.loss).toEqual(ranks[0].whole.loss);
      expect(whole.values).toEqual(ranks[0].whole.values);
      // Adam's moments and the count of steps came back, or the weights would differ.
      expect(resumed.from).toEqual([0, 2]);
      expect(resumed.values).toEqual(whole.values);
      expect(stopped.epochs).toEqual([0, 1]);
      expect(buffers.statistics[1]).toEqual(ranks[0].buffers.statistics[0]);
      expect(rated.values[0]).toBeCloseTo(0.5, 6);
      expect(refused.messages).toEqual([
        expect.stringContaining("learningRateWarmup has no option 'warmUpEpochs'"),
        'learningRateWarmup: initialLearningRate is missing',
        expect.stringContaining('metricAverage: the first argument is the process group'),
        expect.stringContaining('shard: the second argument is the process group'),
      ]);
    }
    expect(ranks[1].buffers.statistics[0]).not.toEqual(ranks[0].buffers.statistics[0]);
    // The last batch of an epoch is short where 50 items are not dealt out evenly; whole batches are of the same items.
    const together = ranks[0].whole.seen.map((_, index) => sorted(ranks.flatMap(({ whole }) => whole.seen[index])));
    expect(together.filter((batch) => batch.length === 12)).toEqual(alone.whole.seen.filter((batch) => batch.length === 12).map(sorted));
    expect(together.map((batch) => batch.length)).toEqual(
      Array.from({ length: 3 }, () => [12, 12, 12, 12, n === 2 ? 2 : 0])
        .flat()
        .filter(Boolean),
    );
    // Horovod's multiplier: from about 1/size to 1, at the end of the second epoch.
    const steps = ranks[0].whole.seen.length / 3;
    const expected = ranks[0].whole.rates.map((_, step) => 0.01 * Math.min(n, (((step + 1) / steps) * (n - 1)) / 2 + 1));
    close(ranks[0].whole.rates, expected);
    const [file] = readdirSync(join(directory, scenario, 'events', 'train'));
    expect(file).toMatch(/^events\.out\.tfevents\.\d{10}\./);
  }
  expect(alone.resumed.values).toEqual(alone.whole.values);
});

it('a scheduled group learns the same, with the same callbacks', () => {
  expect(told.get('scheduled')).toEqual(told.get('two'));
});
