import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { readSettings } from '../../../base/settings/settings.ts';
import { defaultCostModel } from '../../../plan/cost.ts';
import type { PlanFlags } from './run-plan.ts';
import { runPlan } from './run-plan.ts';

const defaults: PlanFlags = { algorithm: 'auto', hosts: 1, ranksPerHost: 2, bytes: '1MiB', dtype: 'float32' };
const run = (collective: string | undefined, flags: Partial<PlanFlags>): Promise<{ text: string; ok: boolean }> =>
  runPlan(collective, { ...defaults, ...flags }, readSettings({}));

describe('shoal plan', () => {
  it('says what fairring sends and needs', async () => {
    const { text, ok } = await run('all-reduce', { algorithm: 'fairring', hosts: 4, ranksPerHost: 2, bytes: '8MiB', verify: true });
    expect(ok).toBe(true);
    expect(text).toContain('plan     fairring all-reduce\nof       2097152 × float32, 8MiB\non       8 ranks, 4 hosts × 2\n');
    // 2(M − 1)/M·S/D = 6 MiB per rank.
    expect(text).toContain('network  48MiB, 6MiB from the busiest rank in 6 messages, 2 hops');
    expect(text).toContain('scratch  3MiB per rank, at most');
    expect(text).toContain('proved: every schedule gives the promised result');
  });

  it('takes limits as sizes', async () => {
    const flags = { algorithm: 'fairring', hosts: 4, bytes: '8MiB', slice: '1MiB', staging: '600KiB', shard: '4KiB' };
    expect((await run('all-reduce', flags)).text).toContain('scratch  384KiB per rank');
  });

  it('prints what is chosen, step by step, and what it costs', async () => {
    const { text } = await run('all-reduce', { bytes: '64', print: true, rank: 1, cost: true });
    expect(text).toContain('plan     mailbox all-reduce');
    expect(text).toContain('rank 1 · scratch 0 · signals 0\n entry\n  0  copy    mailbox[0, 16) := data[0, 16)\n channel 0\n');
    expect(text).not.toContain('rank 0 · scratch');
    expect(text.split('\n').filter((line) => /^ +[01] +2 /.test(line))).toHaveLength(2);
  });

  it('draws', async () => {
    const path = join(mkdtempSync(join(tmpdir(), 'shoal-plan-')), 'new', 'folder', 'plan.svg');
    expect((await run('broadcast', { hosts: 3, draw: path })).text).toContain(`drawn    ${path}`);
    expect(readFileSync(path, 'utf8')).toMatch(/^<svg /);
    await expect(run('broadcast', { draw: join(path, 'no', 'such') })).rejects.toThrow(/cannot write .*no.such/);
  });

  it('prints the table with the rules that stand before it', async () => {
    const { text } = await run(undefined, { table: true, algorithms: 'all-reduce:4k-inf=tree' });
    expect(text.split('\n')[1]).toMatch(/^all-reduce +any +4k-inf +any +any +tree$/);
  });

  it('says the same as JSON', async () => {
    const { text, ok } = await run('all-reduce', { hosts: 2, verify: true, print: true, rank: 1, json: true });
    expect(ok).toBe(true);
    const result = JSON.parse(text) as Record<string, unknown>;
    expect(result).toMatchObject({ version: 1, dtype: 'float32', ranks: 4, proof: { ok: true }, drawn: null });
    expect(result).toMatchObject({ algorithm: expect.any(String) as string, cost: { ranks: expect.any(Array) as unknown[] } });
    expect(result['programs']).toHaveLength(1);
    const table = JSON.parse((await run('barrier', { table: true, json: true })).text) as { rules: { collective: string }[] };
    expect(new Set(table.rules.map(({ collective }) => collective))).toEqual(new Set(['barrier']));
  });

  it('prints the table of one collective', async () => {
    const { text } = await run('barrier', { table: true, hosts: 2 });
    expect(text.split('\n').filter((line) => line !== '')).toEqual([
      expect.stringMatching(/^collective +topology/),
      expect.stringMatching(/^barrier +any +0-inf .* mailbox$/),
      '2 hosts × 2 ranks, with the rates of a 10 Gbit/s network:',
      expect.stringMatching(/^collective +bytes/),
      expect.stringMatching(/^barrier +0 +mailbox/),
    ]);
    await expect(run('barriers', { table: true })).rejects.toThrow(/unknown collective 'barriers'/);
  });

  it('plans for hosts with unequally many ranks', async () => {
    const { text, ok } = await run('all-reduce', { layout: [4, 4, 2], verify: true });
    expect(ok).toBe(true);
    expect(text).toContain('on       10 ranks, 3 hosts of 4, 4, 2\n');
    expect((await run('all-reduce', { layout: [2, 1], table: true })).text).toContain('2 hosts of 2, 1 ranks, with the rates');
    await expect(run('all-reduce', { layout: [2, 1], algorithm: 'fairring' })).rejects.toThrow(/host 0 has 2, host 1 has 1/);
    await expect(run('all-reduce', { layout: [16_384, 1] })).rejects.toThrow(/--layout 16384,1 are 16385; at most 16384/);
  });

  it('lets one host of a ring stand for all in a large world, and prints any rank of it', async () => {
    const world = { hosts: 500, ranksPerHost: 2, algorithm: 'ring', bytes: '1MB' } as const;
    const { text } = await run('all-reduce', { ...world, print: true, rank: 999 });
    expect(text).toContain('on       1000 ranks, 500 hosts × 2\nalike    the programs of the 2 ranks of a host stand for all');
    // 1 MB are 15.6 lines for each of 1,000 ranks, so shares are 16 lines.
    expect(text).toContain('of       256000 × float32');
    expect(text).toMatch(/rank 999 · .*\n +0 +put +data\[255488, 255744\) → rank 0 /);
    await expect(run('all-reduce', { ...world, verify: true })).rejects.toThrow(/a proof for 1000 ranks .* prove .* for at most 512 ranks/);
    await expect(run('all-reduce', { ...world, draw: 'x.svg' })).rejects.toThrow(/--draw needs the programs of all 1000 ranks/);
    const large = { hosts: 1025, ranksPerHost: 2, algorithm: 'tree', verify: true } as const;
    await expect(run('all-reduce', large)).rejects.toThrow(/a proof for 2050 ranks .* for at most 2048 ranks/);
  });

  it('says what travels with the announcement', async () => {
    const { text } = await run('all-reduce', { hosts: 2, bytes: '64' });
    expect(text).toContain('in 0 messages, 0 hops\nmailbox  64 bytes per rank, at most, with its announcement\n');
    expect((await run('all-reduce', { hosts: 2, bytes: '8MiB' })).text).not.toContain('mailbox');
  });

  it('prints what is chosen on a world, with the times that its rates give', async () => {
    const { text } = await run(undefined, { table: true, hosts: 4, ranksPerHost: 2 });
    const [, predictions] = text.split('4 hosts × 2 ranks, with the rates of a 10 Gbit/s network:');
    const rows = predictions.trim().split('\n').slice(1);
    expect(rows.find((row) => row.startsWith('barrier'))).toMatch(/^barrier +0 +mailbox +\S+ µs$/);
    const allReduce = rows.filter((row) => row.startsWith('all-reduce'));
    expect(allReduce[0]).toMatch(/^all-reduce +8 … \S+ +\S+ +[\d.]+ µs … [\d.]+ µs$/);
    expect(allReduce.at(-1)).toMatch(/ … any +fairring +.* … 8\d\.\d ms$/);
    const file = join(mkdtempSync(join(tmpdir(), 'shoal-plan-')), 'tuning.json');
    const slow = { ...defaultCostModel, networkByte: 8.5e-9 };
    const choices = [{ collective: 'all-reduce', ranges: [{ from: 0, to: 1000, algorithm: 'tree' }], measured: [] }];
    const world = { hosts: [2, 2, 2, 2], loadStore: false, order: 'canonical', rates: slow, choices };
    writeFileSync(file, JSON.stringify({ schema: 'shoal-tuning', version: 1, shoal: '0', worlds: [world] }));
    const settings = readSettings({ SHOAL_TUNING_FILE: file });
    const tuned = await runPlan(undefined, { ...defaults, table: true, hosts: 4, ranksPerHost: 2 }, settings);
    expect(tuned.text).toContain(`with the rates in ${file}:`);
    expect(tuned.text).toMatch(/^all-reduce +8 … 512 +tree /m);
    expect(tuned.text).toMatch(/^all-reduce .* … any +fairring +.* … 8\d\d ms$/m);
  });

  it.each([
    ['no collective', undefined, {}, /name a collective; use one of all-reduce/],
    ['an unknown collective', 'alreduce', {}, /unknown collective 'alreduce'/],
    ['an unknown algorithm', 'all-reduce', { algorithm: 'fairing' }, /unknown algorithm 'fairing'; use one of .*fairring/],
    ['an unknown dtype', 'all-reduce', { dtype: 'float' }, /unknown dtype 'float'; use one of float64/],
    ['a size that is none', 'all-reduce', { bytes: 'much' }, /--bytes much is not a size; write bytes, such as/],
    ['a slice that cuts an element', 'all-reduce', { slice: '1022' }, /--slice 1022 is not a multiple of float32's 4 bytes/],
    ['a staging of nothing', 'all-reduce', { staging: '0' }, /--staging 0 is not a multiple/],
    ['a staging that cuts too small', 'all-reduce', { staging: '8' }, /--staging 8 is too small; at least 4KiB is needed/],
    ['slices that are too small', 'all-reduce', { slice: '4092' }, /--slice 4092 is too small/],
    ['pieces that are too small', 'all-reduce', { piece: '1KiB' }, /--piece 1KiB is too small/],
    ['too many ranks', 'all-reduce', { hosts: 10_000 }, /are 20000; at most 16384/],
    ['an all-to-all of too many ranks', 'all-to-all', { hosts: 1025 }, /an all-to-all of 2050 ranks has 2050 × 2050 parts; at most 2048/],
    ['a table of too many ranks', undefined, { hosts: 999_999_999, table: true }, /are 1999999998; at most 16384/],
    ['a rank that is not there', 'all-reduce', { rank: 2 }, /--rank 2 is not one of the ranks 0…1/],
    ['an algorithm that cannot', 'barrier', { algorithm: 'ring' }, /ring cannot barrier/],
  ] as const)('refuses %s', async (_, collective, flags, message) => {
    await expect(run(collective, flags)).rejects.toThrow(message);
  });
});
