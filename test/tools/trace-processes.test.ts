/** Traces of real processes, of a call that one rank makes late. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import type { ChromeEvent, ChromeTrace } from '../../src/trace/chrome.ts';
import { startRanks } from '../support/ranks.ts';

/** Least time by which rank 1 calls later. */
const lateMs = 700;

const folder = temporaryFolder('trace', afterAll);

it.for([
  { path: 'host path', fabrics: '', count: 4 },
  { path: 'host path', fabrics: '', count: 1 << 20 },
  { path: 'network path', fabrics: 'tcp', count: 4 },
  { path: 'comm thread', fabrics: 'tcp', count: 1 << 19 },
])('the wait for a late rank is drawn as that: $path, $count elements', async ({ path, fabrics, count }, context) => {
  const missing = nativeUnavailableReason();
  if (missing !== undefined && path !== 'comm thread') context.skip(missing);
  const into = join(folder, `${path}-${count}`);
  const env = { SCENARIO: 'late', COUNT: String(count), SHOAL_FABRICS: fabrics, SHOAL_TRACE: into };
  await using world = await startRanks({ fixture: 'scenario', n: 2, env });
  const [first, late] = world.ranks;
  await Promise.all([first, late].map((rank) => rank.line((line: { ready?: number }) => line.ready !== undefined)));
  await sleep(lateMs);
  late.tell();
  for (const { code, stderr } of await world.outcomes()) expect({ code, stderr }).toEqual({ code: 0, stderr: '' });

  const [trace, other] = await Promise.all(
    [0, 1].map(async (rank) => JSON.parse(await readFile(join(into, `trace-rank-${rank}.json`), 'utf8')) as ChromeTrace),
  );
  const spans = trace.traceEvents.filter(({ ph, cat }) => ph === 'X' && cat === 'collective');
  const call = { name: 'bucket-0', group: 'world', dtype: 'float32', count, bytes: 4 * count, op: 'sum', sequence: 0, path, peers: '1' };
  for (const { args } of spans)
    expect(args).toMatchObject({
      ...call,
      algorithm: expect.stringMatching(/^[a-z-]+$/),
      site: expect.stringMatching(/^scenario\.mjs:\d+$/),
    });
  const waits = spans.filter(({ name }) => name === 'all-reduce wait');
  const works = spans.filter(({ name }) => name !== 'all-reduce wait');
  expect(works).toHaveLength(1);
  // The wait is all of the time from the call until the last rank's, but for the hand-over to the comm thread, which a busy machine may let
  // take as long as it likes. On the network path the calling thread looks 20 times before it hands over.
  const until = Math.max(...waits.map(({ ts, dur = 0 }) => ts + dur));
  expect(waits.length).toBeLessThanOrEqual(path === 'network path' ? 23 : 2);
  expect(total(waits)).toBeGreaterThan(lateMs * 100);
  expect(waits.every(({ args }) => args?.waitedFor === 1)).toBe(true);
  // The rest is the work, which began when the last rank had called.
  expect(works[0].ts).toBeGreaterThan(until - 1);
  const memory = (wanted: string): number[] =>
    trace.traceEvents.filter(({ ph, name }) => ph === 'C' && name === wanted).map(({ args }) => Number(args?.bytes));
  // There is a value at the start and at the end at least.
  expect(memory('registered memory').length).toBeGreaterThan(1);
  expect(Math.min(...memory('registered memory'))).toBeGreaterThan(0);
  expect(Math.min(...memory('resident memory'))).toBeGreaterThan(2 ** 24);
  // Rates with which bandwidths are compared: ranks that share memory copy, others have a link.
  expect(other.otherData.processes[0]).toMatchObject(
    fabrics === ''
      ? { memory: 0, rates: { copy: expect.any(Number) } }
      : { memory: 1, rates: { link: expect.any(Number), linkFrom: 'start' } },
  );
  // Whatever the algorithm, two ranks need each other's whole contribution, or its halves and the sums of them; and the messages.
  const rows = [trace, other].flatMap(({ otherData }) => otherData.processes[0].traffic ?? []);
  const sent = (from: number): number => rows.reduce((sum, [sender, , bytes]) => sum + (sender === from ? bytes : 0), 0);
  expect([sent(0), sent(1)]).toEqual([4 * count + 4, 4 * count + 4]);
  const messages = trace.traceEvents.filter(({ cat }) => cat === 'message');
  expect(messages.map(({ name, args }) => [name, args])).toEqual([
    ['send', { peer: 1, group: 'world', tag: 7, dtype: 'int32', count: 1, bytes: 4 }],
    ['recv', { peer: 1, group: 'world', tag: 7, dtype: 'int32', count: 1, bytes: 4 }],
  ]);
});

function total(spans: readonly ChromeEvent[]): number {
  return spans.reduce((sum, { dur = 0 }) => sum + dur, 0);
}
