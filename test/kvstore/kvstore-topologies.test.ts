/** The examples of the parameter server under the launcher: real worker and server processes, every topology. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, test } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { exampleScript } from '../support/fixtures.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const folder = temporaryFolder('topologies', afterAll);
/** Limits for a job in which no process dies: one that is late or silent is busy. */
const calm = { SHOAL_SLOW_MS: '600000', SHOAL_KV_SILENCE_MS: '60000', SHOAL_SCHEDULE_PARTITION_BYTES: '4096' };

interface Result {
  readonly losses: readonly number[];
  readonly heldOutLoss: number;
}

async function shoal(args: readonly string[]): Promise<{ code: number | null; output: string }> {
  const options = { cwd: root, env: { ...process.env, ...calm }, stdio: ['ignore', 'pipe', 'pipe'] as ['ignore', 'pipe', 'pipe'] };
  const child = spawn(process.execPath, ['dist/tools/cli/main.js', 'run', '-q', ...args], options);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text: string) => (output += text));
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, output };
}

/** Trains, and returns every worker's measurements. */
async function train(name: string, workers: number, flags: readonly string[], more: readonly string[] = []): Promise<Result[]> {
  const out = join(folder, name);
  const example = name === 'sync' ? 'examples/parameter-server/train.ts' : exampleScript('parameter-server');
  const script = [example, '--', '--steps', '12', '--batch', '4', '--out', out, ...more];
  const { code, output } = await shoal([...flags, ...script]);
  expect(output).not.toMatch(/failed|error/i);
  expect(code).toBe(0);
  return Array.from({ length: workers }, (_, worker) => JSON.parse(readFileSync(join(out, `worker-${worker}.json`), 'utf8')) as Result);
}

function expectLearning(results: readonly Result[]): void {
  for (const { losses, heldOutLoss } of results) {
    expect(losses.at(-1)).toBeLessThan(losses[0] - 0.2);
    expect(heldOutLoss).toBeLessThan(losses[0]);
  }
}

describe('the model of the demo is trained', () => {
  test('by dist_sync as by all-reduce: the same losses', async () => {
    const served = await train('sync', 2, ['--workers', '2', '--servers', '2']);
    const reduced = await train('collective', 2, ['-n', '2'], ['--store', 'collective']);
    expectLearning(served);
    served.forEach(({ losses }, worker) => {
      losses.forEach((loss, step) => expect(loss).toBeCloseTo(reduced[worker].losses[step], 4));
    });
    // In parts and by priority, the bits are the same.
    expect(await train('sync-scheduled', 2, ['--workers', '2', '--servers', '2'], ['--schedule'])).toEqual(served);
    expect(await train('collective-scheduled', 2, ['-n', '2'], ['--store', 'collective', '--schedule'])).toEqual(reduced);
  });

  test('by dist_async: nobody waits', async () => {
    expectLearning(await train('async', 2, ['--workers', '2', '--servers', '1'], ['--store', 'dist_async']));
  });

  test('by Downpour: worker groups that do not wait for each other', async () => {
    expectLearning(await train('downpour', 2, ['--workers', '2', '--worker-groups', '2', '--servers', '1']));
  });

  test('by distributed Hogwild: server groups that exchange what changed', async () => {
    const flags = ['--workers', '2', '--worker-groups', '2', '--servers', '2', '--server-groups', '2'];
    expectLearning(await train('hogwild', 2, flags));
  });
});

test('a network in two processes learns, features forward and gradients back', async () => {
  const { code, output } = await shoal(['--workers', '2', '--servers', '1', 'examples/split-network/train.ts']);
  expect(output).toMatch(/step 400\/400 loss 0\.\d+ right (8[5-9]|9\d|100)/);
  expect(code).toBe(0);
});

test('options about servers need servers', async () => {
  const { code, output } = await shoal(['-n', '1', '--replicas', '2', 'examples/ten-lines.ts']);
  expect(code).not.toBe(0);
  expect(output).toContain('need --servers');
});
