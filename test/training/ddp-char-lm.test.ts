/** The parts of the example that know nothing of other processes: corpus, model, optimiser, generation. */
import { defaultDevice, init, numpy as np, tree } from '@jax-js/jax';
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { Adam } from '../../examples/char-lm/adam.ts';
import { loadCorpus, unigramLoss, windowCount, windows, type Corpus } from '../../examples/char-lm/corpus.ts';
import { generate } from '../../examples/char-lm/generate.ts';
import { createModel, createParameters, type ModelConfig } from '../../examples/char-lm/model.ts';
import { seededRandom } from '../../src/base/random.ts';
import { DistributedSampler } from '../../src/ddp/sampler.ts';
import type { RankResult } from '../../examples/char-lm/summary.ts';
import { shoal } from '../fixtures/launch-harness.ts';
import { exampleScript } from '../support/fixtures.ts';

const folder = temporaryFolder('corpus', afterAll);
const sentence = 'the quick brown fox jumps over the lazy dog. ';

beforeAll(async () => {
  await init('wasm');
  defaultDevice('wasm');
  mkdirSync(join(folder, 'b', 'c'), { recursive: true });
  writeFileSync(join(folder, 'a.txt'), sentence.repeat(400));
  writeFileSync(join(folder, 'b', 'one.txt'), sentence.toUpperCase().repeat(100));
  writeFileSync(join(folder, 'b', 'c', 'two.md'), sentence.repeat(100));
  writeFileSync(join(folder, 'b', 'binary.txt'), `${sentence}\0`.repeat(1000));
  symlinkSync('a.txt', join(folder, 'again.txt'));
});

const options = { charactersMax: 1e6, vocabularyMax: 96 };
const filesOf = (...patterns: string[]): string[] =>
  loadCorpus({ ...options, patterns: [...patterns, join(folder, 'a.txt')] }).files.map((file) =>
    file.slice(file.indexOf('shoal-corpus-') + 20),
  );

describe('corpus', () => {
  test.each([
    ['*.txt', ['a.txt']],
    ['b/*', ['b/one.txt', 'a.txt']],
    ['**/*.txt', ['a.txt', 'b/one.txt']],
    ['**/tw?.md', ['b/c/two.md', 'a.txt']],
    ['?/c/*', ['b/c/two.md', 'a.txt']],
    ['none*', ['a.txt']],
  ])('%s: sorted, each file once, no binary files', (pattern, expected) => {
    writeFileSync(join(folder, 'a.txt'), sentence.repeat(600));
    expect(filesOf(join(folder, pattern))).toEqual(expected);
  });

  test('tokens give the text back; the rare characters become one', () => {
    const { vocabulary, training, heldOut } = loadCorpus({ ...options, patterns: [join(folder, 'a.txt')], vocabularyMax: 10 });
    expect(vocabulary).toHaveLength(10);
    const text = [...training, ...heldOut].map((token) => vocabulary[token]).join('');
    const kept = Array.from(sentence, (character) => (vocabulary.includes(character) ? character : '\ufffd')).join('');
    expect(text).toBe(kept.repeat(600));
    expect(vocabulary[1]).toBe(' ');
  });

  test('windows: each character is a target once, and the input of the next', () => {
    const tokens = Int32Array.from({ length: 11 }, (_, i) => i);
    expect(windowCount(tokens, 5)).toBe(2);
    expect(windowCount(tokens.subarray(0, 10), 5)).toBe(1);
    expect(windows(tokens, [1, 0], 5)).toEqual([Int32Array.of(5, 6, 7, 8, 9, 0, 1, 2, 3, 4), Int32Array.of(6, 7, 8, 9, 10, 1, 2, 3, 4, 5)]);
  });

  test('unigram loss: the entropy of the frequencies', () => {
    const even = Int32Array.from({ length: 40_000 }, (_, i) => 1 + (i % 4));
    const corpus: Corpus = { files: [], vocabulary: ['?', 'a', 'b', 'c', 'd'], training: even, heldOut: even };
    expect(unigramLoss(corpus)).toBeCloseTo(Math.log(4), 3);
  });

  test('too little text and missing files are refused by name', () => {
    expect(() => loadCorpus({ ...options, patterns: [join(folder, 'b', '*.txt')] })).toThrow(
      /b\/\*\.txt: 4500 characters in 1 files; at least/,
    );
    expect(() => loadCorpus({ ...options, patterns: [join(folder, 'missing')] })).toThrow(/missing/);
  });
});

const config: ModelConfig = { vocabulary: 12, context: 8, width: 16, layers: 2, heads: 2 };
const batchOf = (rows: number, seed: number): [np.Array, np.Array] => {
  const random = seededRandom(seed);
  const tokens = Int32Array.from({ length: rows * config.context + 1 }, () => random.integer(config.vocabulary));
  const items = Array.from({ length: rows }, (_, i) => i);
  return windows(tokens, items, config.context).map((part) => np.array(part, { shape: [rows, config.context] })) as [np.Array, np.Array];
};

describe('model', () => {
  test('an untrained one predicts about uniformly', () => {
    const loss = createModel(config)
      .loss(createParameters(config, seededRandom(1)), ...batchOf(16, 2))
      .item();
    expect(Math.abs(loss - Math.log(config.vocabulary))).toBeLessThan(0.3);
  });

  test('is causal: a character does not change what comes before it', () => {
    const model = createModel(config);
    const parameters = createParameters(config, seededRandom(1));
    const logitsOf = (tokens: number[]): Float32Array =>
      model.logits(tree.ref(parameters), np.array(Int32Array.from(tokens), { shape: [1, config.context] })).dataSync() as Float32Array;
    const [one, other] = [logitsOf([1, 2, 3, 4, 5, 6, 7, 8]), logitsOf([1, 2, 3, 4, 5, 9, 9, 9])];
    const until = 5 * config.vocabulary;
    expect(one.subarray(0, until)).toEqual(other.subarray(0, until));
    expect(one.subarray(until)).not.toEqual(other.subarray(until));
  });

  test('its gradient is the slope of its loss', () => {
    const model = createModel(config);
    const parameters = createParameters(config, seededRandom(1));
    const [inputs, targets] = batchOf(4, 3);
    const [, gradients] = model.gradients(tree.ref(parameters), inputs.ref, targets.ref);
    // Along the gradient g the loss changes by h·|g|² to first order; symmetric differences leave an error of order h².
    const h = 1e-2;
    const moved = (sign: number): number => {
      const shifted = tree.map((p: np.Array, g: np.Array) => p.add(g.mul(sign * h)), tree.ref(parameters), tree.ref(gradients));
      return model.loss(shifted, inputs.ref, targets.ref).item();
    };
    const slope = (moved(1) - moved(-1)) / (2 * h);
    const square = tree.leaves<np.Array>(tree.ref(gradients)).reduce((sum, leaf) => sum + np.square(leaf).sum().item(), 0);
    expect(square).toBeGreaterThan(0.01);
    expect(Math.abs(slope / square - 1)).toBeLessThan(0.02);
  });

  test('learns text by heart and continues it', async () => {
    const corpus = loadCorpus({ ...options, patterns: [join(folder, 'a.txt')] });
    const wide: ModelConfig = { vocabulary: corpus.vocabulary.length, context: 16, width: 32, layers: 1, heads: 2 };
    const model = createModel(wide);
    let parameters = createParameters(wide, seededRandom(1));
    const adam = new Adam<typeof parameters>({ rate: 0.01, warmupSteps: 5, steps: 120 });
    const sampler = new DistributedSampler(windowCount(corpus.training, wide.context), { seed: 1 });
    const losses: number[] = [];
    for (const items of [...sampler.batches(16)].filter(({ length }) => length === 16).slice(0, 90)) {
      const [inputs, targets] = windows(corpus.training, items, wide.context).map((part) => np.array(part, { shape: [16, wide.context] }));
      const [loss, gradients] = model.gradients(tree.ref(parameters), inputs, targets);
      parameters = adam.update(parameters, gradients);
      // jax-js is lazy: reading something each step keeps the chain of pending work short.
      losses.push(loss.item());
    }
    const text = await generate(model, parameters, wide, {
      vocabulary: corpus.vocabulary,
      prompt: 'the quick brown',
      count: 29,
      temperature: 0.1,
      random: seededRandom(1),
    });
    expect(losses[89]).toBeLessThan(0.5);
    expect(text).toBe(sentence.slice(0, 44));
  });
});

test('--schedule: the same losses and parameters, to the bit', { timeout: 240_000 }, async () => {
  writeFileSync(join(folder, 'a.txt'), sentence.repeat(600));
  const [plain, scheduled] = await Promise.all(
    [[], ['--schedule']].map(async (flags, index) => {
      const out = join(folder, `run-${index}`);
      const program = [exampleScript('char-lm'), '--text', join(folder, 'a.txt'), '--steps', '3', '--batch', '4', '--out', out];
      const { code, stderr } = await shoal(['run', '-n', '2', ...program, ...flags]).ended;
      expect(code, stderr).toBe(0);
      return JSON.parse(readFileSync(join(out, 'rank-0.json'), 'utf8')) as RankResult;
    }),
  );
  expect(scheduled.losses).toEqual(plain.losses);
  expect(scheduled.checksum).toBe(plain.checksum);
});

test('--elastic: a process is killed, and training goes on to the last step with the others', { timeout: 240_000 }, async () => {
  writeFileSync(join(folder, 'a.txt'), sentence.repeat(600));
  const out = join(folder, 'elastic');
  const flags = ['-n', '3', '--min', '2', '--max-restarts', '1', '--json', '-'];
  const program = [exampleScript('char-lm'), '--elastic', '--text', join(folder, 'a.txt'), '--steps', '40', '--batch', '4', '--out', out];
  await using job = shoal(['run', ...flags, ...program]);
  const [[, pid]] = await job.output(/rank 2 started \(pid (\d+)\)/, 1);
  await job.output(/step 5\/40/, 1);
  process.kill(Number(pid), 'SIGKILL');
  const { code, stdout, stderr } = await job.ended;
  expect(code, stderr).toBe(0);
  const { changes } = JSON.parse(stdout.slice(stdout.indexOf('\n{\n'))) as { changes: { to: number }[] };
  expect(changes[0]).toMatchObject({ from: 3, to: 2, rank: 2 });
  const results = [0, 1].map((rank) => JSON.parse(readFileSync(join(out, `rank-${rank}.json`), 'utf8')) as RankResult);
  for (const { size, checksum, losses } of results) {
    expect({ size, checksum, losses }).toEqual({ size: changes.at(-1)!.to, checksum: results[0].checksum, losses: results[0].losses });
    expect(losses.map(([step]) => step)).toEqual([1, 5, 10, 15, 20, 25, 30, 35, 40]);
    expect(losses.at(-1)![1]).toBeLessThan(losses[1][1]);
  }
});
