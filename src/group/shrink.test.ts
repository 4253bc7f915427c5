/** Groups that go on without some of their ranks. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { abortConnection } from '../fabric/abortable.ts';
import type { Connection, Fabric } from '../fabric/fabric.ts';
import { decorateFabric } from '../fabric/testing/hooks/decorate.ts';
import type { ProcessGroup } from './caller/types.ts';
import { InProcessSite, startRanks, type InProcessOptions } from './testing/in-process-world.ts';

const paths: readonly (InProcessOptions & { readonly kind: 'host' | 'network' })[] = [
  { kind: 'host', fastPath: true },
  { kind: 'host' },
  { kind: 'network', fastPath: true },
  { kind: 'network' },
];

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

async function startSite(n: number, options: InProcessOptions): Promise<{ site: InProcessSite; groups: ProcessGroup[] }> {
  const site = new InProcessSite(n, options);
  const groups = await Promise.all(Array.from({ length: n }, (_, rank) => site.start(rank)));
  return { site, groups };
}

/** Floats whose sum depends on the order of additions. */
function floats(rank: number): Float32Array {
  return Float32Array.from({ length: 1000 }, (_, i) => Math.sin(rank * 7919 + i) * 10 ** ((i + rank) % 7));
}

/** The sum that a fresh world of these values has. */
async function freshSum(values: readonly Float32Array[], options: InProcessOptions): Promise<Float32Array> {
  await using world = await startRanks(values.length, options);
  const data = values.map((value) => value.slice());
  await Promise.all(world.groups.map((group, rank) => group.allReduce(data[rank])));
  return data[0];
}

async function endAll(groups: readonly ProcessGroup[]): Promise<void> {
  await Promise.all(groups.map((group) => group.destroy({ timeoutMs: 100 })));
}

describe.each(paths)('over $kind, fast path $fastPath', (options) => {
  it('the survivors of a loss go on, with the bits of a world of their number', async () => {
    const { site, groups } = await startSite(4, options);
    const tensor = groups[0].tensor('float32', [4]);
    await Promise.all(groups.map((group) => group.barrier()));
    const running = [0, 2, 3].map((rank) => groups[rank].allReduce(new Float32Array(4)));
    site.crash(1);
    for (const work of running) await expect(work).rejects.toMatchObject({ code: 'peer-lost', peer: 1 });
    const survivors = [0, 2, 3];
    const shrunk = await Promise.all(survivors.map((rank) => groups[rank].shrink()));
    expect(shrunk.map(({ rank, size, globalRanks }) => ({ rank, size, globalRanks }))).toEqual(
      survivors.map((_, rank) => ({ rank, size: 3, globalRanks: survivors })),
    );
    const data = survivors.map(floats);
    await Promise.all(shrunk.map((group, index) => group.allReduce(data[index])));
    const expected = await freshSum(survivors.map(floats), options);
    for (const sum of data) expect(sum).toEqual(expected);
    tensor.data.fill(2);
    await Promise.all(shrunk.map((group, rank) => group.allReduce(rank === 0 ? tensor : new Float32Array([2, 2, 2, 2]))));
    expect([...tensor.data]).toEqual([6, 6, 6, 6]);
    shrunk[0].release(tensor);
    expect(() => groups[0].barrier()).toThrow(
      expect.objectContaining({ code: 'closed', message: expect.stringMatching(/was shrunk/) as string }),
    );
    const pair = await Promise.all(shrunk.map((group) => group.newGroup([2, 0])));
    expect(pair[1]).toBeNull();
    await Promise.all([pair[0], pair[2]].map((group) => group!.barrier()));
    await Promise.all([pair[0], pair[2]].map((group) => group!.destroy()));
    await endAll(groups.filter((_, rank) => rank !== 1));
    await turns(20);
    // Memory goes with the objects of the rank that was lost.
    expect(site.left.filter((each) => !each.endsWith(' regions'))).toEqual([]);
  });

  it('many shrinks leave nothing behind', async () => {
    const { site, groups } = await startSite(3, options);
    let current = groups;
    const left: string[][] = [];
    for (let k = 0; k < 27; k++) {
      current = await Promise.all(current.map((group) => group.shrink()));
      await Promise.all(current.map((group) => group.allReduce(new Float32Array(10))));
      await turns(3);
      if (k % 13 === 0) left.push(site.left);
    }
    for (const later of left.slice(1)) expect(later).toEqual(left[0]);
    await endAll(current);
  });

  it('one rank after another is lost, down to one', async () => {
    const { site, groups } = await startSite(5, options);
    let left = groups;
    for (const lost of [4, 0, 2, 1]) {
      site.crash(lost);
      const place = left.findIndex(({ globalRanks, rank }) => globalRanks[rank] === lost);
      left = left.filter((_, index) => index !== place);
      for (const group of left) await expect(group.barrier()).rejects.toMatchObject({ code: 'peer-lost', peer: lost });
      left = await Promise.all(left.map((group) => group.shrink()));
      const values = left.map(() => new Int32Array([1]));
      await Promise.all(left.map((group, rank) => group.allReduce(values[rank])));
      expect(values.map(([sum]) => sum)).toEqual(left.map(() => left.length));
    }
    expect(left[0].globalRanks).toEqual([3]);
    await endAll(left);
  });
});

describe('exclude', () => {
  it('leaves out ranks that are there, which hear of it', async () => {
    const { groups } = await startSite(3, { kind: 'host', fastPath: true });
    await Promise.all(groups.map((group) => group.barrier()));
    const shrunk = await Promise.all([groups[0].shrink({ exclude: [1] }), groups[2].shrink()]);
    expect(shrunk.map(({ rank, globalRanks }) => ({ rank, globalRanks }))).toEqual([0, 1].map((rank) => ({ rank, globalRanks: [0, 2] })));
    await Promise.all(shrunk.map((group) => group.barrier()));
    await expect(groups[1].allReduce(new Float32Array(2))).rejects.toMatchObject({
      code: 'mismatch',
      message: expect.stringMatching(/left/) as string,
    });
    await expect(groups[1].shrink()).rejects.toMatchObject({
      code: 'closed',
      message: expect.stringMatching(/ranks 0, 2 went on without rank 1/) as string,
    });
    await endAll(groups);
  });

  it('is what a shrink needs that has waited for a stopped rank in vain; when that goes on, it hears that it is out', async () => {
    const clock = new VirtualClock();
    const { groups } = await startSite(3, { clock });
    const first = [groups[0].shrink({ timeoutMs: 1000 }), groups[1].shrink({ timeoutMs: 1000 })];
    const refused = Promise.all(
      first.map((each) =>
        expect(each).rejects.toMatchObject({
          code: 'timeout',
          peer: 2,
          message: expect.stringMatching(/rank 2 did not call shrink/) as string,
        }),
      ),
    );
    await turns(20);
    clock.advance(500);
    await turns(20);
    clock.advance(501);
    await refused;
    const shrunk = await Promise.all([groups[0].shrink({ exclude: [2] }), groups[1].shrink({ exclude: [2] })]);
    await Promise.all(shrunk.map((group) => group.barrier()));
    await expect(groups[2].shrink()).rejects.toMatchObject({ code: 'closed' });
    await Promise.all(groups.map((group) => group.destroy({ timeoutMs: 0 })));
  });
});

it('without a loss, all go on', async () => {
  const { groups } = await startSite(3, { kind: 'host', fastPath: true });
  const shrunk = await Promise.all(groups.map((group) => group.shrink()));
  expect(shrunk.map(({ size }) => size)).toEqual([3, 3, 3]);
  await Promise.all(shrunk.map((group) => group.barrier()));
  await endAll(groups);
});

it('a subgroup shrinks, and leaves the world as it was', async () => {
  const { groups } = await startSite(4, { kind: 'host', fastPath: true });
  const parts = await Promise.all(groups.map((group) => group.newGroup([3, 1, 0])));
  const shrunk = await Promise.all([parts[0]!.shrink({ exclude: [1] }), parts[3]!.shrink({ exclude: [1] })]);
  expect(shrunk.map(({ globalRanks }) => globalRanks)).toEqual([
    [3, 0],
    [3, 0],
  ]);
  await Promise.all([...shrunk, ...groups].map((group) => group.barrier()));
  await Promise.all(shrunk.map((group) => group.destroy()));
  await Promise.all(groups.map((group) => group.barrier()));
  await endAll(groups);
});

it('of two parts that have lost each other, one goes on', async () => {
  const between: Connection[] = [];
  const wrap = (fabric: Fabric, rank: number): Fabric =>
    decorateFabric(fabric, (connection) => {
      if (rank < 2 !== connection.peer.rank < 2) between.push(connection);
      return connection;
    });
  const { groups } = await startSite(4, { wrap });
  between.forEach(abortConnection);
  await Promise.all(groups.map((group) => expect(group.barrier()).rejects.toMatchObject({ code: 'peer-lost' })));
  const results = await Promise.allSettled(groups.map((group) => group.shrink()));
  const parts = [results.slice(0, 2), results.slice(2)];
  const wentOn = parts.filter((part) => part.every(({ status }) => status === 'fulfilled'));
  const refused = parts.flat().filter((result) => result.status === 'rejected');
  expect(wentOn).toHaveLength(1);
  expect(refused.map((result) => (result.reason as { code: string }).code)).toEqual(['closed', 'closed']);
  await endAll(groups);
});

it('ranks that are lost at any moment of the agreement do not keep the others from the same group', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 3, max: 5 }),
      fc.constantFrom(...paths),
      fc.array(fc.record({ victim: fc.nat(4), after: fc.nat(60) }), { minLength: 1, maxLength: 2 }),
      fc.array(fc.nat(30), { minLength: 5, maxLength: 5 }),
      async (size, path, losses, delays) => {
        const { site, groups } = await startSite(size, path);
        const dead = new Set([0]);
        site.crash(0);
        const results = groups.map(async (group, rank) => {
          await turns(delays[rank]);
          // Whatever is lost while it begins, the rank calls again, as a program does.
          for (let current = group; ;) {
            if (dead.has(rank)) return undefined;
            current = await current.shrink();
            const value = new Int32Array([1]);
            const failed = await current.allReduce(value).then(
              () => false,
              () => true,
            );
            if (!failed) return { ranks: current.globalRanks.join(','), sum: value[0] };
          }
        });
        // Those of ranks that are lost may fail at any time.
        for (const result of results) result.catch(() => undefined);
        for (const { victim, after } of losses) {
          await turns(after);
          if (victim >= size || dead.has(victim) || dead.size >= size - 1) continue;
          dead.add(victim);
          site.crash(victim);
        }
        const living = groups.map((_, rank) => rank).filter((rank) => !dead.has(rank));
        const ended = await Promise.all(living.map((rank) => results[rank]));
        // A rank may have ended its one call well before the last loss.
        for (const end of ended) expect(end?.sum).toBe(end?.ranks.split(',').length);
        for (const end of ended) for (const rank of living) expect(end?.ranks.split(',')).toContain(String(rank));
        await endAll(living.map((rank) => groups[rank]));
      },
    ),
    // The example: a rank that is killed while it begins its call.
    { numRuns: 60, examples: [[3, { kind: 'host', fastPath: true }, [{ victim: 1, after: 1 }], [0, 1, 3, 0, 0]]] },
  );
});

it('bad calls are refused before anything is asked', async () => {
  const { groups } = await startSite(2, {});
  const [first] = groups;
  await expect(first.shrink({ exclude: [2] })).rejects.toMatchObject({ code: 'usage', message: 'shrink: 2 is not a rank of 0…1' });
  await expect(first.shrink({ exclude: [0] })).rejects.toMatchObject({
    code: 'usage',
    message: expect.stringMatching(/cannot exclude itself/) as string,
  });
  await expect(first.shrink({ timeoutMs: -1 })).rejects.toMatchObject({ code: 'usage' });
  await expect(first.shrink({ excluded: [1] } as never)).rejects.toMatchObject({
    code: 'usage',
    message: expect.stringMatching(/excluded/) as string,
  });
  const scheduled = await Promise.all(groups.map((group) => group.scheduled()));
  await expect(scheduled[0].shrink()).rejects.toMatchObject({ code: 'unsupported' });
  const both = [first.shrink(), first.shrink()];
  await expect(both[1]).rejects.toMatchObject({ code: 'usage' });
  await Promise.all([both[0], groups[1].shrink()]);
  await endAll(groups);
  await expect(first.shrink()).rejects.toMatchObject({ code: 'closed' });
});
