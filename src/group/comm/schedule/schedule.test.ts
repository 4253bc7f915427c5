/** All-reduces of a scheduled group: the bits of those that are not scheduled, one order on all ranks, and an end for everything. */
import { describe, expect, it } from 'vitest';
import { systemClock, VirtualClock } from '../../../base/clock.ts';
import { silentLogger } from '../../../base/log.ts';
import { seededRandom, type Random } from '../../../base/random.ts';
import { Arbiter } from '../../../scheduler/arbiter.ts';
import { chromeTrace } from '../../../trace/chrome.ts';
import { createRecorder, nullRecorder, type TraceRecorder } from '../../../trace/recorder.ts';
import type { ProcessGroup, ScheduledGroup, Work } from '../../caller/types.ts';
import { partitionBytesMin } from '../../api/scheduling.ts';
import { startRanks, type InProcessOptions, type InProcessWorld } from '../../testing/in-process-world.ts';

const programs = Number(process.env.SCHEDULED_PROGRAMS ?? 20);

/** Long enough for everything to arrive that has been sent. */
async function delivered(): Promise<void> {
  for (let turn = 0; turn < 40; turn++) await new Promise(setImmediate);
}

function numbers(count: number, random: Random): Float32Array {
  return Float32Array.from({ length: count }, () => (random.next() - 0.5) * 10 ** random.integer(6));
}

function shuffled<T>(items: readonly T[], random: Random): T[] {
  const list = [...items];
  for (let end = list.length - 1; end > 0; end--) {
    const other = random.integer(end + 1);
    [list[end], list[other]] = [list[other], list[end]];
  }
  return list;
}

async function schedule(world: InProcessWorld, options: { creditBytes: number; partitionBytes: number }): Promise<ScheduledGroup[]> {
  return world.each((group) => group.scheduled(options));
}

const places: readonly [string, InProcessOptions][] = [
  ['one host', { kind: 'host' }],
  ['one host with the fast path', { kind: 'host', fastPath: true }],
  ['a network', { kind: 'network', hostIds: ['a', 'b', 'c', 'd'] }],
  ['two hosts', { kind: 'host', hostIds: ['a', 'a', 'b', 'b'] }],
];

describe.each(places)('on %s', (_, options) => {
  it('every program gives the bits of all-reduces that are not scheduled, whatever its parts, priorities and orders', async () => {
    for (let seed = 1; seed <= programs; seed++) {
      const random = seededRandom(seed);
      const size = 1 + random.integer(4);
      await using world = await startRanks(size, { ...options, hostIds: options.hostIds?.slice(0, size) });
      const counts = Array.from({ length: 1 + random.integer(6) }, () => random.integer(400));
      const steps = 1 + random.integer(3);
      const scheduled = await schedule(world, { creditBytes: 1 + random.integer(2000), partitionBytes: 4 + random.integer(800) });
      const values = world.groups.map(() => Array.from({ length: steps }, () => counts.map((count) => numbers(count, random))));
      const expected = await Promise.all(
        world.groups.map(async (group, rank) => {
          const results = values[rank].map((step) => step.map((array) => array.slice()));
          for (const step of results) for (const array of step) await group.allReduce(array);
          return results;
        }),
      );
      await Promise.all(
        scheduled.map(async (group, rank) => {
          for (const step of values[rank]) {
            const order = shuffled([...counts.keys()], seededRandom(seed * 100 + rank));
            const works = order.map((tensor) => group.allReduce(step[tensor], { name: `t${tensor}`, priority: tensor % 3 }));
            await Promise.all(works);
          }
        }),
      );
      expect(values, `seed ${seed}`).toEqual(expected);
    }
  });

  it('tensors of all steps may be in flight at once', async () => {
    await using world = await startRanks(2, options.hostIds ? { ...options, hostIds: ['a', 'b'] } : options);
    const groups = await schedule(world, { creditBytes: 64, partitionBytes: 16 });
    const all = await Promise.all(
      groups.map(async (group) => {
        const arrays = Array.from({ length: 20 }, (__, index) => new Float64Array(10).fill(index));
        await Promise.all(arrays.map((array, index) => group.allReduce(array, { name: index % 2 === 0 ? 'even' : 'odd' })));
        return arrays.map((array) => array[9]);
      }),
    );
    for (const values of all) expect(values).toEqual(Array.from({ length: 20 }, (__, index) => 2 * index));
  });
});

describe('what is needed sooner', () => {
  it('overtakes between parts of what is not', async () => {
    await using world = await startRanks(2, { kind: 'network' });
    const groups = await schedule(world, { creditBytes: 4000, partitionBytes: 4000 });
    const ended: string[][] = groups.map(() => []);
    await Promise.all(
      groups.map(async (group, rank) => {
        const late = group.allReduce(new Float32Array(20_000), { name: 'late', priority: 9 });
        const soon = group.allReduce(new Float32Array(1000), { name: 'soon', priority: 1 });
        await Promise.all([late, soon].map((work, index) => work.then(() => void ended[rank].push(['late', 'soon'][index]))));
      }),
    );
    expect(ended).toEqual([
      ['soon', 'late'],
      ['soon', 'late'],
    ]);
  });

  it('does so from the tensors that are ready everywhere alone', async () => {
    await using world = await startRanks(2, { kind: 'network' });
    const [a, b] = await schedule(world, { creditBytes: 4000, partitionBytes: 4000 });
    const soon = a.allReduce(new Float32Array([1]), { name: 'soon', priority: 0 });
    const other = a.allReduce(new Float32Array([1]), { name: 'other', priority: 1 });
    await b.allReduce(new Float32Array([1]), { name: 'other', priority: 1 });
    await other;
    expect(soon.done).toBe(false);
    await b.allReduce(new Float32Array([1]), { name: 'soon', priority: 0 });
    await soon;
  });
});

describe('ranks that disagree', () => {
  it.each<[string, (group: ScheduledGroup) => Work, (group: ScheduledGroup) => Work, RegExp]>([
    [
      'priorities',
      (group) => group.allReduce(new Float32Array(8), { name: 'w', priority: 1 }),
      (group) => group.allReduce(new Float32Array(8), { name: 'w', priority: 2 }),
      /rank 1 schedules 'w' \(all-reduce float32 sum, priority 2, 32 bytes in 2 parts\), rank 0 'w' .*priority 1/,
    ],
    [
      'sizes',
      (group) => group.allReduce(new Float32Array(8), { name: 'w' }),
      (group) => group.allReduce(new Float32Array(9), { name: 'w' }),
      /36 bytes/,
    ],
    [
      'dtypes',
      (group) => group.allReduce(new Float32Array(8), { name: 'w' }),
      (group) => group.allReduce(new Int32Array(8), { name: 'w' }),
      /all-reduce int32 sum/,
    ],
    [
      'operators',
      (group) => group.allReduce(new Float32Array(8), { name: 'w' }),
      (group) => group.allReduce(new Float32Array(8), { name: 'w', op: 'max' }),
      /all-reduce float32 max/,
    ],
  ])('in %s all hear of it', async (_, first, second, message) => {
    await using world = await startRanks(2);
    const [a, b] = await schedule(world, { creditBytes: 64, partitionBytes: 16 });
    const error: unknown = expect.objectContaining({ code: 'mismatch', message: expect.stringMatching(message) as string });
    const works = [first(a), second(b)];
    const others = [a.allReduce(new Float32Array(2), { name: 'other' }), b.allReduce(new Float32Array(2), { name: 'another' })];
    for (const work of [...works, ...others]) await expect(work).rejects.toEqual(error);
    await expect(a.allReduce(new Float32Array(1))).rejects.toEqual(error);
  });

  it('in a subgroup are named as in the world', async () => {
    await using world = await startRanks(3);
    const groups = await Promise.all(world.groups.map((group) => group.newGroup([2, 1])));
    const [a, b] = await Promise.all([groups[2], groups[1]].map((group) => group!.scheduled({ creditBytes: 64, partitionBytes: 16 })));
    const works = [a.allReduce(new Float32Array(8), { name: 'w' }), b.allReduce(new Float32Array(9), { name: 'w' })];
    for (const work of works)
      await expect(work).rejects.toMatchObject({
        code: 'mismatch',
        peer: 1,
        message: expect.stringMatching(/rank 1 schedules 'w' .*, rank 2 'w'/) as string,
      });
  });

  it('in credit or partition do not get a group', async () => {
    await using world = await startRanks(2);
    const opening = world.groups.map((group, rank) => group.scheduled({ partitionBytes: 16 + rank }));
    for (const each of opening) await expect(each).rejects.toMatchObject({ code: 'mismatch' });
  });

  it('in a partition that was changed on one rank alone', async () => {
    await using world = await startRanks(2);
    const [a, b] = await schedule(world, { creditBytes: 64, partitionBytes: 16 });
    b.setScheduling({ partitionBytes: 32 });
    const works = [a, b].map((group) => group.allReduce(new Float32Array(8), { name: 'w' }));
    for (const work of works)
      await expect(work).rejects.toMatchObject({ code: 'mismatch', message: expect.stringContaining('in 1 parts') as string });
  });
});

describe('a rank that does not come', () => {
  it('is named when the time is over, on all ranks', async () => {
    const clock = new VirtualClock();
    const { groups } = await startRanks(3, { clock });
    const scheduled = await Promise.all(groups.map((group) => group.scheduled({ creditBytes: 64, partitionBytes: 16 })));
    const works = [0, 2].map((rank) => scheduled[rank].allReduce(new Float32Array(8), { name: 'w', priority: 3, timeoutMs: 5000 }));
    const ends = works.map((work) =>
      Promise.resolve(work).then(
        () => 'done',
        (error: Error) => error,
      ),
    );
    for (let elapsed = 0; elapsed < 20_000; elapsed += 500) {
      await delivered();
      clock.advance(500);
    }
    await delivered();
    for (const end of ends) {
      expect(await end).toMatchObject({
        code: 'timeout',
        message: expect.stringMatching(
          /'w' \(all-reduce float32 sum, priority 3\).* timed out after 5000 ms: rank 1 did not schedule it/,
        ) as string,
      });
    }
    await expect(scheduled[1].allReduce(new Float32Array(8), { name: 'w', priority: 3 })).rejects.toMatchObject({ code: 'timeout' });
  });

  it('because it has left is named at once', async () => {
    await using world = await startRanks(3);
    const [a, b, c] = await schedule(world, { creditBytes: 64, partitionBytes: 16 });
    await Promise.all([a, b, c].map((group) => group.allReduce(new Float32Array(8), { name: 'w' })));
    const early = a.allReduce(new Float32Array(8), { name: 'w' });
    await delivered();
    await b.destroy();
    await expect(early).rejects.toMatchObject({
      code: 'mismatch',
      peer: 1,
      message: expect.stringContaining('rank 1 left before it scheduled') as string,
    });
    await expect(c.allReduce(new Float32Array(8), { name: 'w' })).rejects.toMatchObject({ peer: 1 });
  });
});

describe('the end', () => {
  it('waits for what is posted', async () => {
    await using world = await startRanks(3, { kind: 'network' });
    const groups = await schedule(world, { creditBytes: 64, partitionBytes: 16 });
    const works = groups.flatMap((group) =>
      [1, 2, 3].map((each) => group.allReduce(new Float32Array(100).fill(each), { name: `${each}` })),
    );
    await Promise.all(groups.map((group) => group.destroy()));
    for (const work of works) expect(work).toMatchObject({ done: true, error: undefined });
    expect(() => groups[0].allReduce(new Float32Array(1))).toThrow(expect.objectContaining({ code: 'closed' }));
    const sums = await world.each(async (group) => {
      const array = new Float32Array([group.rank]);
      await group.allReduce(array);
      return array[0];
    });
    expect(sums).toEqual([3, 3, 3]);
  });

  it('gives up what does not come in time', async () => {
    await using world = await startRanks(2);
    const [a, b] = await schedule(world, { creditBytes: 64, partitionBytes: 16 });
    const work = a.allReduce(new Float32Array(100), { name: 'w' });
    await Promise.all([a.destroy({ timeoutMs: 50 }), b.destroy({ timeoutMs: 50 })]);
    await expect(work).rejects.toMatchObject({ code: expect.stringMatching(/closed|mismatch/) as string });
  });

  it('comes with that of the world', async () => {
    const world = await startRanks(2);
    const groups = await schedule(world, { creditBytes: 64, partitionBytes: 16 });
    const works = groups.map((group) => group.allReduce(new Float32Array(100), { name: 'w' }));
    await world.each((group) => group.destroy());
    for (const work of works) expect(work).toMatchObject({ done: true, error: undefined });
  });
});

it('is drawn on every rank: queue and communication of each part, and the credit', async () => {
  const recorders = [0, 1].map(() => createRecorder({ clock: systemClock, thread: 'comm' }));
  await using world = await startRanks(2, { kind: 'network', trace: (rank) => recorders[rank] });
  const groups = await schedule(world, { creditBytes: 8, partitionBytes: 4 });
  await Promise.all(groups.map((group) => group.allReduce(new Float32Array(3), { name: 'w', priority: 5 })));
  for (const [rank, recorder] of recorders.entries()) {
    const { traceEvents } = chromeTrace({ rank, host: 'here', pid: 1, offsetMs: 0 }, [recorder.snapshot()]);
    for (const phase of ['QUEUE', 'COMMUNICATION']) {
      const spans = traceEvents.filter(({ name }) => name === `all-reduce ${phase}`);
      expect(spans.map(({ args }) => args?.part)).toEqual([0, 1, 2]);
      expect(spans[0].args).toMatchObject({ tensor: 'w', priority: 5, parts: 3, bytes: 4 });
    }
    const credit = traceEvents.filter(({ ph, name }) => ph === 'C' && name.startsWith('credit in flight')).map(({ args }) => args?.bytes);
    expect(Math.max(...credit.map(Number))).toBeLessThanOrEqual(8);
    expect(credit.at(-1)).toBe(0);
  }
});

it('shares its credit with what else the process sends', async () => {
  /** Most bytes that rank 0 has in flight, beside those of a push that is on its way all the time. */
  const mostBeside = async (pushBytes: number): Promise<number> => {
    const recorder = createRecorder({ clock: systemClock, thread: 'comm' });
    const arbiters = [new Arbiter(), new Arbiter()];
    const server = arbiters[0].open({ creditBytes: () => 16, resource: 'network', isDestination: true, onRoom: () => undefined });
    server.started(pushBytes);
    const trace = (rank: number): TraceRecorder => (rank === 0 ? recorder : nullRecorder);
    await using world = await startRanks(2, { kind: 'network', hostIds: ['a', 'b'], trace, arbiter: (rank) => arbiters[rank] });
    // Ranks agree on two of the tensors at a time.
    const groups = await schedule(world, { creditBytes: 16, partitionBytes: 8 });
    const tensors = groups.map(() => ['a', 'b', 'c', 'd'].map(() => Float32Array.of(1)));
    await Promise.all(groups.flatMap((group, rank) => tensors[rank].map((tensor, k) => group.allReduce(tensor, { name: `w${k}` }))));
    expect(tensors[0].flatMap((tensor) => [...tensor])).toEqual([2, 2, 2, 2]);
    const { traceEvents } = chromeTrace({ rank: 0, host: 'here', pid: 1, offsetMs: 0 }, [recorder.snapshot()]);
    const credit = traceEvents.filter(({ ph, name }) => ph === 'C' && name.startsWith('credit in flight'));
    return Math.max(...credit.map(({ args }) => Number(args?.bytes)));
  };
  expect(await mostBeside(0)).toBeGreaterThan(4);
  // The first part goes, whatever else is on its way; a second one waits for it.
  expect(await mostBeside(13)).toBe(4);
});

it('several scheduled groups share a process', async () => {
  await using world = await startRanks(2, { kind: 'network' });
  const first = await schedule(world, { creditBytes: 64, partitionBytes: 16 });
  const second = await schedule(world, { creditBytes: 1000, partitionBytes: 400 });
  const run = async (group: ProcessGroup): Promise<number> => {
    const array = new Float32Array(333).fill(group.rank + 1);
    for (let step = 0; step < 3; step++) await group.allReduce(array);
    return array[332];
  };
  expect(await Promise.all([...first, ...second].map(run))).toEqual([12, 12, 12, 12]);
});

it.each([
  ['credit', 'SHOAL_SCHEDULE_CREDIT_BYTES', { scheduleCreditBytes: 2 ** 50 }],
  ['partition', 'SHOAL_SCHEDULE_PARTITION_BYTES', { schedulePartitionBytes: 2 ** 50 }],
])('a %s larger than memory is refused where the settings say it, and not where a program says another', async (_, name, settings) => {
  await using world = await startRanks(1, { settings });
  const [group] = world.groups;
  const message = expect.stringMatching(`^${name}: ${2 ** 50} bytes are more than this machine's memory`) as string;
  await expect(group.scheduled()).rejects.toMatchObject({ code: 'usage', message });
  const scheduled = await group.scheduled({ creditBytes: 100, partitionBytes: 10 });
  await scheduled.destroy();
});

it('parts smaller than a floor are refused, and many parts are warned of once', async () => {
  const said: string[] = [];
  const log = { ...silentLogger, warn: (text: string) => void said.push(text) };
  await using world = await startRanks(2, { log, partitionBytesMin });
  const [group] = world.groups;
  const message = 'partitionBytes must be at least 4096, not 64: every part costs all ranks about as much as a small all-reduce';
  const tuning = { space: { partitionBytes: { least: 64, most: 8192 } } };
  for (const options of [{ partitionBytes: 64 }, { tuning }])
    await expect(group.scheduled(options)).rejects.toMatchObject({ code: 'usage', message: `scheduled: ${message}` });
  const groups = await schedule(world, { creditBytes: 2 ** 20, partitionBytes: 4096 });
  expect(() => groups[0].setScheduling({ partitionBytes: 64 })).toThrow(`setScheduling: ${message}`);
  const reduce = (count: number): Promise<unknown> =>
    Promise.all(groups.map((each) => each.allReduce(new Uint8Array(count), { name: 'x' })));
  await reduce(4096 * 1000);
  expect(said).toEqual([]);
  await reduce(4096 * 1001);
  await reduce(4096 * 1001);
  const warning = `'x' of group 'world/group-1', ${4096 * 1001} bytes, goes in 1001 parts, each of which costs about as much as a small all-reduce; partitionBytes of 8192 or more makes fewer`;
  expect(said).toEqual([warning]);
});

it.each<[string, object]>([
  ['a credit of zero', { creditBytes: 0 }],
  ['a negative partition', { partitionBytes: -1 }],
  ['a partition larger than memory', { partitionBytes: Number.MAX_SAFE_INTEGER }],
  ['what is misspelt', { credit: 5 }],
])('%s is refused', async (_, options) => {
  await using world = await startRanks(1);
  const [group] = world.groups;
  await expect(Promise.resolve().then(() => group.scheduled(options))).rejects.toMatchObject({ code: 'usage' });
  const scheduled = await group.scheduled();
  expect(() => scheduled.setScheduling(options)).toThrow(expect.objectContaining({ code: 'usage' }));
  expect(() => scheduled.allReduce(new Float32Array(1), { priority: NaN })).toThrow(expect.objectContaining({ code: 'usage' }));
  expect(() => scheduled.allReduce(new Float32Array(1), { name: 'x'.repeat(257) })).toThrow(expect.objectContaining({ code: 'usage' }));
});
