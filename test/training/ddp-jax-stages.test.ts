/** jax-js models in stages on several processes: the same bits on all ranks, with scheduling and without, and the values that one
 *  process and one function would get. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { repositoryRoot } from '../../scripts/repository.ts';
import { exampleScript } from '../support/fixtures.ts';
import { startRanks } from '../support/ranks.ts';
import { testWorlds } from '../support/start-worlds.ts';
import type { TestWorld } from '../support/worlds.ts';

const execute = promisify(execFile);

type Lines = readonly Record<string, unknown>[];

function expectTraining([first, ...others]: readonly Lines[]): void {
  const said = { identical: true, close: true, falls: true };
  expect(first).toMatchObject(['sgd', 'momentum', 'adam'].map((name) => ({ name, ...said })));
  for (const lines of others) expect(lines.map(({ checksum }) => checksum)).toEqual(first.map(({ checksum }) => checksum));
}

function expectHooks([first, second]: readonly Lines[]): void {
  expect(first).toMatchObject([{ name: 'bf16', identical: true }]);
  expect(second).toEqual(first);
}

function expectErrors(ranks: readonly Lines[]): void {
  const message = (pattern: RegExp): string => expect.stringMatching(pattern) as string;
  const said = [
    { what: 'none', code: 'usage', message: message(/at least one stage/) },
    { what: 'no list', code: 'usage', message: message(/stages/) },
    { what: 'no stage', code: 'usage', message: message(/stage 1 has a name, parameters and a forward, not 5/) },
    { what: 'twice', code: 'usage', message: message(/two stages are called 'first'/) },
    { what: 'no parameters', code: 'usage', message: message(/stage 'first' has no parameters/) },
    { what: 'double', code: 'unsupported', message: message(/'first\.weight' is float64/) },
    { what: 'no optimizer', code: 'usage', message: message(/optimizer/) },
    { what: 'another option', code: 'usage', message: message(/optimiser/) },
    { what: 'shapes', code: 'mismatch', message: message(/first\.weight/) },
    { what: 'no loss', code: 'usage', message: message(/a scalar, not an array of shape \[3, 24\]/) },
    { what: 'another tree', code: 'usage', message: message(/optimizer of stage 'last' gave another tree/) },
    { what: 'late hook', code: 'usage', message: message(/before the first step/) },
    { what: 'closed', code: 'closed' },
  ];
  for (const lines of ranks) expect(lines).toMatchObject([...said, ...said]);
}

const bits = 'have the same bits with and without scheduling, by every optimiser';
const scenarios: readonly (TestWorld & { readonly expectLines: (ranks: readonly Lines[]) => void })[] = [
  { name: `2 ranks ${bits}`, n: 2, expectLines: expectTraining },
  { name: `3 ranks over TCP ${bits}`, n: 3, env: { SHOAL_FABRICS: 'tcp' }, expectLines: expectTraining },
  { name: 'with hooks, scheduled and not: the same bits on all ranks', n: 2, scenario: 'hooks', expectLines: expectHooks },
  { name: 'impossible arguments are refused on all ranks', n: 2, scenario: 'errors', expectLines: expectErrors },
];

// jax-js takes a process longer to load and compile than most of these trainings, so the same processes do them all.
testWorlds('jax-stages', scenarios, async ({ linesOf }, { expectLines }) => expectLines(await linesOf()));

it('a rank that dies between two steps is named, by every call', async () => {
  await using world = await startRanks({ fixture: 'jax-stages', n: 2, env: { SCENARIO: 'death' } });
  const [{ lines }, { signal }] = await world.outcomes();
  expect(signal).toBe('SIGKILL');
  const lost = { code: 'peer-lost', message: expect.stringMatching(/rank 1/) as string };
  expect(lines).toMatchObject([{ what: 'death', ...lost, again: lost }, { ended: true }]);
});

it('the example learns, with the same losses when it is scheduled', async () => {
  const run = async (example: string, ...more: string[]): Promise<{ losses: number[]; checksum: string }[]> => {
    const script = [example, '--json', ...more];
    const { stdout } = await execute(process.execPath, ['dist/tools/cli/main.js', 'run', '-n', '2', ...script], { cwd: repositoryRoot });
    const said = stdout.split('\n').flatMap((line) => /^\[rank \d\] (\{.*\})$/.exec(line)?.[1] ?? []);
    return said.sort().map((text) => JSON.parse(text) as { losses: number[]; checksum: string });
  };
  const plain = await run('examples/jax-js-stages/train.ts');
  expect(plain).toHaveLength(2);
  expect(await run(exampleScript('jax-js-stages'), '--schedule')).toEqual(plain);
  expect(plain[1].checksum).toBe(plain[0].checksum);
  const [{ losses }] = plain;
  expect(losses[0]).toBeGreaterThan(0.9);
  expect(Math.min(...losses.slice(-6))).toBeLessThan(0.3);
});
