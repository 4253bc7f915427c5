/** TensorFlow.js on several processes: the same bits on all ranks, with scheduling and without, and what one process would get. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { repositoryRoot } from '../../scripts/repository.ts';
import { exampleScript } from '../support/fixtures.ts';
import { startRanks } from '../support/ranks.ts';

const execute = promisify(execFile);

const backends = ['cpu', 'wasm'] as const;
/** The greeting that TensorFlow.js prints without a native backend. */
const greeting = /^(=*|Hi, looks like you are running TensorFlow\.js in Node\.js\..*)$/;

async function linesOf(env: Record<string, string>, n = 2): Promise<Record<string, unknown>[][]> {
  await using world = await startRanks({ fixture: 'tfjs-training', n, env });
  const outcomes = await world.outcomes();
  for (const { code, stderr } of outcomes) {
    expect(stderr.split('\n').filter((line) => !greeting.test(line.trim()))).toEqual([]);
    expect(code).toBe(0);
  }
  return outcomes.map(({ lines }) => lines.filter((line) => typeof line === 'object') as Record<string, unknown>[]);
}

it.each(backends)(
  'on the %s backend all ranks have the same bits with and without scheduling, and train as one process does, by every optimiser and by fit',
  async (BACKEND) => {
    const [first, second] = await linesOf({ BACKEND });
    const optimizers = ['sgd', 'momentum', 'adam', 'adamax', 'adagrad', 'adadelta', 'rmsprop'];
    expect(first.map(({ name }) => name)).toEqual([...optimizers, 'fit images', 'fit text']);
    for (const line of first.slice(0, optimizers.length)) expect(line).toMatchObject({ identical: true, close: true, leaked: 0 });
    for (const line of first.slice(optimizers.length)) expect(line).toMatchObject({ identical: true, falls: true });
    const checksums = (lines: Record<string, unknown>[]): unknown[] => lines.map(({ checksum }) => checksum);
    expect(checksums(second)).toEqual(checksums(first));
  },
);

it('between hosts, three ranks', async () => {
  const [first, ...others] = await linesOf({ BACKEND: 'cpu', SCENARIO: 'adam', SHOAL_FABRICS: 'tcp' }, 3);
  expect(first).toMatchObject([{ name: 'adam', identical: true, close: true, leaked: 0 }]);
  for (const lines of others) expect(lines.map(({ checksum }) => checksum)).toEqual(first.map(({ checksum }) => checksum));
});

it('with hooks, scheduled and not: the same bits on all ranks, and the loss falls', async () => {
  const [first, second] = await linesOf({ BACKEND: 'cpu', SCENARIO: 'hooks' });
  expect(first).toMatchObject([
    { name: 'bf16', identical: true, falls: true },
    { name: 'powersgd', falls: true },
  ]);
  expect(second.map(({ checksum }) => checksum)).toEqual(first.map(({ checksum }) => checksum));
});

it('impossible arguments are refused on all ranks, and a value that is set stays', async () => {
  const ranks = await linesOf({ BACKEND: 'cpu', SCENARIO: 'errors' });
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
  expect(ranks[1].map(({ checksum }) => checksum)).toEqual(ranks[0].map(({ checksum }) => checksum));
  for (const offset of [0, said.length]) {
    const [lenient, applied] = [ranks[0][offset + 2].w, ranks[0][offset + 4].w] as number[][];
    expect(applied[0]).toBeCloseTo(lenient[0] - 0.5, 5);
  }
});

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
