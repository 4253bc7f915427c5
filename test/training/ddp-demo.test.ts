/** The demonstration as a user starts it, small: its output, its files, and its failures. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { summarySchema } from '../../examples/char-lm/summary.ts';
import { start, type Ended } from '../fixtures/launch-harness.ts';

const example = fileURLToPath(new URL('../../examples/char-lm', import.meta.url));
const folder = temporaryFolder('demo', afterAll);
const demo = (...args: string[]): Promise<Ended> =>
  start([process.execPath, '--import', 'tsx', join(example, 'demo.ts'), '--runs', folder, ...args]).ended;

beforeAll(() => writeFileSync(join(folder, 'text.txt'), 'she sells sea shells by the sea shore. '.repeat(1000)));

test(
  'trains on one process, on two, and on two of which one is killed and comes back; leaves a summary',
  { timeout: 600_000 },
  async () => {
    const { code, stdout, stderr } = await demo('--text', join(folder, '*.txt'), '--steps', '50', '--batch', '8');
    expect(code, stderr).toBe(0);
    const name = readdirSync(folder).find((entry) => existsSync(join(folder, entry, 'summary.json')))!;
    const { runs, elastic, training, text, scaling } = summarySchema.parse(
      JSON.parse(readFileSync(join(folder, name, 'summary.json'), 'utf8')),
    );
    expect(runs.map(({ processes }) => processes)).toEqual([1, 2]);
    expect(training).toMatchObject({ steps: 50, batch: 8 });
    expect(text).toMatchObject({ files: [join(folder, 'text.txt')], characters: 39_000 });
    expect(scaling).toBe(runs[1].tokensPerSecond / runs[0].tokensPerSecond);
    for (const { processes, checksums, losses, heldOutLoss, before, after, logs } of runs) {
      expect(checksums).toHaveLength(processes);
      expect(new Set(checksums).size).toBe(1);
      expect(losses.map(([step]) => step)).toEqual([1, ...Array.from({ length: 10 }, (_, at) => 5 * at + 5)]);
      expect(heldOutLoss).toBeLessThan(text.unigramLoss);
      expect([before, after].map((sample) => Array.from(sample).length)).toEqual([204, 204]);
      expect(before).not.toBe(after);
      for (let rank = 0; rank < processes; rank++) expect(logs.some((log) => log.includes(`rank-${rank}`))).toBe(true);
      expect(logs.filter((log) => !existsSync(join(folder, name, log)))).toEqual([]);
    }
    expect(runs[0].checksums[0]).not.toBe(runs[1].checksums[0]);
    expect(stdout).toContain(`${runs[1].after}\n`);
    // No step is lost, and the loss falls on.
    expect(elastic).toMatchObject({ killed: { rank: 1, step: 10 } });
    expect(elastic?.losses.map(([step]) => step)).toEqual(runs[1].losses.map(([step]) => step));
    expect(elastic?.losses.at(-1)?.[1]).toBeLessThan(elastic!.losses[1][1]);
    expect(new Set(elastic?.checksums).size).toBe(1);
    expect(elastic?.changes[0]).toMatch(/^shoal: world 2 → 1: rank 1 was killed by SIGKILL /);
    expect(stdout).toMatch(/^killed: rank 1 \(kill -9 \d+\) after step 10, at a loss of /m);
    expect(existsSync(join(folder, name, 'elastic/report.html'))).toBe(true);
    // Bars go to stderr, results to stdout.
    expect(stderr).toMatch(
      /1 process .*step 50\/50 .*tokens\/s .*communicating[^]*2 processes .*step 50\/50[^]*one is killed .*step 50\/50/,
    );
    expect(stdout).toMatch(new RegExp(`parameters of rank 1 +${runs[1].checksums[1]}`));
    expect(stdout).toMatch(/held-out loss of a unigram model +\d\.\d{4}/);
  },
);

test('text that is missing ends it with the reason and the code of the failing rank', async () => {
  const { code, stderr } = await demo('--text', join(folder, 'missing.txt'));
  expect(code).toBe(1);
  expect(stderr).toMatch(/ENOENT.*missing\.txt/);
  expect(stderr).toMatch(/training ended with code 1; logs are in/);
});

test("a user's program is short: under 120 lines, under 15 of them for distribution", () => {
  const lines = readFileSync(join(example, 'train.ts'), 'utf8').trimEnd().split('\n');
  expect(lines.length).toBeLessThan(120);
  const marked = lines.filter((line) => line.includes('◆'));
  expect(marked.length).toBeLessThan(15);
  // The marks are honest: every line that names the group or the replicas has one, except reports of measurements.
  const distributed = lines.filter(
    (line) => /\b(initProcessGroup|distribute|DistributedSampler|group|ddp)\b/.test(line) && !line.includes('◆'),
  );
  expect(distributed.filter((line) => !/stats|rank === 0|group\.size|\{ params \}|const \{ rank, size \}|^ \*/.test(line))).toEqual([]);
});
