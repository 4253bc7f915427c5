import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { SimulateFlags } from './run-simulate.ts';
import { runSimulate } from './run-simulate.ts';

const defaults: SimulateFlags = {
  algorithms: 'auto',
  hosts: 2,
  ranksPerHost: 2,
  bytes: '1MiB',
  dtype: 'float32',
  operations: 1,
  inFlight: 1,
  preset: 'tcp',
  buckets: 64,
};
const run = (collective: string | undefined, flags: Partial<SimulateFlags>): Promise<string> =>
  runSimulate(collective, { ...defaults, ...flags });

interface Result {
  readonly rows: readonly { readonly algorithm: string; readonly bytes: number; readonly milliseconds: number }[];
}

describe('shoal simulate', () => {
  it('prints a row per size and algorithm', async () => {
    const lines = (await run('all-reduce', { bytes: '64KiB,1MiB', algorithms: 'auto,ring' })).trimEnd().split('\n');
    expect(lines).toHaveLength(5);
    expect(lines[1]).toMatch(/64KiB +auto: fairring +[\d.]+ +\d+% +\d+% +\d+ +131072 +\d+\.\d\d$/);
    expect(lines[4]).toMatch(/1MiB +ring /);
  });

  it('follows the rates it is given', async () => {
    const timeOf = async (flags: Partial<SimulateFlags>): Promise<number> =>
      (JSON.parse(await run('all-reduce', { json: '-', algorithms: 'fairring', bytes: '25MiB', ...flags })) as Result).rows[0].milliseconds;
    const [one, ten] = [await timeOf({ gbit: 1 }), await timeOf({ gbit: 10 })];
    expect(one / ten).toBeGreaterThan(5);
    // 2(M − 1)/M·S at 1 Gbit/s.
    expect(one).toBeGreaterThan((25 * 2 ** 20 * 8) / 1e6);
    expect(await timeOf({ gbit: 1, ports: 2 })).toBeLessThan(one * 0.6);
    expect((await timeOf({ gbit: 1, latency: 50_000 })) - one).toBeGreaterThan(90);
  });

  it('writes JSON and a page', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'shoal-simulate-'));
    const [json, html] = [join(folder, 'new', 'a.json'), join(folder, 'other', 'a.html')];
    await run('all-reduce', { bytes: '64KiB,1MiB', json, html, operations: 3, inFlight: 2 });
    expect((JSON.parse(readFileSync(json, 'utf8')) as Result).rows.map(({ bytes }) => bytes)).toEqual([65536, 1048576]);
    expect(readFileSync(html, 'utf8')).toContain('"title":"3 × all-reduce, 2 hosts × 2, simulated"');
  });

  it.each([
    ['an unknown preset', 'all-reduce', { preset: 'fast' }, /unknown preset 'fast'; use one of tcp, gpu-cluster/],
    ['a port without rate', 'all-reduce', { gbit: 0 }, /--gbit 0 would never end/],
    ['a collective beside the micro-benchmarks', 'all-reduce', { microBenchmarks: true as const }, /takes no collective/],
    ['a file that cannot be written', 'all-reduce', { html: '/dev/null/x.html' }, /cannot write \/dev\/null\/x/],
  ])('refuses %s', async (_, collective, flags, message) => {
    await expect(run(collective, flags)).rejects.toThrow(message);
  });
});
