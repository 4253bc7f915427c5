/** The tuner on trainings where the time of a step at each point is known. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { PointSchedule } from './point-schedule.ts';
import { documentedSpace, Tuner, type PointChange, type TunedPoint, type TunerOptions } from './tuner.ts';

const million = 4e6;

class Training {
  readonly tuner: Tuner;
  readonly schedule = new PointSchedule();
  readonly changes: PointChange[] = [];
  point: TunedPoint = {};
  step = 0;
  nowMs = 0;
  #stepMs: (point: TunedPoint) => number;

  constructor(options: Partial<TunerOptions>, stepMs: (point: TunedPoint) => number) {
    this.tuner = new Tuner({ space: documentedSpace('parameter-server'), random: seededRandom(1), ...options });
    this.#stepMs = stepMs;
  }

  run(steps: number): void {
    for (let left = steps; left > 0; left--) {
      this.point = this.schedule.at(this.step)?.point ?? this.point;
      this.nowMs += this.#stepMs(this.point);
      const change = this.tuner.record(this.step, this.nowMs);
      this.step++;
      if (change === undefined) continue;
      this.changes.push(change);
      this.schedule.add(change);
    }
  }

  becomes(stepMs: (point: TunedPoint) => number): void {
    this.#stepMs = stepMs;
  }
}

/** Times of steps that are shortest with a credit of `best` million parameters. */
function fastestAt(best: number): (point: TunedPoint) => number {
  return ({ creditBytes = million }) => 50 + (creditBytes / million - best) ** 2;
}

/** Steps until convergence: one measurement that does not count, 14 points, and at most three more of each of the best four. */
const stepsToConverge = 101 + (14 + 12) * 111;

it('measures 14 points of 100 steps, the best four again, then stays at the best', () => {
  const training = new Training({}, fastestAt(6));
  training.run(stepsToConverge);
  expect(training.tuner.best).toBeDefined();
  // Two rounds tell four points apart when steps take as long each time.
  expect(training.changes).toHaveLength(14 + 2 * 4 + 1);
  expect(training.changes.map(({ isFinal }) => isFinal)).toEqual([...Array.from({ length: 22 }, () => false), true]);
  expect(new Set(training.changes.map(({ point }) => point.creditBytes)).size).toBeLessThanOrEqual(15);
  const again = training.changes.slice(14, 22).map(({ point }) => point.creditBytes);
  expect(again.slice(4)).toEqual([again[1], again[2], again[3], again[0]]);
  // Changes apply ten steps after they were decided.
  expect(training.changes[0].atStep).toBe(110);
  expect(training.changes[1].atStep).toBe(110 + 100 + 10);
  training.run(1000);
  expect(training.changes).toHaveLength(23);
  expect(training.point.creditBytes).toBeGreaterThan(5.4 * million);
  expect(training.point.creditBytes).toBeLessThan(6.6 * million);
});

it('tunes credit and partition together, within the space of the document', () => {
  const space = documentedSpace('all-reduce');
  const stepMs = ({ creditBytes = 0, partitionBytes = 0 }: TunedPoint): number =>
    50 + 0.02 * (creditBytes / million - 30) ** 2 + 0.1 * (partitionBytes / million - 10) ** 2;
  const training = new Training({ space }, stepMs);
  training.run(stepsToConverge);
  for (const { point } of training.changes) {
    expect(Object.keys(point)).toEqual(['creditBytes', 'partitionBytes']);
    expect(point.creditBytes).toBeGreaterThanOrEqual(4 * million);
    expect(point.creditBytes).toBeLessThanOrEqual(64 * million);
    expect(point.partitionBytes).toBeGreaterThanOrEqual(2 * million);
    expect(point.partitionBytes).toBeLessThanOrEqual(32 * million);
  }
  expect(50 / stepMs(training.point)).toBeGreaterThan(0.97);
});

it('measures nothing again when one candidate is asked for', () => {
  const training = new Training({ finalists: 1 }, fastestAt(6));
  training.run(101 + 14 * 111);
  expect(training.changes).toHaveLength(15);
  expect(training.tuner.best).toBeDefined();
});

it('tells points apart that are closer than one measurement tells', () => {
  // A few per cent of each measurement are other load of the machine, and some have a pause.
  const exact = ({ creditBytes = 0, partitionBytes = 1 }: TunedPoint): number => {
    const [credit, partition] = [creditBytes / million, partitionBytes / million];
    return 100 + 20 / partition + 0.7 * partition + (30 * Math.max(0, partition - credit)) / partition + 0.1 * credit;
  };
  const chosen = (seed: number, finalists: number): number => {
    const random = seededRandom(seed);
    let [count, factor] = [-1, 1];
    const space = documentedSpace('all-reduce');
    const training: Training = new Training({ random, space, stepsPerPoint: 6, stepsAhead: 1, finalists }, (point) => {
      if (training.changes.length > count) factor = 1 + 0.04 * (random.next() - 0.5) + (random.next() < 0.1 ? 0.2 : 0);
      count = training.changes.length;
      return exact(point) * factor;
    });
    training.run(7 + (14 + 12) * 8);
    expect(training.tuner.best).toBeDefined();
    return exact(training.point);
  };
  const seeds = Array.from({ length: 40 }, (_, index) => index + 1);
  const meanOf = (finalists: number): number => seeds.reduce((sum, seed) => sum + chosen(seed, finalists), 0) / seeds.length;
  expect(meanOf(4)).toBeLessThan(meanOf(1));
});

it('begins again when steps take longer for good, and not for one pause', () => {
  const training = new Training({}, fastestAt(6));
  training.run(stepsToConverge + 500);
  training.nowMs += 60_000;
  training.run(500);
  expect(training.tuner.best).toBeDefined();
  training.becomes(fastestAt(14));
  training.run(500);
  expect(training.tuner.best).toBeUndefined();
  training.run(stepsToConverge);
  expect(training.tuner.best).toBeDefined();
  expect(training.point.creditBytes).toBeGreaterThan(12.6 * million);
});

it('goes on with a point of an earlier run, and tunes anew when the time of steps has changed', () => {
  const training = new Training({}, fastestAt(6));
  training.run(2);
  const change = training.tuner.resume(2, { creditBytes: 6 * million }, 50);
  expect(change).toEqual({ atStep: 12, point: { creditBytes: 6 * million }, isFinal: true });
  training.step = 3;
  training.schedule.add(change);
  training.run(1000);
  expect(training.changes).toEqual([]);
  expect(training.tuner).toMatchObject({ convergedMs: 50, best: { creditBytes: 6 * million } });
  training.becomes(fastestAt(14));
  training.run(stepsToConverge + 300);
  expect(training.changes.length).toBeGreaterThan(10);
  expect(() => training.tuner.resume(9999, { partitionBytes: 5 })).toThrow(expect.objectContaining({ code: 'usage' }));
});

describe('a schedule of changes', () => {
  const change = (atStep: number): PointChange => ({ atStep, point: { creditBytes: atStep }, isFinal: false });

  it('holds from its step on, in whatever order steps are asked for', () => {
    const schedule = new PointSchedule();
    schedule.add(change(3));
    schedule.add(change(5));
    expect([7, 0, 3, 4, 5, 2].map((step) => schedule.at(step)?.point.creditBytes)).toEqual([5, undefined, 3, 3, 5, undefined]);
  });

  it('refuses a change that comes too late, or out of order', () => {
    const schedule = new PointSchedule();
    schedule.at(4);
    expect(() => schedule.add(change(4))).toThrow(expect.objectContaining({ code: 'mismatch' }));
    schedule.add(change(10));
    expect(() => schedule.add(change(10))).toThrow(expect.objectContaining({ code: 'protocol' }));
  });
});

describe('bad input', () => {
  const good = { space: documentedSpace('parameter-server'), random: seededRandom(1) };

  it.each<[string, () => unknown]>([
    ['nothing to tune', () => new Tuner({ ...good, space: {} })],
    ['a misspelt setting', () => new Tuner({ ...good, space: { credit: { least: 1, most: 2 } } as never })],
    ['an empty range', () => new Tuner({ ...good, space: { creditBytes: { least: 2, most: 2 } } })],
    ['a range without an end', () => new Tuner({ ...good, space: { creditBytes: { least: 2, most: Infinity } } })],
    ['a credit of nothing', () => new Tuner({ ...good, space: { creditBytes: { least: 0, most: 2 } } })],
    ['one point', () => new Tuner({ ...good, points: 1 })],
    ['too few steps', () => new Tuner({ ...good, stepsPerPoint: 5 })],
    ['changes at once', () => new Tuner({ ...good, stepsAhead: 0 })],
    ['no candidate', () => new Tuner({ ...good, finalists: 0 })],
    ['half a round', () => new Tuner({ ...good, finalRounds: 0.5 })],
    ['drift that is none', () => new Tuner({ ...good, driftShare: 0 })],
    ['steps that go back', () => [1, 1].map((step) => new Training({}, fastestAt(6)).tuner.record(-step, 0))],
  ])('%s is refused', (_, run) => {
    expect(run).toThrow(expect.objectContaining({ code: 'usage' }));
  });
});
