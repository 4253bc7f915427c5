/** Ranks that tune together, in a world where the time of a step at each point is known: each calls its tensors in an order of
 *  its own, and their messages take some steps. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { seededRandom } from '../../base/random.ts';
import { StepTuning, type PointMemory, type RememberedPoint } from './step-tuning.ts';
import { documentedSpace, spaceOf, type PointChange, type TunedPoint, type TuningSpec } from './tuner.ts';

const million = 4e6;

class World {
  readonly clock = new VirtualClock();
  readonly ranks: StepTuning[];
  /** Points under which the calls of each tensor were cut, by rank. */
  readonly cuts: Map<string, TunedPoint | undefined>[];
  readonly applied: PointChange[][];
  readonly kept = new Map<string, RememberedPoint>();
  readonly #mail: { readonly arrivesInStep: number; readonly rank: number; readonly change: PointChange }[] = [];
  readonly #random = seededRandom(3);
  step = 0;
  stepMs: (point: TunedPoint) => number;

  constructor(options: { spec: TuningSpec; ranks?: number; stepMs: (point: TunedPoint) => number; kept?: Map<string, RememberedPoint> }) {
    const { spec, ranks = 3, stepMs, kept } = options;
    this.stepMs = stepMs;
    if (kept) this.kept = kept;
    const memory: PointMemory = { recall: (model) => this.kept.get(model), keep: (model, point) => void this.kept.set(model, point) };
    this.cuts = Array.from({ length: ranks }, () => new Map());
    this.applied = Array.from({ length: ranks }, () => []);
    this.ranks = Array.from(
      { length: ranks },
      (_, rank) =>
        new StepTuning({
          spec,
          leads: rank === 0,
          clock: this.clock,
          random: seededRandom(1),
          memory,
          tell: (change) => {
            for (let other = 1; other < ranks; other++) {
              this.#mail.push({ arrivesInStep: this.step + this.#random.integer(5), rank: other, change });
            }
          },
          onApplied: (change) => void this.applied[rank].push(change),
        }),
    );
  }

  run(steps: number): void {
    const names = ['conv', 'dense', 'bias'];
    for (let left = steps; left > 0; left--) {
      for (const mail of this.#mail.splice(0)) {
        if (mail.arrivesInStep <= this.step) this.ranks[mail.rank].receive(mail.change);
        else this.#mail.push(mail);
      }
      for (const [rank, tuning] of this.ranks.entries()) {
        const first = this.#random.integer(names.length);
        for (let each = 0; each < names.length; each++) {
          const name = names[(first + each) % names.length];
          this.cuts[rank].set(`${name} ${this.step}`, tuning.begin(name, name.length * 1000));
        }
      }
      const { point } = this.applied[0].at(-1) ?? { point: {} };
      this.clock.advance(this.stepMs(point));
      this.step++;
    }
  }
}

/** Steps until convergence: one measurement that does not count, 14 points, and at most three more of each of the best four. */
const stepsToConverge = 102 + (14 + 12) * 111;
const noisy = (seed: number): ((ms: number) => number) => {
  const random = seededRandom(seed);
  return (ms) => ms * (0.97 + 0.06 * random.next());
};

describe('ranks that tune together', () => {
  it.each([1, 2, 3])('find the credit to a tenth in 15 points of noisy steps, and cut every tensor alike (seed %i)', (seed) => {
    const noise = noisy(seed);
    const stepMs = ({ creditBytes = 4 * million }: TunedPoint): number => noise(50 + (creditBytes / million - 10) ** 2);
    const world = new World({ spec: { space: documentedSpace('parameter-server') }, stepMs });
    world.run(stepsToConverge + 50);
    const final = world.applied[0].filter(({ isFinal }) => isFinal);
    expect(final).toEqual([world.applied[0].at(-1)]);
    expect(new Set(world.applied[0].map(({ point }) => point.creditBytes)).size).toBeLessThanOrEqual(15);
    const { creditBytes = 0 } = final[0].point;
    expect(Math.abs(creditBytes / million - 10)).toBeLessThan(1);
    for (const rank of [1, 2]) {
      expect(world.applied[rank]).toEqual(world.applied[0]);
      expect(world.cuts[rank]).toEqual(world.cuts[0]);
    }
  });

  it('find credit and partition whose step is as short as 0.97 of the best', () => {
    const noise = noisy(5);
    const exact = ({ creditBytes = 16e6, partitionBytes = 4e6 }: TunedPoint): number =>
      50 + 0.02 * (creditBytes / million - 30) ** 2 + 0.1 * (partitionBytes / million - 10) ** 2;
    const world = new World({ spec: { space: documentedSpace('all-reduce') }, stepMs: (point) => noise(exact(point)) });
    world.run(stepsToConverge + 50);
    expect(world.applied[0].at(-1)?.isFinal).toBe(true);
    expect(50 / exact(world.applied[0].at(-1)?.point ?? {})).toBeGreaterThan(0.97);
  });

  it('remember the found point, go on with it in the next run, and tune anew when its time has changed', () => {
    const spec = { space: documentedSpace('parameter-server'), stepsPerPoint: 20 };
    const at = (best: number) => (point: TunedPoint) => 50 + ((point.creditBytes ?? 4 * million) / million - best) ** 2;
    const first = new World({ spec, stepMs: at(6) });
    first.run(900);
    expect(first.kept.size).toBe(1);
    const [[model, remembered]] = first.kept;
    expect(model).toMatch(/^3-tensors-13000-bytes-[0-9a-f]{16}$/);
    expect(Math.abs((remembered.point.creditBytes ?? 0) / million - 6)).toBeLessThan(0.6);
    expect(remembered.stepMs).toBeCloseTo(50, 0);

    const second = new World({ spec, stepMs: at(6), kept: first.kept });
    second.run(900);
    expect(second.applied).toEqual([0, 1, 2].map(() => [{ atStep: 11, point: remembered.point, isFinal: true }]));

    const elsewhere = new World({ spec, stepMs: at(14), kept: first.kept });
    elsewhere.run(1300);
    expect(elsewhere.applied[0].length).toBeGreaterThan(10);
    expect(Math.abs((elsewhere.applied[1].at(-1)?.point.creditBytes ?? 0) / million - 14)).toBeLessThan(1.4);
  });
});

it('a change that comes too late is refused, or holds from the next step on', () => {
  const options = {
    spec: { space: documentedSpace('parameter-server') },
    leads: false,
    clock: new VirtualClock(),
    random: seededRandom(1),
    tell: () => undefined,
    onApplied: () => undefined,
  };
  const change = { atStep: 2, point: { creditBytes: 5 }, isFinal: false };
  for (const late of ['refuse', 'apply'] as const) {
    const tuning = new StepTuning({ ...options, late });
    for (let step = 0; step < 4; step++) tuning.begin('w', 4);
    if (late === 'refuse') expect(() => tuning.receive(change)).toThrow(expect.objectContaining({ code: 'mismatch' }));
    else {
      tuning.receive(change);
      expect(tuning.begin('other', 4)).toBeUndefined();
      expect(tuning.begin('w', 4)).toEqual({ creditBytes: 5 });
    }
  }
});

it('names that never come again are refused', () => {
  const tuning = new StepTuning({
    spec: { space: spaceOf('all-reduce', { credit: true, partition: false }) },
    leads: false,
    clock: new VirtualClock(),
    random: seededRandom(1),
    tell: () => undefined,
    onApplied: () => undefined,
  });
  for (let each = 0; each < 65_536; each++) tuning.begin(`w${each}`, 4);
  expect(() => tuning.begin('one more', 4)).toThrow(expect.objectContaining({ code: 'usage' }));
});
