/** Calls between hosts of scripts that do nothing but wait for them, and of scripts that do not. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import type { ChromeTrace } from '../../src/trace/chrome.ts';
import { startRanks } from '../support/ranks.ts';

const folder = temporaryFolder('blocking-calls', afterAll);

it.for([
  { waits: 'blocks', runsHere: true },
  { waits: 'awaits', runsHere: true },
  { waits: 'goes on', runsHere: false },
])('a script that $waits, calls in its own thread: $runsHere', async ({ waits, runsHere }, context) => {
  const missing = nativeUnavailableReason();
  if (missing !== undefined) context.skip(missing);
  const into = join(folder, waits);
  // Rank 1 is 0.2 s late for each call. Rank 0 looks for it 50 ms, and then 20 times as long if it does nothing else.
  const env = { SCENARIO: 'late each time', WAITS: waits, SHOAL_FABRICS: 'tcp', SHOAL_SYNC_SPIN_US: '50000', SHOAL_TRACE: into };
  await using world = await startRanks({ fixture: 'scenario', n: 2, env });
  for (const { code, stderr } of await world.outcomes()) expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const { traceEvents } = JSON.parse(await readFile(join(into, 'trace-rank-0.json'), 'utf8')) as ChromeTrace;
  const names = traceEvents.filter(({ ph, cat }) => ph === 'X' && cat === 'collective').map(({ name }) => name);
  const works = names.filter((name) => name !== 'all-reduce wait');
  expect(works).toHaveLength(6);
  expect(works.some((name) => (name === 'all-reduce (network path)') === runsHere)).toBe(true);
});
