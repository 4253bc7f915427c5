/** The example with sequences, attention and loops: it learns, its loops score as the unrolled GRUs do, on one device and on several, and it
 *  needs fewer requests by either kind of fusion. */
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { areaUnderCurve } from '../../examples/ranking/area-under-curve.ts';
import { generator } from '../../examples/dien-like/data.ts';
import { exampleScript } from '../support/fixtures.ts';
import { trainExample, type RankingResult } from '../support/ranking-example.ts';

const folder = temporaryFolder('dien-like', afterAll);

const small = ['--batch', '64', '--length', '4', '--units', '8', '--hidden', '8'];
const train = (script: string, ...flags: readonly string[]): Promise<RankingResult> =>
  trainExample(script, folder, 1, [...small, ...flags]);
const example = exampleScript('dien-like');

describe('a model like DIEN', () => {
  it('learns, and its loops score as the unrolled GRUs do', async () => {
    const { auc, bestAuc, otherwise, examplesPerSecond, bytesPerStep } = await train(
      'examples/dien-like/train.ts',
      '--fuse',
      '--parts',
      '2',
      '--steps',
      '60',
    );
    expect(bestAuc).toBeGreaterThan(0.85);
    expect(auc).toBeGreaterThan(0.5 + 0.6 * (bestAuc - 0.5));
    expect(auc).toBeLessThan(bestAuc + 0.02);
    expect(otherwise).toBeLessThan(1e-5);
    expect(examplesPerSecond).toBeGreaterThan(0);
    expect(bytesPerStep).toBeGreaterThan(1024);
  });

  it('trains with the same bits by any kind of receive, with fewer requests', async () => {
    const sync = ['--sync', '--loops', '--steps', '4'];
    const plain = await train(example, ...sync);
    const some = await train(example, ...sync, '--fuse', '--recv-some');
    expect([some.loss, some.auc]).toEqual([plain.loss, plain.auc]);
    expect(some.receivesPerStep).toBeLessThan(0.5 * plain.receivesPerStep);
    const far = await train(example, ...sync, '--fuse', '--recv-some', '--server-cells');
    expect([far.loss, far.auc]).toEqual([plain.loss, plain.auc]);
    expect(far.otherwise).toBeLessThan(1e-5);
    expect(far.receivesPerStep).toBeGreaterThan(some.receivesPerStep);
  });
});

describe('its generator', () => {
  it('gives the same examples for the same seeds, and others for another stream', () => {
    const options = { items: 20, categories: 5, length: 3, truth: 1, stream: 2 };
    const batch = generator(options).batch(50);
    expect(generator(options).batch(50)).toEqual(batch);
    expect(generator({ ...options, stream: 3 }).batch(50)).not.toEqual(batch);
    const [items, categories] = batch.history;
    expect(items).toHaveLength(150);
    items.forEach((item, k) => expect([item % 5, item < 20]).toEqual([categories[k], true]));
    expect(areaUnderCurve(batch.labels, batch.logits)).toBeGreaterThan(0.7);
  });
});
