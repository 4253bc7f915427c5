/** The wide & deep example: it learns; however tensors travel, one step of all workers gives the same bits; and the number of
 *  requests is checked. */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { grpcGraphEnvironment } from '../../bench/grpc/graph.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { areaUnderCurve } from '../../examples/ranking/area-under-curve.ts';
import { criteo } from '../../examples/wide-deep/data.ts';
import { exampleScript } from '../support/fixtures.ts';
import { trainExample, type RankingResult } from '../support/ranking-example.ts';

const folder = temporaryFolder('wide-deep', afterAll);

const example = exampleScript('wide-deep');
const train = (...flags: readonly string[]): Promise<RankingResult> => trainExample(example, folder, 2, flags);
const trainOverGrpc = (...flags: readonly string[]): Promise<RankingResult> =>
  trainExample('bench/graph/train-over-grpc.ts', folder, 2, flags, grpcGraphEnvironment);

const small = ['--columns', '12', '--vocabulary', '20', '--dense', '4', '--hidden', '8', '--batch', '64'];

describe('wide & deep', () => {
  it('trains all workers in one step with the same bits, by any kind of receive, with fewer requests', async () => {
    const sync = [...small, '--sync', '--parts', '2', '--steps', '8'];
    const plain = await trainExample('examples/wide-deep/train.ts', folder, 2, sync);
    const fused = await train(...sync, '--fuse');
    const someFused = await trainOverGrpc(...sync, '--fuse', '--recv-some');
    expect([fused.loss, someFused.loss, fused.auc]).toEqual([plain.loss, plain.loss, plain.auc]);
    expect(fused.receivesPerStep).toBeLessThan(0.45 * plain.receivesPerStep);
    expect(someFused.receivesPerStep).toBeLessThan(0.15 * plain.receivesPerStep);
  });

  it('learns, every worker by itself', async () => {
    const { auc, bestAuc, rpcsPerStep } = await train(...small, '--fuse', '--steps', '250');
    expect(bestAuc).toBeGreaterThan(0.7);
    expect(auc).toBeGreaterThan(0.5 + 0.8 * (bestAuc - 0.5));
    expect(auc).toBeLessThan(bestAuc + 0.02);
    expect(rpcsPerStep).toBeLessThan(60);
  });

  it('knows the area under a curve, with ties', () => {
    expect(areaUnderCurve([0, 1], [1, 2])).toBe(1);
    expect(areaUnderCurve([1, 0], [1, 2])).toBe(0);
    expect(areaUnderCurve([0, 1, 0, 1], [3, 3, 3, 3])).toBe(0.5);
    expect(areaUnderCurve([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])).toBe(0.75);
  });

  it('reads lines of Criteo, each worker its own, from the beginning again', () => {
    const line = (k: number): string =>
      [k % 2, ...Array.from({ length: 13 }, (_, c) => (c === 0 ? k : '')), ...Array.from({ length: 26 }, (_, c) => `${k}${c}`)].join('\t');
    const path = join(folder, 'criteo.txt');
    writeFileSync(path, `${Array.from({ length: 5 }, (_, k) => line(k)).join('\n')}\n`);
    const batch = criteo({ path, shard: 1, shards: 2, vocabulary: 100 }).batch(4);
    const first = [1, 3, 0, 2].map((k) => Math.fround(Math.log1p(k)));
    expect([...batch.labels]).toEqual([1, 1, 0, 0]);
    expect([0, 1, 2, 3].map((row) => batch.dense[row * 13])).toEqual(first);
    expect(batch.ids).toHaveLength(26);
    for (const column of batch.ids) for (const id of column) expect(id).toBeLessThan(100);
    for (const other of ['', 'no\ttabs\n', line(1).replace('1', '7')]) {
      writeFileSync(path, other);
      expect(() => criteo({ path, shard: 0, shards: 2, vocabulary: 100 }).batch(1), other).toThrow(/criteo.txt has no lines of a label/);
    }
  });

  it.each([
    [['--stepz', '3'], "Unknown option '--stepz'"],
    [['more'], "Unexpected argument 'more'"],
    [['--steps', '0'], "--steps is a whole number from 1, not '0'"],
    [['--batch', '1e2'], "--batch is a whole number from 1, not '1e2'"],
    [['--columns', ''], "--columns is a whole number from 1, not ''"],
    [['--criteo', 'no/such.tsv'], "--criteo 'no/such.tsv' does not exist"],
  ])('refuses %j by one line', (flags, message) => {
    const { stderr, status } = spawnSync(process.execPath, [example, ...flags], { encoding: 'utf8' });
    expect({ status, lines: stderr.trim().split('\n') }).toEqual({ status: 2, lines: [expect.stringContaining(message)] });
  });
});
