/** TensorFlow.js on several processes: the same bits on all ranks, with scheduling and without, and what one process would get. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { repositoryRoot } from '../../scripts/repository.ts';
import { exampleScript } from '../support/fixtures.ts';
import { testWorlds } from '../support/start-worlds.ts';
import type { TestWorld } from '../support/worlds.ts';

const execute = promisify(execFile);

type Lines = readonly Record<string, unknown>[];

const checksumsOf = (lines: Lines): unknown[] => lines.map(({ checksum }) => checksum);

function expectTraining([first, second]: readonly Lines[]): void {
  const optimizers = ['sgd', 'momentum', 'adam', 'adamax', 'adagrad', 'adadelta', 'rmsprop'];
  expect(first.map(({ name }) => name)).toEqual([...optimizers, 'fit images', 'fit text']);
  for (const line of first.slice(0, optimizers.length)) expect(line).toMatchObject({ identical: true, close: true, leaked: 0 });
  for (const line of first.slice(optimizers.length)) expect(line).toMatchObject({ identical: true, falls: true });
  expect(checksumsOf(second)).toEqual(checksumsOf(first));
}

function expectAdam([first, ...others]: readonly Lines[]): void {
  expect(first).toMatchObject([{ name: 'adam', identical: true, close: true, leaked: 0 }]);
  for (const lines of others) expect(checksumsOf(lines)).toEqual(checksumsOf(first));
}

function expectHooks([first, second]: readonly Lines[]): void {
  expect(first).toMatchObject([
    { name: 'bf16', identical: true, falls: true },
    { name: 'powersgd', falls: true },
  ]);
  expect(checksumsOf(second)).toEqual(checksumsOf(first));
}

function expectErrors(ranks: readonly Lines[]): void {
  const said = [
    { what: 'missing', code: 'usage', message: expect.stringContaining("no gradient for 'unused'") as string },
    { what: 'after', code: 'usage', message: expect.stringMatching(/'w'.* second gradient|second gradient for 'w'/) as string },
    { what: 'lenient', ok: true, unused: [1, 1] },
    { what: 'others', code: 'usage', message: expect.stringContaining('for 1 variables (w') as string },
    { what: 'applied' },
    { what: 'assigned', w: [5, 5] },
    { what: 'unverified', code: 'usage', message: expect.stringContaining('verifyReplicas: after the first step') as string },
    { what: 'replicas', checksum: expect.stringMatching(/^[0-9a-f]{16}$/) as string },
    { what: 'verified', ok: true },
    {
      what: 'differing',
      code: 'mismatch',
      message: expect.stringMatching(/^replicas differ, first in 'unused': rank 1 has .*rank 0 has/) as string,
    },
    { what: 'shapes', code: 'mismatch', message: expect.stringContaining('other') as string },
    { what: 'rates', code: 'mismatch', message: expect.stringContaining('options={learningRate: 1.1} on rank 1') as string },
  ];
  for (const lines of ranks) expect(lines).toMatchObject([...said, ...said]);
  expect(checksumsOf(ranks[1])).toEqual(checksumsOf(ranks[0]));
  for (const offset of [0, said.length]) {
    const [lenient, applied] = [ranks[0][offset + 2].w, ranks[0][offset + 4].w] as number[][];
    expect(applied[0]).toBeCloseTo(lenient[0] - 0.5, 5);
  }
}

const bits = 'all ranks have the same bits with and without scheduling, and train as one process does, by every optimiser and by fit';
const scenarios: readonly (TestWorld & { readonly expectLines: (ranks: readonly Lines[]) => void })[] = [
  { name: `on the cpu backend ${bits}`, n: 2, scenario: 'cpu', expectLines: expectTraining },
  { name: `on the wasm backend ${bits}`, n: 2, scenario: 'wasm', expectLines: expectTraining },
  { name: 'between hosts, three ranks', n: 3, env: { SHOAL_FABRICS: 'tcp' }, scenario: 'adam', expectLines: expectAdam },
  {
    name: 'with hooks, scheduled and not: the same bits on all ranks, and the loss falls',
    n: 2,
    scenario: 'hooks',
    expectLines: expectHooks,
  },
  {
    name: 'impossible arguments are refused on all ranks, and a value that is set stays',
    n: 2,
    scenario: 'errors',
    expectLines: expectErrors,
  },
];

// TensorFlow.js takes a process longer to load than most of these trainings, so the same processes do them all.
testWorlds('tfjs-training', scenarios, async ({ linesOf }, { expectLines }) => expectLines(await linesOf()));

it('the example learns, with the same losses when it is scheduled', async () => {
  const run = async (example: string, ...more: string[]): Promise<{ losses: number[]; weights: number[][] }[]> => {
    const script = [example, '--json', '--items', '256', '--epochs', '3', ...more];
    const { stdout } = await execute(process.execPath, ['dist/tools/cli/main.js', 'run', '-n', '2', ...script], { cwd: repositoryRoot });
    const lines = stdout.split('\n').flatMap((line) => /^\[rank (\d)\] (\{.*\})$/.exec(line)?.slice(1) ?? []);
    const said = new Map([
      [lines[0], lines[1]],
      [lines[2], lines[3]],
    ]);
    return ['0', '1'].map((rank) => JSON.parse(said.get(rank) ?? '{}') as { losses: number[]; weights: number[][] });
  };
  const plain = await run('examples/tfjs/train.ts');
  expect(await run(exampleScript('tfjs'), '--schedule')).toEqual(plain);
  expect(plain[1].weights).toEqual(plain[0].weights);
  const [{ losses }] = plain;
  expect(losses).toHaveLength(12);
  expect(Math.min(...losses.slice(-3))).toBeLessThan(losses[0] - 0.1);
});
