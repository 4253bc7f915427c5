/** Training by `elastic.run` under the launcher: ranks are killed, started again alone, and go on with the others. */
import { describe, expect, it } from 'vitest';
import { shoal } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const program = fixtureScript('elastic-rank');

interface Said {
  readonly ranks: readonly number[];
  readonly steps: number;
  readonly total: number;
  readonly changes: readonly (readonly [number, string])[];
}

/** The ranks' words at the end, and the changes that the launcher lists. */
async function run(flags: readonly string[], args: readonly string[], env = {}) {
  await using job = shoal(['run', '--min', '2', '--max-restarts', '3', '--json', '-', ...flags, program, ...args], { env });
  const { code, stdout, stderr } = await job.ended;
  expect(code, stderr).toBe(0);
  const said = [...stdout.matchAll(/^\[rank \d+\] (\{.*\})$/gm)].map(([, text]) => JSON.parse(text) as Said);
  const { changes } = JSON.parse(stdout.slice(stdout.indexOf('\n{\n'))) as { changes: { from: number; to: number; rank: number }[] };
  for (const each of said) expect(each).toEqual(said[0]);
  expect(said).toHaveLength(said[0].ranks.length);
  // Each step counts once.
  expect(said[0].total).toBe((said[0].steps * (said[0].steps + 1)) / 2);
  return { ...said[0], launched: changes.map(({ from, to, rank }) => `${from} → ${to}: ${rank}`) };
}

describe.each([
  ['in shared memory', {}],
  ['over TCP', { SHOAL_FABRICS: 'tcp' }],
])('%s', (_, env) => {
  it('a lost rank comes back as a new one, and every step counts once', async () => {
    const { ranks, launched, changes } = await run(['-n', '3'], ['100', '5', '1:20', 'until:3'], env);
    expect({ ranks, launched }).toEqual({ ranks: [0, 2, 3], launched: ['3 → 2: 1', '2 → 3: 3'] });
    expect(changes.map(([, each]) => each)).toEqual(['0,1,2', '0,2', '0,2,3']);
  });
});

it('the newcomer is killed as soon as it is in, and so is the one after it', async () => {
  const { ranks, launched } = await run(['-n', '3'], ['100', '5', '2:20', '3:joins', '4:joins', 'until:5']);
  expect(launched[0]).toBe('3 → 2: 2');
  expect(ranks).toEqual([0, 1, 5]);
});

it('a member is killed while a newcomer waits', async () => {
  const { ranks, launched } = await run(['-n', '4'], ['100', '5', '2:20', '0:waits', 'until:5']);
  expect(launched[0]).toBe('4 → 3: 2');
  expect(ranks).toEqual([1, 3, 4, 5]);
});

it('a rank that is asked to leave ends its step, and is not started again', async () => {
  const { ranks, launched, changes } = await run(['-n', '3'], ['40', '5', '1:asked-20']);
  expect({ ranks, launched }).toEqual({ ranks: [0, 2], launched: ['3 → 2: 1'] });
  expect(changes).toEqual([
    [0, '0,1,2'],
    [21, '0,2'],
  ]);
});

it('ranks that the launcher asks to leave all end, each after its step', async () => {
  await using job = shoal(['run', '-n', '3', '--min', '2', program, '1000000', '5', 'file:never']);
  await job.output(/has joined/, 3);
  job.child.kill('SIGTERM');
  const { code, stderr } = await job.ended;
  expect([code, stderr]).toEqual([143, expect.not.stringContaining('still running') as string]);
});
