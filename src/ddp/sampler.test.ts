import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { DistributedSampler, type SamplerOptions } from './sampler.ts';

const world = (items: number, size: number, options: SamplerOptions, epoch = 0): number[][] =>
  Array.from({ length: size }, (_, rank) => {
    const sampler = new DistributedSampler(items, { ...options, group: { rank, size } });
    sampler.setEpoch(epoch);
    return [...sampler];
  });
const byNumber = (a: number, b: number): number => a - b;

const arguments_ = [fc.nat(300), fc.integer({ min: 1, max: 9 }), fc.nat(0xffffffff), fc.nat(50)] as const;

describe('DistributedSampler', () => {
  test('padded: ranks have as many, together every item, and at most size − 1 of them twice', () => {
    fc.assert(
      fc.property(...arguments_, (items, size, seed, epoch) => {
        const ranks = world(items, size, { seed }, epoch);
        expect(new Set(ranks.map((r) => r.length)).size).toBe(1);
        const seen = ranks.flat();
        expect([...new Set(seen)].toSorted(byNumber)).toEqual(Array.from({ length: items }, (_, i) => i));
        expect(seen.length - items).toBeLessThan(size);
      }),
    );
  });

  test('dropLast: ranks have as many, disjoint, fewer than size items left out', () => {
    fc.assert(
      fc.property(...arguments_, (items, size, seed, epoch) => {
        const ranks = world(items, size, { seed, dropLast: true }, epoch);
        const seen = ranks.flat();
        expect(new Set(ranks.map((r) => r.length)).size).toBe(1);
        expect(new Set(seen).size).toBe(seen.length);
        expect(items - seen.length).toBeLessThan(size);
        expect(seen.every((item) => item >= 0 && item < items)).toBe(true);
      }),
    );
  });

  test('N ranks with batch B see what one rank sees with batch N·B', () => {
    fc.assert(
      fc.property(...arguments_, fc.integer({ min: 1, max: 8 }), (items, size, seed, epoch, batch) => {
        const whole = new DistributedSampler(items, { seed });
        whole.setEpoch(epoch);
        const together = [...whole.batches(batch * size)];
        const ranks = Array.from({ length: size }, (_, rank) => {
          const sampler = new DistributedSampler(items, { seed, dropLast: true, group: { rank, size } });
          sampler.setEpoch(epoch);
          return [...sampler.batches(batch)];
        });
        for (const [k, mine] of ranks[0].entries()) {
          if (mine.length < batch) continue;
          expect(ranks.flatMap((r) => r[k]).toSorted(byNumber)).toEqual(together[k].toSorted(byNumber));
        }
      }),
    );
  });

  test('the rest of an epoch, dealt anew to any sequence of worlds, has every item once, and padding at its end only', () => {
    const changes = fc.array(fc.record({ size: fc.integer({ min: 1, max: 9 }), batches: fc.nat(4) }), { maxLength: 8 });
    fc.assert(
      fc.property(
        ...arguments_,
        fc.integer({ min: 1, max: 5 }),
        fc.boolean(),
        changes,
        (items, last, seed, epoch, batch, dropLast, before) => {
          const seen: number[] = [];
          let state = { ...new DistributedSampler(items, { seed }).stateDict(), epoch };
          for (const { size, batches } of [...before, { size: last, batches: Infinity }]) {
            const ranks = Array.from(
              { length: size },
              (_, rank) => new DistributedSampler(items, { seed, dropLast, group: { rank, size } }),
            );
            for (const sampler of ranks) sampler.loadStateDict(state);
            const dealt = ranks.map((sampler) => sampler.batches(batch));
            for (let k = 0; k < batches; k++) {
              const step = dealt.map((each) => each.next());
              if (step[0].done === true) break;
              // A step that fails has given out a batch, too: the state is that of the step before.
              for (const { value } of step) seen.push(...(value as number[]));
              const states = ranks.map((sampler) => sampler.stateDict());
              for (const each of states) expect(each).toEqual(states[0]);
              [state] = states;
            }
          }
          const twice = seen.length - new Set(seen).size;
          const most = Math.max(last, ...before.map(({ size }) => size));
          if (dropLast) {
            expect(twice).toBe(0);
            expect(items - seen.length).toBeLessThan(last);
          } else {
            expect(new Set(seen).size).toBe(items);
            expect(twice).toBeLessThan(most);
          }
        },
      ),
    );
  });

  test('the order is a function of seed and epoch', () => {
    const [first] = world(100, 1, { seed: 7 });
    expect(world(100, 1, { seed: 7 })[0]).toEqual(first);
    expect(world(100, 1, { seed: 8 })[0]).not.toEqual(first);
    expect(world(100, 1, { seed: 7 }, 1)[0]).not.toEqual(first);
    expect(world(100, 1, { seed: 7, shuffle: false })[0]).toEqual(Array.from({ length: 100 }, (_, i) => i));
  });

  test('the shuffle is uniform: each item is in each place about as often', () => {
    const counts = Array.from({ length: 4 }, () => [0, 0, 0, 0]);
    const sampler = new DistributedSampler(4, { seed: 1 });
    for (let epoch = 0; epoch < 4000; epoch++) {
      sampler.setEpoch(epoch);
      for (const [place, item] of [...sampler].entries()) counts[place][item]++;
    }
    // Binomial(4000, 1/4): mean 1000, standard deviation 27; the seed is fixed, so this either always holds or never.
    for (const count of counts.flat()) expect(Math.abs(count - 1000)).toBeLessThan(5 * 27);
  });

  test('setEpoch goes back as well as forth', () => {
    const sampler = new DistributedSampler(50, { seed: 3 });
    const first = [...sampler];
    sampler.setEpoch(1);
    expect(sampler.epoch).toBe(1);
    expect([...sampler]).not.toEqual(first);
    sampler.setEpoch(0);
    expect([...sampler]).toEqual(first);
  });

  test('batches: all of the epoch, the last one short', () => {
    const sampler = new DistributedSampler(10, { shuffle: false });
    expect([...sampler.batches(4)]).toEqual([
      [0, 1, 2, 3],
      [4, 5, 6, 7],
      [8, 9],
    ]);
  });

  test.each([
    [() => new DistributedSampler(-1), /length must be a whole number from 0 to 4294967295, not -1/],
    [() => new DistributedSampler(1.5), /length must be .*, not 1\.5/],
    [() => new DistributedSampler(1, { seed: -1 }), /'seed' must be .*, not -1/],
    [() => new DistributedSampler(1, { group: { rank: 2, size: 2 } }), /rank 2 of 2/],
    [() => new DistributedSampler(3).at(3), /position 3 .* 3 items/],
    [() => new DistributedSampler(3).setEpoch(-1), /epoch must be .*, not -1/],
    [() => [...new DistributedSampler(3).batches(0)], /batch size 0/],
  ])('refuses %s', (call, message) => {
    expect(call).toThrow(expect.objectContaining({ code: 'usage', message: expect.stringMatching(message) as string }));
  });
});
