/** Cases of MPICH's nonblocking and persistent programs: calls that are started, several at a time, and the same call many times. */
import { expect } from 'vitest';
import type { ProcessGroup, Work } from '../../../src/group/caller/types.ts';
import { seededRandom } from '../../../src/base/random.ts';
import { expectElements, integers, ranksOf, triangle, type OnRanks } from '../support/shared-worlds.ts';
import type { SuiteCases } from '../support/suite-cases.ts';

/** A call on buffers of its own: filled, started, and checked as often as one likes. */
interface Started {
  readonly name: string;
  prepare(group: ProcessGroup, count: number): { fill(round: number): void; start(): Work; check(round: number): void };
}

const sumAt = (group: ProcessGroup, i: number, round: number): number => group.size * (i + round) + triangle(group.size);

const started: readonly Started[] = [
  {
    name: 'broadcast',
    prepare: (group, count) => {
      const { data } = group.tensor('int32', [count]);
      const root = group.size - 1;
      return {
        fill: (round) => data.forEach((_, i) => (data[i] = group.rank === root ? i + round : -1)),
        start: () => group.broadcast(data, { root }),
        check: (round) => expectElements(data, count, (i) => i + round, 'broadcast'),
      };
    },
  },
  {
    name: 'allReduce',
    prepare: (group, count) => {
      const tensor = group.tensor('int32', [count]);
      return {
        fill: (round) => tensor.data.forEach((_, i) => (tensor.data[i] = group.rank + i + round)),
        start: () => group.allReduce(tensor),
        check: (round) => expectElements(tensor.data, count, (i) => sumAt(group, i, round), 'allReduce'),
      };
    },
  },
  {
    name: 'reduce',
    prepare: (group, count) => {
      const data = new Int32Array(count);
      return {
        fill: (round) => data.forEach((_, i) => (data[i] = group.rank + i + round)),
        start: () => group.reduce(data),
        check: (round) =>
          expectElements(data, count, (i) => (group.rank === 0 ? sumAt(group, i, round) : group.rank + i + round), 'reduce'),
      };
    },
  },
  {
    name: 'allGather',
    prepare: (group, count) => {
      const [output, input] = [new Int32Array(count * group.size), new Int32Array(count)];
      return {
        fill: (round) => {
          output.fill(-1);
          input.forEach((_, i) => (input[i] = group.rank * count + i + round));
        },
        start: () => group.allGather(output, input),
        check: (round) => expectElements(output, count * group.size, (i) => i + round, 'allGather'),
      };
    },
  },
  {
    name: 'allGather with counts',
    prepare: (group, count) => {
      const counts = ranksOf(group.size).map((rank) => (rank === 0 ? 0 : count));
      const from = (group.rank - 1) * count;
      const [output, input] = [new Int32Array(count * (group.size - 1)), new Int32Array(counts[group.rank])];
      return {
        fill: (round) => {
          output.fill(-1);
          input.forEach((_, i) => (input[i] = from + i + round));
        },
        start: () => group.allGather(output, input, { counts }),
        check: (round) => expectElements(output, output.length, (i) => i + round, 'allGather with counts'),
      };
    },
  },
  {
    name: 'gather',
    prepare: (group, count) => {
      const output = group.rank === 0 ? new Int32Array(count * group.size) : null;
      const input = new Int32Array(count);
      return {
        fill: (round) => {
          output?.fill(-1);
          input.forEach((_, i) => (input[i] = group.rank * count + i + round));
        },
        start: () => group.gather(output, input),
        check: (round) => output && expectElements(output, count * group.size, (i) => i + round, 'gather'),
      };
    },
  },
  {
    name: 'gather with counts',
    prepare: (group, count) => {
      const counts = ranksOf(group.size).map((rank) => count + rank);
      const from = group.rank * count + triangle(group.rank);
      const output = group.rank === 0 ? new Int32Array(count * group.size + triangle(group.size)) : null;
      const input = new Int32Array(counts[group.rank]);
      return {
        fill: (round) => {
          output?.fill(-1);
          input.forEach((_, i) => (input[i] = from + i + round));
        },
        start: () => group.gather(output, input, { counts }),
        check: (round) => output && expectElements(output, output.length, (i) => i + round, 'gather with counts'),
      };
    },
  },
  {
    name: 'scatter',
    prepare: (group, count) => {
      const input = group.rank === 0 ? new Int32Array(count * group.size) : null;
      const output = new Int32Array(count);
      return {
        fill: (round) => {
          output.fill(-1);
          input?.forEach((_, i) => (input[i] = i + round));
        },
        start: () => group.scatter(output, input),
        check: (round) => expectElements(output, count, (i) => group.rank * count + i + round, 'scatter'),
      };
    },
  },
  {
    name: 'scatter with counts',
    prepare: (group, count) => {
      const counts = ranksOf(group.size).map((rank) => count + rank);
      const input = group.rank === 0 ? new Int32Array(count * group.size + triangle(group.size)) : null;
      const output = new Int32Array(counts[group.rank]);
      const from = group.rank * count + triangle(group.rank);
      return {
        fill: (round) => {
          output.fill(-1);
          input?.forEach((_, i) => (input[i] = i + round));
        },
        start: () => group.scatter(output, input, { counts }),
        check: (round) => expectElements(output, output.length, (i) => from + i + round, 'scatter with counts'),
      };
    },
  },
  {
    name: 'allToAll',
    prepare: (group, count) => {
      const [output, input] = [new Int32Array(count * group.size), new Int32Array(count * group.size)];
      return {
        fill: (round) => {
          output.fill(-1);
          input.forEach((_, i) => (input[i] = group.rank * 1000 + Math.floor(i / count) + round));
        },
        start: () => group.allToAll(output, input),
        check: (round) => expectElements(output, output.length, (i) => Math.floor(i / count) * 1000 + group.rank + round, 'allToAll'),
      };
    },
  },
  {
    name: 'allToAll with splits',
    prepare: (group, count) => {
      const { rank, size } = group;
      const inputSplits = ranksOf(size).map((to) => count + to);
      const outputSplits = Array<number>(size).fill(count + rank);
      const output = new Int32Array(size * (count + rank));
      const input = new Int32Array(size * count + triangle(size));
      return {
        fill: (round) => {
          output.fill(-1);
          input.fill(rank + 10 * round);
        },
        start: () => group.allToAll(output, input, { inputSplits, outputSplits }),
        check: (round) => expectElements(output, output.length, (i) => Math.floor(i / (count + rank)) + 10 * round, 'allToAll with splits'),
      };
    },
  },
  {
    name: 'reduceScatter with counts',
    prepare: (group, count) => {
      const counts = ranksOf(group.size).map((rank) => count + rank);
      const from = group.rank * count + triangle(group.rank);
      const [output, input] = [new Int32Array(counts[group.rank]), new Int32Array(group.size * count + triangle(group.size))];
      return {
        fill: (round) => {
          output.fill(-1);
          input.forEach((_, i) => (input[i] = group.rank + i + round));
        },
        start: () => group.reduceScatter(output, input, { counts }),
        check: (round) => expectElements(output, output.length, (i) => sumAt(group, from + i, round), 'reduceScatter with counts'),
      };
    },
  },
  {
    name: 'reduceScatter',
    prepare: (group, count) => {
      const [output, input] = [new Int32Array(count), new Int32Array(count * group.size)];
      return {
        fill: (round) => {
          output.fill(-1);
          input.forEach((_, i) => (input[i] = group.rank + i + round));
        },
        start: () => group.reduceScatter(output, input),
        check: (round) => expectElements(output, count, (i) => sumAt(group, group.rank * count + i, round), 'reduceScatter'),
      };
    },
  },
  {
    name: 'scan',
    prepare: (group, count) => {
      const data = new Int32Array(count);
      const ranks = group.rank + 1;
      return {
        fill: (round) => data.forEach((_, i) => (data[i] = group.rank + i + round)),
        start: () => group.scan(data),
        check: (round) => expectElements(data, count, (i) => ranks * (i + round) + triangle(ranks), 'scan'),
      };
    },
  },
  {
    name: 'exscan',
    prepare: (group, count) => {
      const data = new Int32Array(count);
      const { rank } = group;
      return {
        fill: (round) => data.forEach((_, i) => (data[i] = rank + i + round)),
        start: () => group.exscan(data),
        check: (round) => expectElements(data, count, (i) => (rank === 0 ? i + round : rank * (i + round) + triangle(rank)), 'exscan'),
      };
    },
  },
];

const byName = (name: string): Started => {
  const found = started.find((each) => each.name === name);
  if (!found) throw new Error(`no call '${name}'`);
  return found;
};

export function startedCases(cases: SuiteCases, onRanks: OnRanks): void {
  cases.add('iallred', 'a sum that is started before another one', () =>
    onRanks(2, async (group) => {
      const [first, second] = [Int32Array.of(1), Int32Array.of(2)];
      const work = group.allReduce(first);
      await group.allReduce(second);
      await work;
      expect([first[0], second[0]]).toEqual([2, 4]);
    }),
  );
  cases.add('ibarrier', 'a barrier that is asked for again and again', () =>
    onRanks(2, async (group) => {
      const work = group.barrier();
      await expect.poll(() => work.done).toBe(true);
      expect(work.error).toBeUndefined();
    }),
  );
  cases.each(
    'nonblocking',
    started,
    ({ name }) => `${name} is started and ends`,
    (call) =>
      onRanks(4, async (group) => {
        const each = call.prepare(group, 12);
        each.fill(0);
        const work = each.start();
        await work;
        expect([work.done, work.error]).toEqual([true, undefined]);
      }),
  );
  const rows = [1, 4, 5, 10].flatMap((size) => started.map((call) => ({ size, call })));
  const nonzero = rows.filter(({ size, call }) => size > 1 || !call.name.startsWith('allGather with'));
  cases.each(
    'nonblocking2',
    nonzero,
    ({ size, call }) => `${call.name}, ${size} ranks`,
    ({ size, call }) =>
      onRanks(size, async (group) => {
        for (const count of [10, 997]) {
          const each = call.prepare(group, count);
          each.fill(3);
          await each.start();
          each.check(3);
        }
      }),
  );
  cases.each(
    'nonblocking3',
    [1, 4, 5, 10],
    (size) => `many calls at once in several groups of ${size} ranks`,
    (size) =>
      onRanks(size, async (group) => {
        const ranks = ranksOf(size);
        const groups = [group, await group.newGroup(ranks), await group.newGroup([...ranks].reverse())];
        const random = seededRandom(size);
        const inFlight: { work: Work; check: () => void }[] = [];
        for (let k = 0; k < 80; k++) {
          const call = started[random.integer(started.length)];
          const each = call.prepare(groups[random.integer(3)]!, 10);
          each.fill(k);
          inFlight.push({ work: each.start(), check: () => each.check(k) });
          const oldest = inFlight.length > 12 ? inFlight.splice(random.integer(12), 1) : [];
          for (const { work, check } of oldest) {
            await work;
            check();
          }
        }
        for (const { work, check } of inFlight) {
          await work;
          check();
        }
        for (const each of groups.slice(1)) await each!.destroy();
      }),
  );
  cases.each(
    'coll_large',
    started,
    ({ name }) => `${name} of 1024 elements, waited for and not`,
    (call) =>
      onRanks(4, async (group) => {
        const [one, other] = [call.prepare(group, 1024), call.prepare(group, 1024)];
        one.fill(1);
        await one.start();
        one.check(1);
        other.fill(2);
        const work = other.start();
        await group.barrier();
        await work;
        other.check(2);
      }),
  );
  persistentCases(cases, onRanks);
}

/** A persistent request is a call that is started again on the same buffers, with other contents. */
function persistentCases(cases: SuiteCases, onRanks: OnRanks): void {
  const programs: Readonly<Record<string, readonly [call: string, size: number]>> = {
    p_allgather: ['allGather', 10],
    p_allgatherv: ['allGather with counts', 10],
    p_allred: ['allReduce', 4],
    p_alltoall: ['allToAll', 8],
    p_alltoallv: ['allToAll with splits', 10],
    p_bcast: ['broadcast', 4],
    p_exscan: ['exscan', 5],
    p_gather: ['gather', 4],
    p_gatherv: ['gather with counts', 5],
    p_red: ['reduce', 4],
    p_red_scat_block: ['reduceScatter', 4],
    p_redscat: ['reduceScatter with counts', 4],
    p_scan: ['scan', 4],
    p_scatter: ['scatter', 4],
    p_scatterv: ['scatter with counts', 4],
  };
  for (const [program, [call, size]] of Object.entries(programs)) {
    cases.each(
      program,
      [10, 1500],
      (count) => `the same ${call} of ${count} ten times`,
      (count) =>
        onRanks(size, async (group) => {
          const each = byName(call).prepare(group, count);
          for (let round = 0; round < 10; round++) {
            each.fill(round);
            await each.start();
            each.check(round);
          }
        }),
    );
  }
  cases.add('p_barrier', 'ten barriers', () =>
    onRanks(2, async (group) => {
      let arrived = 0;
      for (let round = 0; round < 10; round++) {
        await group.barrier();
        arrived += 1;
      }
      const all = Int32Array.of(arrived);
      await group.allReduce(all);
      expect(all[0]).toBe(20);
    }),
  );
  cases.each(
    'p_bcast2',
    [17, 997],
    (bytes) => `${bytes} bytes of a larger buffer, which keeps the rest`,
    (bytes) =>
      onRanks(8, async (group) => {
        const ints = integers(100, (i) => (group.rank === 0 ? i : -1));
        await group.broadcast(ints);
        expectElements(ints, 100, (i) => i, 'ints');
        const whole = new Int8Array(1200).fill(0x3f);
        const part = whole.subarray(0, bytes);
        part.forEach((_, i) => (part[i] = group.rank === 0 ? i : -1));
        await group.broadcast(part);
        expectElements(whole, 1200, (i) => (i < bytes ? Int8Array.of(i)[0] : 0x3f), 'bytes');
      }),
  );
}
