/** The comparison with peers, in its smallest form, and its parts: it must still run on the day it is needed. */
import { spawnSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { runCase, type Comparison } from '../../bench/peers/comparison.ts';
import { contestants, type Contestant, type HeatRow } from '../../bench/peers/contestants.ts';
import { comparisonPage } from '../../bench/peers/page.ts';
import type { Place } from '../../bench/peers/place.ts';
import { runTogether } from '../../bench/peers/processes.ts';

// The timeout is generous: programs are built and started several times, on machines that may be busy.
vi.setConfig({ testTimeout: 240_000 });

const directory = temporaryFolder('peers-test', afterAll);

describe('bench/peers', () => {
  it('measures Shoal and every peer there is, and all of them compute the same', async () => {
    const script = fileURLToPath(new URL('../../bench/peers/run.ts', import.meta.url));
    const args = [
      '--import',
      'tsx',
      script,
      '--tiny',
      '--collectives',
      'all-reduce,all-gather',
      '--buckets',
      '2',
      '--algorithms',
      'ring',
      '--out',
      directory,
    ];
    const { status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    expect(status, stderr).toBe(0);
    const comparison = JSON.parse(await readFile(join(directory, 'peers-one-host.json'), 'utf8')) as Comparison;
    expect(comparison).toMatchObject({ schema: 'shoal-peers', version: 1, rounds: 1, reference: 'shoal sync' });
    const all = contestants({ algorithms: ['ring'] }).map(({ name }) => name);
    expect([...Object.keys(comparison.contestants), ...Object.keys(comparison.missing)].sort()).toEqual([...all].sort());
    expect(comparison.cases.map(({ collective, ranks, buckets }) => [collective, ranks, buckets])).toEqual([
      ['all-reduce', 2, 2],
      ['all-gather', 2, 2],
    ]);
    for (const { sizes } of comparison.cases) {
      for (const { standings } of sizes) {
        expect(standings.map(({ contestant }) => contestant)).toEqual(Object.keys(comparison.contestants));
        for (const { medianUs, ratio, wrong } of standings) {
          expect(medianUs).toBeGreaterThan(0);
          expect(ratio).toBeGreaterThan(0);
          expect(wrong).toBe(0);
        }
      }
    }
    expect(comparisonPage(comparison)).toMatchObject({ figures: [{ xLabel: 'size' }, { xLabel: 'size' }] });
  });
});

const place: Place = { name: 'nowhere', ranks: 2, interfaceName: 'lo', run: () => Promise.resolve(''), runMpi: () => Promise.resolve('') };

function scripted(name: string, medians: readonly number[], log: string[] = []): Contestant {
  let round = 0;
  const row = (bytes: number, us: number): HeatRow => ({ bytes, medianUs: us, minUs: us, p99Us: us, wrong: 0 });
  return {
    name,
    description: name,
    iterationShare: 0.1,
    prepare: () => undefined,
    run: ({ sizes }) => {
      log.push(`${name} ${sizes.map(({ iterations }) => iterations).join(' ')}`);
      return Promise.resolve(sizes.map(({ bytes }) => row(bytes, medians[round++ % medians.length])));
    },
  };
}

describe('a comparison', () => {
  const sizes = [{ bytes: 8, iterations: 100 }];

  it('takes ratios within rounds, not of medians', async () => {
    // The machine is ten times slower in the second round; the ratio is 2 in every round.
    const one = await runCase({
      collective: 'all-reduce',
      place,
      sizes,
      warmup: 0,
      buckets: 1,
      checkedBuckets: 1,
      rounds: 3,
      contestants: [scripted('shoal sync', [1, 10, 3]), scripted('peer', [2, 20, 6])],
      bound: { name: 'memory', measure: () => Promise.resolve(new Map([[8, 0.5]])) },
      report: () => undefined,
    });
    expect(one.sizes[0].standings).toEqual([
      { contestant: 'shoal sync', medianUs: 3, bestUs: 1, ratio: 1, roundsUs: [1, 10, 3], wrong: 0 },
      { contestant: 'peer', medianUs: 6, bestUs: 2, ratio: 2, roundsUs: [2, 20, 6], wrong: 0 },
    ]);
    expect(one.sizes[0].boundUs).toBe(0.5);
    expect(one.bound).toBe('memory');
  });

  it('takes turns, and leaves out contestants that cannot run, with the reason', async () => {
    const log: string[] = [];
    const unable: Contestant = { ...scripted('unable', [1]), run: () => Promise.resolve('not on Sundays') };
    const one = await runCase({
      collective: 'barrier',
      place,
      sizes,
      warmup: 0,
      buckets: 1,
      checkedBuckets: 1,
      rounds: 2,
      contestants: [scripted('a', [1], log), unable, scripted('b', [1], log)],
      bound: undefined,
      report: () => undefined,
    });
    expect(log).toEqual(['a 10', 'b 10', 'b 10', 'a 10']);
    expect(one.skipped).toEqual({ unable: 'not on Sundays' });
    expect(one.sizes[0].standings.map(({ contestant, ratio }) => [contestant, ratio])).toEqual([
      ['a', null],
      ['b', null],
    ]);
  });

  it('becomes a page: the measurements, and the reasons for missing ones', () => {
    const page = comparisonPage({
      schema: 'shoal-peers',
      version: 1,
      startedAt: 'now',
      machine: { processor: 'a CPU', cpus: 2, memoryBytes: 1, system: 'Linux', node: 'v20', loadBefore: 0 },
      commit: 'abc',
      rounds: 1,
      reference: 'shoal sync',
      contestants: { 'shoal sync': 'x', b: 'y' },
      missing: { gloo: 'no torch' },
      cases: [
        {
          collective: 'all-reduce',
          place: 'here',
          ranks: 2,
          buckets: 1,
          bound: 'memory',
          skipped: { b: 'not on Sundays' },
          sizes: [
            {
              bytes: 1024,
              boundUs: 0.5,
              standings: [
                { contestant: 'shoal sync', medianUs: 1, bestUs: 1, ratio: 1, roundsUs: [1], wrong: 0 },
                { contestant: 'b', medianUs: 3, bestUs: 3, ratio: 3, roundsUs: [3], wrong: 2 },
              ],
            },
          ],
        },
      ],
    });
    expect(page.names).toEqual([
      ['shoal sync', 'x'],
      ['b', 'y'],
      ['gloo', 'was not measured: no torch'],
    ]);
    expect(page.figures[0]).toMatchObject({
      title: 'all-reduce, here, 2 ranks',
      x: [1024],
      series: [
        { name: 'shoal sync', values: [1] },
        { name: 'b', values: [3] },
        { name: 'memory bound', values: [0.5], kind: 'bound' },
      ],
      table: { head: ['size', 'shoal sync', 'b', 'memory bound'], rows: [['1KiB', '1.00', '3.00 (3.0), 2 wrong', '0.50']] },
      notes: ['b: not on Sundays'],
    });
  });
});

describe('programs that run together', () => {
  const node = (source: string): { command: string[]; environment: Record<string, string> } => ({
    command: [process.execPath, '-e', source],
    environment: { GREETING: 'hello' },
  });

  it("give the first one's output when all end well", async () => {
    await expect(runTogether([node('console.log(process.env.GREETING)'), node('console.log(2)')], { timeoutMs: 60_000 })).resolves.toBe(
      'hello\n',
    );
  });

  it('are ended when one fails, which is named with its output', async () => {
    const waiting = node('setInterval(() => {}, 1000)');
    await expect(runTogether([waiting, node('console.error("no more"); process.exit(3)')], { timeoutMs: 60_000 })).rejects.toThrow(
      /program 1 .* ended with code 3\nno more/s,
    );
  });

  it('are ended when they take too long, and when told to', async () => {
    const waiting = node('setInterval(() => {}, 1000)');
    await expect(runTogether([waiting, waiting], { timeoutMs: 100 })).rejects.toThrow(/not finished after 0.1 s/);
    await expect(runTogether([waiting], { timeoutMs: 60_000, signal: AbortSignal.abort() })).rejects.toThrow(/interrupted/);
  });

  it('say when there is no such program', async () => {
    await expect(runTogether([{ command: ['/no/such/program'], environment: {} }], { timeoutMs: 60_000 })).rejects.toThrow(/ENOENT/);
  });
});
