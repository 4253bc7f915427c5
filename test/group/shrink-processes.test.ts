/** Jobs that go on without ranks that are killed. */
import { describe, expect, it } from 'vitest';
import { shoal } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const program = fixtureScript('shrinks');
const places: readonly (readonly [string, Record<string, string>])[] = [
  ['in shared memory', {}],
  ['over TCP', { SHOAL_FABRICS: 'tcp' }],
  ['between two hosts', { HOSTS: 'aabb' }],
  ['without the addon', { SHOAL_NATIVE: '0' }],
];

/** The last lines of the ranks that are left. */
function said(stdout: string): string[] {
  return [...stdout.matchAll(/^\[rank \d+\] (.*)$/gm)].map(([, line]) => line);
}

/** The sum of what each step adds, once. */
const total = (steps: number): number => (steps * (steps + 1)) / 2;

describe.each(places)('%s', (_, env) => {
  it('two of four ranks are killed, one after the other, and the others make all steps', async () => {
    const run = shoal(['run', '-n', '4', '--min', '2', program, '60', '1:20', '3:40'], { env });
    const { code, stdout, stderr } = await run.ended;
    expect({ code, stderr }).toMatchObject({ code: 0 });
    expect(said(stdout)).toEqual(Array.from({ length: 2 }, () => `world 0,2, total ${total(60)}, sizes 2,3,4`));
    expect(stderr).toMatch(/world 4 → 3: rank 1 was killed by SIGKILL[^\n]*; the others go on/);
    expect(stderr).toMatch(/world 3 → 2: rank 3 was killed by SIGKILL[^\n]*; the others go on/);
  });
});

it('two ranks that end at the same step are one change for the others', async () => {
  const { code, stdout, stderr } = await shoal(['run', '-n', '5', '--min', '1', program, '40', '0:10', '4:10:throw']).ended;
  expect({ code, stderr }).toMatchObject({ code: 0 });
  expect(said(stdout)).toEqual(
    Array.from({ length: 3 }, () => expect.stringMatching(new RegExp(`^world 1,2,3, total ${total(40)}, sizes 3,(4,)?5$`))),
  );
});

it('with fewer ranks than --min the job ends, and the first cause is named last', async () => {
  const { code, stderr } = await shoal(['run', '-n', '3', '--min', '2', program, '40', '0:10', '2:20:throw']).ended;
  expect(code).toBe(1);
  expect(stderr).toMatch(/world 3 → 2: rank 0 was killed by SIGKILL/);
  expect(stderr.trimEnd()).toMatch(/rank 2 exited with code 1[^]*enough/);
});

it.each([
  [['-n', '2', '--min', '3'], '--min 3 is more than the 2 ranks of -n'],
  [['-n', '2', '--min', '0'], 'min'],
  [['-n', '2', '--ps', '1', '--min', '1'], '--min is for ranks of one machine or of a range of machines, without --ps'],
])('%j is refused before a rank is started', async (flags, message) => {
  const { code, stderr } = await shoal(['run', ...flags, program, '1']).ended;
  expect(code).toBe(2);
  expect(stderr).toContain(message);
});
