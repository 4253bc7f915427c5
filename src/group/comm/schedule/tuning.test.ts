/** Scheduled groups that tune their credit and partition, on a clock that says how long a step takes under which point. */
import { readFileSync, writeFileSync } from 'node:fs';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../../base/testing/temporary-folder.ts';
import { must } from '../../../base/assert.ts';
import { VirtualClock } from '../../../base/clock.ts';
import { silentLogger } from '../../../base/log.ts';
import { seededRandom } from '../../../base/random.ts';
import { chromeTrace } from '../../../trace/chrome.ts';
import { createRecorder } from '../../../trace/recorder.ts';
import type { ScheduledGroup, SchedulingStatus } from '../../caller/types.ts';
import { startRanks } from '../../testing/in-process-world.ts';
import { rememberedPoints } from './remembered-points.ts';

let folder: string;

beforeEach(() => {
  folder = temporaryFolder('points');
});

const tensors = [300, 700, 40].map((count, index) => ({ name: `layer ${index}`, count }));
const space = { creditBytes: { least: 400, most: 4000 }, partitionBytes: { least: 200, most: 2000 } };
const tuning = { space, stepsPerPoint: 8, stepsAhead: 3 };
/** One measurement that does not count, 14 points, the best of them again, and some steps under the best. */
const steps = 10 + (14 + 12) * 12 + 12;

async function train(
  groups: readonly ScheduledGroup[],
  clock: VirtualClock,
  options: { readonly steps: number; readonly stepMs: (status: SchedulingStatus) => number },
): Promise<SchedulingStatus[][]> {
  const seen: SchedulingStatus[][] = [];
  const random = seededRandom(9);
  for (let step = 0; step < options.steps; step++) {
    await Promise.all(
      groups.map(async (group) => {
        const first = random.integer(tensors.length);
        const order = tensors.map((_, index) => tensors[(first + index) % tensors.length]);
        const values = order.map(({ count }) => new Float32Array(count).fill(group.rank + 1));
        const works = order.map(({ name }, index) => group.allReduce(values[index], { name, priority: 1 }));
        // Not of the model: it has no name.
        const loss = new Float32Array([1]);
        await Promise.all([...works, group.allReduce(loss)]);
        const sum = (groups.length * (groups.length + 1)) / 2;
        if (values.some((array) => array.some((value) => value !== sum)) || loss[0] !== groups.length) throw new Error('a wrong sum');
      }),
    );
    seen.push(groups.map(({ scheduling }) => scheduling));
    clock.advance(options.stepMs(groups[0].scheduling));
  }
  return seen;
}

const best = { creditBytes: 2500, partitionBytes: 900 };
const noise = seededRandom(4);
const exactMs = ({ creditBytes, partitionBytes }: SchedulingStatus): number =>
  20 + 6 * ((creditBytes - best.creditBytes) / 2000) ** 2 + 6 * ((partitionBytes - best.partitionBytes) / 1000) ** 2;
const stepMs = (status: SchedulingStatus): number => exactMs(status) * (0.98 + 0.04 * noise.next());

describe('a scheduled group that is tuned', () => {
  it('cuts and admits by each point on all ranks from the same step on, finds the best, and remembers it', async () => {
    const clock = new VirtualClock();
    const recorders = [0, 1, 2].map(() => createRecorder({ clock, thread: 'comm' }));
    const settings = { scheduleTuningDir: folder };
    const world = await startRanks(3, { kind: 'network', clock, settings, trace: (rank) => recorders[rank] });
    const groups = await world.each((group) => group.scheduled({ creditBytes: 2000, partitionBytes: 1000, tuning }));
    const seen = await train(groups, clock, { steps, stepMs });
    for (const statuses of seen) expect(statuses).toEqual([statuses[0], statuses[0], statuses[0]]);
    const points = seen.map(([status]) => status).filter((status, step) => status !== seen[step - 1]?.[0]);
    expect(points[0]).toEqual({ creditBytes: 2000, partitionBytes: 1000, tuning: 'tuning', sinceStep: 0 });
    const chosen = points[points.length - 1];
    expect(points.filter(({ tuning: state }) => state === 'converged')).toEqual([chosen]);
    expect(20 / exactMs(chosen)).toBeGreaterThan(0.97);

    for (const [rank, recorder] of recorders.entries()) {
      const { traceEvents } = chromeTrace({ rank, host: 'here', pid: 1, offsetMs: 0 }, [recorder.snapshot()]);
      const parts = traceEvents.filter(({ name, args }) => name === 'all-reduce COMMUNICATION' && args?.tensor === 'layer 1');
      const cuts = new Set(parts.map(({ args }) => Number(args?.parts)));
      expect([...cuts].toSorted((a, b) => a - b)).toEqual(
        [...new Set(seen.map(([{ partitionBytes }]) => Math.ceil(2800 / (partitionBytes - (partitionBytes % 4)))))].toSorted(
          (a, b) => a - b,
        ),
      );
    }

    const [file, ...more] = await readdir(folder);
    expect(more).toEqual([]);
    expect(file).toMatch(/^3-tensors-4160-bytes-[0-9a-f]{16}--1-1-1--/);
    const { creditBytes, partitionBytes } = chosen;
    expect(JSON.parse(await readFile(join(folder, file), 'utf8'))).toMatchObject({ point: { creditBytes, partitionBytes } });

    // The next run goes on with it at once.
    const next = await startRanks(3, { kind: 'network', clock, settings });
    const again = await next.each((group) => group.scheduled({ creditBytes: 2000, partitionBytes: 1000, tuning }));
    const after = await train(again, clock, { steps: 6, stepMs });
    expect(after[5][2]).toEqual({ creditBytes, partitionBytes, tuning: 'converged', sinceStep: 4 });
    // A file that is damaged counts as none.
    await writeFile(join(folder, file), '{');
    const last = await startRanks(3, { kind: 'network', clock, settings });
    const anew = await last.each((group) => group.scheduled({ creditBytes: 2000, partitionBytes: 1000, tuning }));
    expect((await train(anew, clock, { steps: 6, stepMs }))[5][0].tuning).toBe('tuning');
    for (const each of [world, next, last]) await each[Symbol.asyncDispose]();
  });

  it.each<[string, Record<string, unknown>, RegExp]>([
    ['a world of other ranks', { world: '4-4' }, /is not used: it is of model \S+, world 4-4, network/],
    ['another model', { model: 'other' }, /is not used: it is of model other/],
    ['another network', { network: 'avian' }, /is not used: .*network avian/],
    ['a later version', { version: 2 }, /is not used: .*version must be 1, not 2$/],
    ['a point that is none', { point: 7 }, /is not used: .*point must be an object, not 7$/],
  ])('is not begun with the point of %s', (_, change, expected) => {
    const warnings: string[] = [];
    const log = { ...silentLogger, warn: (message: string) => void warnings.push(message) };
    const points = must(rememberedPoints({ folder, world: '2', network: 'shm', space, log }), () => 'points are kept');
    points.keep('model', { point: best });
    expect(points.recall('model')).toEqual({ point: best });
    const path = join(folder, 'model--2--shm.json');
    writeFileSync(path, JSON.stringify({ ...(JSON.parse(readFileSync(path, 'utf8')) as object), ...change }));
    expect(points.recall('model')).toBeUndefined();
    expect(warnings).toEqual([expect.stringMatching(expected)]);
  });

  it('tunes the credit alone, or the partition, by the variables of the original', async () => {
    const clock = new VirtualClock();
    await using world = await startRanks(2, { clock, settings: { scheduleTuningDir: '-', scheduleCreditTuning: true } });
    const groups = await world.each((group) => group.scheduled());
    expect(groups[0].scheduling.tuning).toBe('tuning');
    const seen = await train(groups, clock, { steps: 120, stepMs: () => 10 });
    expect(seen[119][1]).toMatchObject({ tuning: 'tuning', partitionBytes: 4e6, sinceStep: 110 });
    expect(seen[119][1].creditBytes).toBeGreaterThan(16e6 - 1);
    expect(seen[119][1].creditBytes).toBeLessThan(256e6 + 1);
  });

  it('is not by a rank that tunes alone', async () => {
    await using world = await startRanks(2);
    const opening = world.groups.map((group, rank) => group.scheduled({ tuning: rank === 0 }));
    for (const each of opening)
      await expect(each).rejects.toMatchObject({
        code: 'mismatch',
        message: expect.stringMatching(
          /not tuned.*tuned: creditBytes 16000000-256000000, partitionBytes|tuned: creditBytes .*not tuned/s,
        ) as string,
      });
  });

  it('is not by ranks that tune in other spaces', async () => {
    await using world = await startRanks(2);
    const partitions = [200, 800].map((least) => ({ ...space, partitionBytes: { least, most: 2000 } }));
    const opening = world.groups.map((group, rank) => group.scheduled({ tuning: { ...tuning, space: partitions[rank] } }));
    for (const each of await Promise.allSettled(opening)) expect(each).toMatchObject({ status: 'rejected', reason: { code: 'mismatch' } });
    for (const each of opening)
      await expect(each).rejects.toMatchObject({
        message: expect.stringMatching(/rank 0: .*partitionBytes 200-2000.*rank 1: .*partitionBytes 800-2000/s) as string,
      });
  });

  it.each<[string, unknown]>([
    ['a tuning of another kind', 5],
    ['a space of nothing', { space: {} }],
    ['a credit of zero', { space: { creditBytes: { least: 0, most: 5 } } }],
    ['more than the memory', { space: { creditBytes: { least: 1, most: 2 ** 52 } } }],
    ['a misspelt option', { pointz: 5 }],
  ])('refuses %s', async (_, options) => {
    await using world = await startRanks(1);
    await expect(world.groups[0].scheduled({ tuning: options as never })).rejects.toMatchObject({ code: 'usage' });
  });

  it('is not set by hand', async () => {
    await using world = await startRanks(1);
    const group = await world.groups[0].scheduled({ tuning: true });
    expect(() => group.setScheduling({ creditBytes: 5 })).toThrow(expect.objectContaining({ code: 'usage' }));
    const fixed = await world.groups[0].scheduled({ creditBytes: 8, partitionBytes: 4 });
    fixed.setScheduling({ creditBytes: 5 });
    expect(fixed.scheduling).toEqual({ creditBytes: 5, partitionBytes: 4, tuning: 'fixed', sinceStep: 0 });
  });
});
