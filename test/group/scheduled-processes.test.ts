/** Scheduled groups of real processes: all-reduces run in the comm thread, whatever the main thread does, and a rank that dies
 *  ends the queued ones on the others. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import type { ChromeEvent } from '../../src/trace/chrome.ts';
import { parseChromeTrace } from '../../src/trace/trace-file.ts';
import { startRanks } from '../support/ranks.ts';

const missing = nativeUnavailableReason();
const fabricLists = missing === undefined ? ['', 'tcp'] : [''];

describe.each(fabricLists)('scheduled all-reduces, fabrics "%s"', (fabrics) => {
  it('are done while a busy main thread never returns to its event loop', async () => {
    await using world = await startRanks({ fixture: 'scheduled', n: 2, env: { SHOAL_FABRICS: fabrics } });
    for (const { lines, stderr, code } of await world.outcomes()) {
      expect(stderr).toBe('');
      expect(lines).toEqual([{ wrong: 0 }]);
      expect(code).toBe(0);
    }
  });

  it('are on the timeline: the queue and the flight of each part, and the credit', async () => {
    const folder = temporaryFolder('schedule');
    const env = { SHOAL_FABRICS: fabrics, SHOAL_TRACE: folder, BYTESCHEDULER_TIMELINE: join(folder, 'own.json') };
    await using world = await startRanks({ fixture: 'scheduled', n: 2, env });
    for (const { code, stderr } of await world.outcomes()) expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    for (const name of ['trace-rank-0.json', 'trace-rank-1.json', 'own.json']) {
      const { traceEvents } = parseChromeTrace(await readFile(join(folder, name), 'utf8'), name);
      const spans = (phase: string): ChromeEvent[] => traceEvents.filter(({ name: each }) => each === `all-reduce ${phase}`);
      // There are four rounds of 1, 5, 1 and 31 parts.
      expect(spans('QUEUE')).toHaveLength(4 * 38);
      expect(spans('COMMUNICATION')).toHaveLength(4 * 38);
      const tensors = new Set(spans('COMMUNICATION').map(({ args }) => String(args?.tensor)));
      expect([...tensors].toSorted()).toEqual([0, 1, 2, 3].map((layer) => `layer ${layer}`));
      const credit = traceEvents.filter(({ ph, name: each }) => ph === 'C' && each.startsWith('credit in flight'));
      expect(Math.max(...credit.map(({ args }) => Number(args?.bytes)))).toBeLessThanOrEqual(2 ** 20);
      expect(credit.at(-1)?.args).toEqual({ bytes: 0 });
    }
  });

  it('end with peer-lost when a rank is killed, also those that are queued', async () => {
    await using world = await startRanks({ fixture: 'scheduled', n: 3, env: { SHOAL_FABRICS: fabrics, SCENARIO: 'killed' } });
    await Promise.all(world.ranks.map((rank) => rank.line((line: { ready?: number }) => line.ready !== undefined)));
    world.ranks[1].kill();
    await world.ranks[1].exited;
    for (const rank of [world.ranks[0], world.ranks[2]]) rank.tell();
    for (const rank of [world.ranks[0], world.ranks[2]]) {
      const report = await rank.line(({ what }: { what?: string }) => what === 'ends');
      expect(report).toMatchObject({ codes: ['peer-lost'], peers: [1], waited: 'peer-lost' });
    }
  });
});
