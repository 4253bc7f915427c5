import fc from 'fast-check';
import { expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { HashStore } from '../store/hash-store.ts';
import { StepBoundaries } from './step-boundaries.ts';

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

/** Ranks whose steps end when all have begun them. */
class Steps {
  readonly #size: number;
  readonly #begun: { count: number; resolve: () => void; all: Promise<void> }[] = [];

  constructor(size: number) {
    this.#size = size;
  }

  async step(index: number): Promise<void> {
    if (this.#begun[index] === undefined) {
      let resolve!: () => void;
      const all = new Promise<void>((done) => (resolve = done));
      this.#begun[index] = { count: 0, resolve, all };
    }
    const begun = this.#begun[index];
    if (++begun.count === this.#size) begun.resolve();
    await begun.all;
  }
}

/** The boundary at which each rank is told to grow; 0: none. @param lag steps whose call is awaited later. */
async function run(knowing: readonly number[], delays: readonly number[], { steps = 12, lag = 0 } = {}): Promise<number[]> {
  const store = new HashStore({ clock: new VirtualClock() });
  const all = new Steps(knowing.length);
  return Promise.all(
    knowing.map(async (from, rank) => {
      const group = { size: knowing.length, rank, name: 'world', store };
      let isWaiting = false;
      const boundaries = new StepBoundaries(group, '1', () => isWaiting);
      const calls: Promise<void>[] = [];
      for (let step = 0; step < steps; step++) {
        calls.push(all.step(step));
        if (step >= lag) await calls[step - lag];
        await turns(delays[(rank * 7 + step) % delays.length]);
        if (step >= from) isWaiting = true;
        try {
          await boundaries.pass();
        } catch (error) {
          expect(error).toMatchObject({ code: 'aborted' });
          expect(boundaries.isDue).toBe(true);
          return step + 1;
        }
      }
      return 0;
    }),
  );
}

it('all ranks grow at the same boundary, whenever each of them hears of one that waits', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.integer({ min: 0, max: 6 }), { minLength: 1, maxLength: 5 }),
      fc.array(fc.integer({ min: 0, max: 6 }), { minLength: 1, maxLength: 9 }),
      fc.integer({ min: 0, max: 1 }),
      async (knowing, delays, lag) => {
        const at = await run(knowing, delays, { lag });
        expect(new Set(at).size).toBe(1);
        const latest = Math.max(...knowing) + 1 + 2;
        // Where calls are awaited a step later, the rank that hears last may be one boundary behind the others.
        expect(lag === 0 ? [latest] : [latest - 1, latest]).toContain(at[0]);
      },
    ),
    { numRuns: 60 },
  );
});

it('nobody grows while one rank has heard of nobody, or the steps end before', async () => {
  expect(await run([0, 0, 100], [1])).toEqual([0, 0, 0]);
  expect(await run([0, 11], [1, 3])).toEqual([0, 0]);
});

it('a rank whose steps need no other is told so', async () => {
  const store = new HashStore({ clock: new VirtualClock() });
  const groups = [0, 1].map((rank) => ({ size: 2, rank, name: 'world', store }));
  const [ahead, behind] = groups.map((group) => new StepBoundaries(group, '1', () => true));
  for (let step = 0; step < 9; step++) await ahead.pass();
  await behind.pass();
  await expect(ahead.pass()).rejects.toMatchObject({
    code: 'usage',
    message: expect.stringMatching(/is at boundary 10 .* grow at boundary 3; every step needs/) as string,
  });
});
