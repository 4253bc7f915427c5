/** Groups that take in ranks which join later. */
import { describe, expect, it } from 'vitest';
import type { ProcessGroup } from './caller/types.ts';
import { InProcessSite, startRanks, type InProcessOptions } from './testing/in-process-world.ts';

const paths: readonly (InProcessOptions & { readonly kind: 'host' | 'network' })[] = [
  { kind: 'host', fastPath: true },
  { kind: 'host' },
  { kind: 'network', fastPath: true },
  { kind: 'network' },
];

async function startSite(n: number, options: InProcessOptions): Promise<{ site: InProcessSite; groups: ProcessGroup[] }> {
  const site = new InProcessSite(n, options);
  const groups = await Promise.all(Array.from({ length: n }, (_, rank) => site.start(rank)));
  return { site, groups };
}

/** Waits until these know of so many that wait. */
async function waitingAt(groups: readonly ProcessGroup[], count: number): Promise<void> {
  await expect.poll(() => groups.map(({ waiting }) => waiting)).toEqual(groups.map(() => count));
}

/** Floats whose sum depends on the order of additions. */
function floats(rank: number): Float32Array {
  return Float32Array.from({ length: 1000 }, (_, i) => Math.sin(rank * 7919 + i) * 10 ** ((i + rank) % 7));
}

async function freshSum(n: number, options: InProcessOptions): Promise<Float32Array> {
  await using world = await startRanks(n, options);
  const data = world.groups.map((_, rank) => floats(rank));
  await Promise.all(world.groups.map((group, rank) => group.allReduce(data[rank])));
  return data[0];
}

async function expectSum(groups: readonly ProcessGroup[], options: InProcessOptions): Promise<void> {
  const data = groups.map((_, rank) => floats(rank));
  await Promise.all(groups.map((group, rank) => group.allReduce(data[rank])));
  const expected = await freshSum(groups.length, options);
  for (const sum of data) expect(sum).toEqual(expected);
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

async function endAll(groups: readonly ProcessGroup[]): Promise<void> {
  await Promise.all(groups.map((group) => group.destroy({ timeoutMs: 100 })));
}

describe.each(paths)('over $kind, fast path $fastPath', (options) => {
  it('a rank that joins later is the last of a group with the bits of a world of that size', async () => {
    const { site, groups } = await startSite(3, options);
    await Promise.all(groups.map((group) => group.barrier()));
    const late = site.start(3);
    await waitingAt(groups, 1);
    await expectSum(groups, options);
    const grown = [...(await Promise.all(groups.map((group) => group.grow()))), await late];
    expect(grown.map(({ rank, size, globalRanks }) => ({ rank, size, globalRanks }))).toEqual(
      grown.map((_, rank) => ({ rank, size: 4, globalRanks: [0, 1, 2, 3] })),
    );
    expect(new Set(grown.map(({ name }) => name)).size).toBe(1);
    expect(grown.map(({ hosts }) => hosts)).toEqual(grown.map(() => [[0, 1, 2, 3]]));
    expect(grown.map(({ waiting }) => waiting)).toEqual([0, 0, 0, 0]);
    await expectSum(grown, options);
    const pairs = await Promise.all(grown.map((group) => group.newGroup([3, 1])));
    await Promise.all([pairs[1], pairs[3]].map((group) => group!.barrier()));
    await Promise.all([pairs[1], pairs[3]].map((group) => group!.destroy()));
    await endAll(grown);
    await turns(20);
    // Memory goes with the objects that map it.
    expect(site.left.filter((each) => !each.endsWith(' regions'))).toEqual([]);
  });

  it('lost ranks are replaced, again and again, and no number comes twice', async () => {
    const { site, groups } = await startSite(3, options);
    let current = groups;
    for (let next = 3; next < 7; next++) {
      const lost = current[next % 3].globalRanks[next % 3];
      site.crash(lost);
      const left = current.filter((_, rank) => rank !== next % 3);
      for (const group of left) await expect(group.barrier()).rejects.toMatchObject({ code: 'peer-lost', peer: lost });
      const shrunk = await Promise.all(left.map((group) => group.shrink()));
      const late = site.start(next);
      await waitingAt(shrunk, 1);
      current = [...(await Promise.all(shrunk.map((group) => group.grow()))), await late];
      await expectSum(current, options);
    }
    expect(current[0].globalRanks).toEqual([4, 5, 6].map(() => expect.any(Number) as number));
    await endAll(current);
  });

  it('several that wait are taken in together, and a grow without any gives the same ranks', async () => {
    const { site, groups } = await startSite(2, options);
    const same = await Promise.all(groups.map((group) => group.grow()));
    expect(same.map(({ globalRanks }) => globalRanks)).toEqual([
      [0, 1],
      [0, 1],
    ]);
    const late = [2, 3].map((rank) => site.start(rank));
    await waitingAt(same, 2);
    let current: ProcessGroup[] = same;
    const joined: ProcessGroup[] = [];
    // One that has not seen the other yet is connected with it after the other has been taken in.
    while (joined.length < 2) {
      current = await Promise.all(current.map((group) => group.grow()));
      for (const rank of current[0].globalRanks.slice(current.length)) joined.push(await late[rank - 2]);
      current = [...current, ...joined.slice(current.length - 2)];
      await turns(20);
    }
    await expectSum(current, options);
    await endAll(current);
  });
});

it('a newcomer that ends while it waits, or as it is taken in, keeps nobody from going on', async () => {
  const { site, groups } = await startSite(2, { kind: 'host', fastPath: true });
  site.start(2).catch(() => undefined);
  await waitingAt(groups, 1);
  site.crash(2);
  await waitingAt(groups, 0);
  const grown = await Promise.all(groups.map((group) => group.grow()));
  expect(grown.map(({ size }) => size)).toEqual([2, 2]);
  await Promise.all(grown.map((group) => group.barrier()));
  await endAll(grown);
});

it('a group that was made of another one does not grow', async () => {
  const { groups } = await startSite(2, {});
  const pairs = await Promise.all(groups.map((group) => group.newGroup([1, 0])));
  await expect(pairs[0]!.grow()).rejects.toMatchObject({
    code: 'unsupported',
    message: expect.stringMatching(/was made of another one/) as string,
  });
  await endAll(groups);
});

it('nobody who takes it in is named with the limit', async () => {
  const { site, groups } = await startSite(2, { joinTimeoutMs: 300 });
  await expect(site.start(2)).rejects.toMatchObject({
    code: 'timeout',
    message: expect.stringMatching(/nobody has taken it in/) as string,
  });
  await Promise.all(groups.map((group) => group.barrier()));
  await endAll(groups);
});
