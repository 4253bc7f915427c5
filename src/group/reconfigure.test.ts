/** Groups that go on with the ranks that are named, in their order, and with those that wait. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { reconfiguredSpec } from './api/change.ts';
import type { CommGroup } from './api/process-group.ts';
import type { ProcessGroup } from './caller/types.ts';
import type { WorldHandle } from './caller/world-handle.ts';
import { InProcessSite, startRanks, type InProcessOptions } from './testing/in-process-world.ts';

const paths: readonly (InProcessOptions & { readonly kind: 'host' | 'network' })[] = [
  { kind: 'host', fastPath: true },
  { kind: 'host' },
  { kind: 'network', fastPath: true },
  { kind: 'network' },
];

async function startSite(n: number, options: InProcessOptions): Promise<{ site: InProcessSite; groups: CommGroup[] }> {
  const site = new InProcessSite(n, options);
  const groups = await Promise.all(Array.from({ length: n }, (_, rank) => site.start(rank)));
  return { site, groups };
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

/** Floats whose sum depends on the order of additions. */
function floats(rank: number): Float32Array {
  return Float32Array.from({ length: 1000 }, (_, i) => Math.sin(rank * 7919 + i) * 10 ** ((i + rank) % 7));
}

/** All of these groups have the bits of a fresh world: each rank there gives what the rank of its place gives here. */
async function expectSum(groups: readonly ProcessGroup[], options: InProcessOptions): Promise<void> {
  await using world = await startRanks(groups.length, options);
  const [data, expected] = [groups, world.groups].map((some) => some.map(({ rank }) => floats(rank)));
  await Promise.all([
    ...groups.map((group, k) => group.allReduce(data[k])),
    ...world.groups.map((group, k) => group.allReduce(expected[k])),
  ]);
  for (const sum of data) expect(sum).toEqual(expected[0]);
}

async function endAll(groups: readonly ProcessGroup[]): Promise<void> {
  await Promise.all(groups.map((group) => group.destroy({ timeoutMs: 100 })));
}

const placesOf = (groups: readonly ProcessGroup[]): unknown[] => groups.map(({ rank, globalRanks }) => [rank, globalRanks.join()]);

describe.each(paths)('over $kind, fast path $fastPath', (options) => {
  it('ranks have the places in which they are named, and again and again others', async () => {
    const { site, groups } = await startSite(4, options);
    await Promise.all(groups.map((group) => group.barrier()));
    const same = await Promise.all(groups.map((group) => group.reconfigure()));
    expect(placesOf(same)).toEqual([0, 1, 2, 3].map((rank) => [rank, '0,1,2,3']));
    const mixed = await Promise.all(same.map((group) => group.reconfigure({ ranks: [3, 1, 0, 2] })));
    expect(placesOf(mixed)).toEqual([2, 1, 3, 0].map((rank) => [rank, '3,1,0,2']));
    await expectSum(mixed, options);
    const around = Float32Array.of(-1);
    await Promise.all([mixed[3].send(Float32Array.of(7), 3), mixed[2].recv(around, 0)]);
    expect(around[0]).toBe(7);
    // World rank 1 is left out; names are places in the group that there is now.
    const three = await Promise.all([mixed[0], mixed[2], mixed[3]].map((group) => group.reconfigure({ ranks: [2, 3, 0] })));
    expect(placesOf(three)).toEqual([0, 1, 2].map((rank) => [rank, '0,2,3']));
    await expectSum(three, options);
    await expect(mixed[1].barrier()).rejects.toMatchObject({ code: 'mismatch' });
    await expect(mixed[1].reconfigure()).rejects.toMatchObject({
      code: 'closed',
      message: expect.stringMatching(/ranks 0, 2, 3 went on without rank 1/) as string,
    });
    await endAll([...three, mixed[1]]);
    await turns(20);
    expect(site.left.filter((each) => !each.endsWith(' regions'))).toEqual([]);
  });

  it('those that wait come after the named ranks, and those that were lost are left out', async () => {
    const { site, groups } = await startSite(3, options);
    await Promise.all(groups.map((group) => group.barrier()));
    const late = site.start(3);
    await expect.poll(() => groups.map(({ waiting }) => waiting)).toEqual([1, 1, 1]);
    site.crash(1);
    const left = [groups[0], groups[2]];
    for (const group of left) await expect(group.barrier()).rejects.toMatchObject({ code: 'peer-lost', peer: 1 });
    const next = [...(await Promise.all(left.map((group) => group.reconfigure({ ranks: [2, 1, 0] })))), await late];
    expect(placesOf(next)).toEqual([1, 0, 2].map((rank) => [rank, '2,0,3']));
    await expectSum(next, options);
    await endAll(next);
  });
});

it('a rank that is the only one goes on alone, and with all that have joined again', async () => {
  const { site, groups } = await startSite(3, { kind: 'host', fastPath: true });
  let all: ProcessGroup[] = [await groups[0].reconfigure({ ranks: [0] })];
  const sum = Float32Array.of(3);
  await all[0].allReduce(sum);
  expect(sum[0]).toBe(3);
  for (const left of [1, 2]) {
    await expect(groups[left].reconfigure()).rejects.toMatchObject({ code: 'closed' });
    await groups[left].destroy({ timeoutMs: 100 });
    const late = site.start(left + 2);
    await expect.poll(() => all.map(({ waiting }) => waiting)).toEqual(all.map(() => 1));
    all = [...(await Promise.all(all.map((group) => group.reconfigure()))), await late];
  }
  expect(placesOf(all)).toEqual([0, 1, 2].map((rank) => [rank, '0,3,4']));
  await expectSum(all, { kind: 'host', fastPath: true });
  await endAll(all);
});

it('ranks that name different ones go on as those that all name', async () => {
  const { groups } = await startSite(4, {});
  const lists = [[0, 1, 3], [3, 1, 0, 2], undefined, [1, 0, 3]];
  const results = await Promise.allSettled(groups.map((group, rank) => group.reconfigure(lists[rank] && { ranks: lists[rank] })));
  expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected', 'fulfilled']);
  const next = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
  expect(new Set(next.map(({ globalRanks }) => globalRanks.join())).size).toBe(1);
  expect(new Set(next[0].globalRanks)).toEqual(new Set([0, 1, 3]));
  await Promise.all(next.map((group) => group.barrier()));
  await endAll([...next, groups[2]]);
});

it('a group that was made of another one takes nobody in', async () => {
  const { site, groups } = await startSite(2, {});
  const pairs = await Promise.all(groups.map((group) => group.newGroup([1, 0])));
  const late = site.start(2);
  await expect.poll(() => groups.map(({ waiting }) => waiting)).toEqual([1, 1]);
  const swapped = await Promise.all(pairs.map((pair) => pair!.reconfigure({ ranks: [1, 0] })));
  expect(placesOf(swapped)).toEqual([0, 1].map((rank) => [rank, '0,1']));
  const all = [...(await Promise.all(groups.map((group) => group.reconfigure()))), await late];
  await Promise.all([...swapped, ...all].map((group) => group.barrier()));
  await endAll(all);
});

it('a named rank that does not come is named by the error; without it the others go on', async () => {
  const clock = new VirtualClock();
  const { groups } = await startSite(3, { clock });
  const first = [0, 1].map((rank) => groups[rank].reconfigure({ timeoutMs: 1000 }));
  const refused = first.map((each) =>
    expect(each).rejects.toMatchObject({
      code: 'timeout',
      peer: 2,
      message: expect.stringMatching(/rank 2 did not call shrink, grow or reconfigure/) as string,
    }),
  );
  await turns(20);
  clock.advance(500);
  await turns(20);
  clock.advance(501);
  await Promise.all(refused);
  const next = await Promise.all([0, 1].map((rank) => groups[rank].reconfigure({ ranks: [1, 0] })));
  expect(placesOf(next)).toEqual([1, 0].map((rank) => [rank, '1,0']));
  await Promise.all(next.map((group) => group.barrier()));
  await Promise.all([...next, groups[2]].map((group) => group.destroy({ timeoutMs: 0 })));
});

it('an abort does not end a change that is underway', async () => {
  const { groups } = await startSite(2, {});
  const first = groups[0].reconfigure();
  groups[0].abort('too late');
  const next = await Promise.all([first, groups[1].reconfigure()]);
  await Promise.all(next.map((group) => group.barrier()));
  await endAll(next);
});

it("a group of backend 'mpi' cannot change, as MPI ends with its ranks", async () => {
  const { groups } = await startSite(1, {});
  const spec = { ...groups[0].spec, library: 'mpi' };
  const settings = { timeoutMs: 1000 };
  await expect(reconfiguredSpec(spec, { settings } as WorldHandle, {}, true)).rejects.toMatchObject({
    code: 'unsupported',
    message: "the ranks of group 'world' cannot change: its collectives are those of mpi, which ends with its ranks",
  });
  await endAll(groups);
});

it('bad calls are refused before anything is asked', async () => {
  const { groups } = await startSite(2, {});
  const [first] = groups;
  const refusals: readonly (readonly [object, string | RegExp])[] = [
    [{ ranks: [0, 2] }, 'reconfigure: 2 is not a rank of 0…1'],
    [{ ranks: [0, 0] }, 'reconfigure: rank 0 is listed twice'],
    [{ ranks: [] }, 'reconfigure: a group needs one rank at least'],
    [{ ranks: [1] }, 'reconfigure: rank 0 is not named; it calls destroy, or just ends'],
    [{ ranks: [0], timeoutMs: -1 }, /timeoutMs must be positive/],
    [{ exclude: [1] }, /exclude/],
  ];
  for (const [options, message] of refusals) {
    const expected = typeof message === 'string' ? message : (expect.stringMatching(message) as string);
    await expect(first.reconfigure(options)).rejects.toMatchObject({ code: 'usage', message: expected });
  }
  const scheduled = await Promise.all(groups.map((group) => group.scheduled()));
  await expect(scheduled[0].reconfigure()).rejects.toMatchObject({ code: 'unsupported' });
  const both = [first.reconfigure(), first.reconfigure()];
  await expect(both[1]).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/already/) as string });
  await Promise.all([both[0], groups[1].reconfigure()]);
  await endAll(groups);
});
