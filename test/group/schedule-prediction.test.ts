/** `shoal tune --scheduler --predict`: for models, and for the traces that a real run left. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import type { SchedulePlan } from '../../src/tools/simulate/schedule-planner.ts';
import { shoal } from '../fixtures/launch-harness.ts';
import { exampleScript } from '../support/fixtures.ts';

interface Prediction {
  readonly layers: readonly { readonly name: string; readonly bytes: number; readonly forwardMs: number; readonly backwardMs: number }[];
  readonly workers: number;
  readonly gbitPerSecond: number;
  readonly measuredMs: number;
  readonly plan: SchedulePlan;
}

const predict = ['tune', '--scheduler', '--predict'];
const directory = temporaryFolder('predict', afterAll);

async function predictionOf(...more: string[]): Promise<Prediction> {
  const { code, stdout, stderr } = await shoal([...predict, ...more, '--json']).ended;
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return JSON.parse(stdout) as Prediction;
}

describe('shoal tune --scheduler --predict', () => {
  it('tells the possible gain of a model, or that it is not worth it', async () => {
    const { code, stdout } = await shoal([...predict, '--model', 'vgg16', '-n', '4', '--gbit', '25', '--exchange', 'parameter-server'])
      .ended;
    expect(code).toBe(0);
    expect(stdout).toMatch(/^vgg16 × 1: 16 layers, 553\.4 MB; 4 workers, parameter-server, 25 Gbit\/s\n/);
    expect(stdout).toMatch(/^no overlap +\d[\d.]+ +the passes, then all bytes, each way at once$/m);
    expect(stdout).toMatch(/^plain overlap +\d[\d.]+ +whole tensors, as they become ready$/m);
    expect(stdout).toMatch(/^scheduled +\d[\d.]+ +1\.\d\d × no overlap; partition \S+, credit \S+$/m);
    expect(stdout).toMatch(/^worth it: 1\.\d\d × no overlap/m);
    const { plan, workers } = await predictionOf('--model', 'resnet50', '--gbit', '100');
    expect(workers).toBe(8);
    expect(plan).toMatchObject({
      isWorthIt: false,
      verdict: expect.stringMatching(/^not worth it: .*little of it is left to hide/) as string,
    });
  });

  it.each([['plain'], ['scheduled']])('reads the layers of a real run that is %s, and their times', async (how) => {
    const folder = join(directory, how);
    const flags = how === 'plain' ? [] : ['--schedule'];
    const script = [exampleScript('tfjs'), '--items', '128', '--epochs', '2', ...flags];
    const run = await shoal(['run', '-n', '2', ...script], { env: { SHOAL_TRACE: folder, SHOAL_SYNC_BYTES: '0' } }).ended;
    expect(run.code, run.stderr).toBe(0);
    const { layers, workers, gbitPerSecond, measuredMs, plan } = await predictionOf(folder);
    const [between, ...own] = layers;
    expect(between).toMatchObject({ name: '(between passes)', bytes: 0 });
    // Sizes of weights and biases of a convolution and of two dense layers.
    expect(own.map(({ bytes }) => bytes / 4)).toEqual([3 * 3 * 8, 8, 288 * 64, 64, 640, 10]);
    expect(own.every(({ forwardMs, backwardMs }) => forwardMs >= 0 && backwardMs >= 0)).toBe(true);
    expect(workers).toBe(2);
    expect(gbitPerSecond).toBeGreaterThan(0);
    // All passes are a part of the step.
    const passes = layers.reduce((sum, { forwardMs, backwardMs }) => sum + forwardMs + backwardMs, 0);
    expect(plan.computeMs).toBeCloseTo(passes, 6);
    expect(passes).toBeGreaterThan(0.1 * measuredMs);
    expect(plan.boundMs).toBeLessThanOrEqual(1.1 * plan.plainOverlapMs);
    expect(plan.plainOverlapMs).toBeLessThan(10 * (plan.noOverlapMs + own.length));
  });

  it('refuses trainings that it cannot predict', async () => {
    await writeFile(join(directory, 'launcher.json'), '{}');
    const cases: [string[], RegExp][] = [
      [[...predict, directory], /has nothing of a run to report/],
      [[...predict, join(directory, 'missing')], /cannot be read/],
      [['tune', '--predict'], /--predict needs --scheduler/],
      [[...predict, '--gbit', '0'], /number above 0/],
      [[...predict, '--model', 'lenet'], /Allowed choices are vgg16/],
      [[...predict, '--workers', '3'], /unknown option '--workers'/],
    ];
    for (const [args, message] of cases) {
      const { code, stderr } = await shoal(args).ended;
      expect(stderr).toMatch(message);
      expect(code).toBe(2);
    }
  });
});
