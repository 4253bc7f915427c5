/** Random programs on worlds in one process, over the engine, the host fast path and between hosts: what every rank holds at the end
 *  is what the calls say, whoever came late to which of them. `GROUP_WORLDS=10000` runs that many; a failing seed is printed, and `GROUP_SEED=…` shrinks it. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { seededRandom } from '../base/random.ts';
import type { Fabric } from '../fabric/fabric.ts';
import { faultFabric } from '../fabric/testing/hooks/fault.ts';
import { ReduceOp } from '../memory/reduce-op.ts';
import { networkPathScratchBytes } from '../call/network-path-wire.ts';
import { startRanks, type InProcessOptions } from './testing/in-process-world.ts';
import type { CommGroup } from './api/process-group.ts';
import { callOf, stepCounts, type Call, type Step } from './testing/random-program.ts';

const { GROUP_WORLDS = '12', GROUP_SEED } = process.env;
const worlds = Number(GROUP_WORLDS);
/** A failing program is printed at once; with its seed given again, it shrinks. */
const runs = GROUP_SEED === undefined ? { numRuns: worlds, endOnFailure: true } : { numRuns: worlds, seed: Number(GROUP_SEED) };

const stepsOf = (n: number): fc.Arbitrary<Step> =>
  fc.record({
    kind: fc.constantFrom<Step['kind']>('all-reduce', 'all-reduce', 'broadcast', 'all-gather', 'reduce-scatter', 'barrier'),
    count: fc.constantFrom(...stepCounts),
    op: fc.constantFrom<Step['op']>(ReduceOp.Sum, ReduceOp.Max),
    root: fc.nat({ max: n - 1 }),
    plain: fc.array(fc.boolean(), { minLength: n, maxLength: n }),
    late: fc.array(fc.oneof(fc.constant(0), fc.nat({ max: 6 })), { minLength: n, maxLength: n }),
    awaited: fc.array(fc.boolean(), { minLength: n, maxLength: n }),
  });

const program = fc
  .integer({ min: 1, max: 4 })
  .chain((n) => fc.record({ n: fc.constant(n), steps: fc.array(stepsOf(n), { minLength: 1, maxLength: 12 }) }));

/** A rank's wrong turn: what it does instead of step `at`, and of all that follow. */
interface Fault {
  readonly rank: number;
  readonly at: number;
  readonly kind: 'leaves' | 'dies' | 'differs';
}

const faultOf = (n: number): fc.Arbitrary<Fault> =>
  fc.record({ rank: fc.nat({ max: n - 1 }), at: fc.nat({ max: 11 }), kind: fc.constantFrom<Fault['kind']>('leaves', 'dies', 'differs') });

/** @returns why the rank's calls failed; undefined: all are right. */
async function runRank(
  group: CommGroup,
  all: readonly Step[],
  fault?: Fault,
  die?: (rank: number) => Promise<void>,
): Promise<ShoalError | undefined> {
  const calls: Call[] = [];
  let failed: ShoalError | undefined;
  const end = async ({ work, check }: Call): Promise<void> => {
    try {
      await work;
      // Whatever ends well is right.
      check();
    } catch (thrown) {
      if (!(thrown instanceof ShoalError)) throw thrown;
      failed ??= thrown;
    }
  };
  for (const [index, step] of all.entries()) {
    for (let turns = 0; turns < step.late[group.rank]; turns++) await new Promise(setImmediate);
    const isFault = fault?.rank === group.rank && fault.at === index;
    if (isFault && fault.kind === 'leaves') await group.destroy({ timeoutMs: 100 });
    if (isFault && fault.kind === 'dies') await die?.(group.rank);
    if (isFault && fault.kind !== 'differs') return undefined;
    let call: Call;
    try {
      call = isFault ? { work: group.reduce(new Int8Array(3), { root: 0 }), check: () => {} } : callOf(group, step, index);
    } catch (thrown) {
      // The group has failed already.
      failed ??= ShoalError.from(thrown);
      break;
    }
    calls.push(call);
    if (step.awaited[group.rank]) await end(call);
  }
  for (const call of calls) await end(call);
  return failed;
}

const kinds: readonly { name: string; options: (n: number) => InProcessOptions }[] = [
  { name: 'the engine', options: () => ({}) },
  { name: 'the host fast path', options: () => ({ fastPath: true }) },
  { name: 'a network', options: () => ({ kind: 'network' }) },
  {
    name: 'the network fast path',
    options: (n) => ({ kind: 'network', fastPath: true, hostIds: Array.from({ length: n }, (_, rank) => `host ${rank}`) }),
  },
  { name: 'two hosts', options: (n) => ({ hostIds: Array.from({ length: n }, (_, rank) => (rank < n / 2 ? 'a' : 'b')) }) },
];

interface FaultyProgram {
  readonly n: number;
  readonly all: readonly Step[];
  readonly fault: Fault;
  readonly slowMs: number;
}

/** Every rank that fails names the one with the fault. */
async function runFaulty({ n, all, fault, slowMs }: FaultyProgram, options: InProcessOptions): Promise<void> {
  const fabrics: Fabric[][] = Array.from({ length: n }, () => []);
  const wrap: InProcessOptions['wrap'] = (fabric, rank) => {
    const slow = faultFabric(fabric, { clock: systemClock, random: seededRandom(rank), delayMs: [0, slowMs] });
    fabrics[rank].push(slow);
    return slow;
  };
  await using world = await startRanks(n, { ...options, wrap });
  const die = async (rank: number): Promise<void> => void (await Promise.all(fabrics[rank].map((fabric) => fabric.close())));
  const errors = await world.each(async (group) => {
    const error = await runRank(group, all, fault, die);
    // A script that does not catch the error ends here.
    if (error && fault.kind === 'dies') await die(group.rank);
    return error;
  });
  for (const [rank, error] of errors.entries()) {
    if (!error || rank === fault.rank) continue;
    expect(fault.at).toBeLessThan(all.length);
    expect(error.message).toContain(`rank ${fault.rank}`);
    // Every rank prints a line about a disagreement; a rank that leaves early disagrees, too.
    expect(fault.kind === 'dies' ? ['peer-lost'] : ['mismatch', 'peer-lost']).toContain(error.code);
    if (error.code === 'peer-lost') expect(error.peer).toBe(fault.rank);
  }
  const needed = fault.at < all.length && fault.kind === 'differs';
  if (needed) expect(errors.every((error) => error !== undefined)).toBe(true);
}

describe.each(kinds)('random programs over $name', ({ options }) => {
  it(`give what their calls say (${worlds} programs)`, async () => {
    await fc.assert(
      fc.asyncProperty(program, async ({ n, steps: all }) => {
        await using world = await startRanks(n, options(n));
        expect(await world.each((group) => runRank(group, all))).toEqual(world.groups.map(() => undefined));
      }),
      runs,
    );
  });

  it(`end on every rank, and name who left, died or did something else (${worlds} programs)`, async () => {
    const faulty = program
      .filter(({ n }) => n > 1)
      .chain(({ n, steps: all }) =>
        fc.record({ n: fc.constant(n), all: fc.constant(all), fault: faultOf(n), slowMs: fc.constantFrom(0, 0, 2) }),
      );
    await fc.assert(
      fc.asyncProperty(faulty, (faultyProgram) => runFaulty(faultyProgram, options(faultyProgram.n))),
      runs,
    );
  });
});

it('whoever calls last on the host fast path has the result when the call returns', async () => {
  await using world = await startRanks(3, { fastPath: true });
  const data = world.groups.map((group) => group.tensor('float32', [4]));
  for (const { data: values } of data) values.fill(1);
  const works = world.groups.map((group) => group.allReduce(data[group.rank]));
  expect([...data[2].data]).toEqual([3, 3, 3, 3]);
  await Promise.all(works);
  expect([...data[0].data]).toEqual([3, 3, 3, 3]);
});

it('calls of ranks on several hosts take the network fast path, and the comm side ends what it cannot', async () => {
  await using world = await startRanks(3, { kind: 'network', fastPath: true, hostIds: ['a', 'b', 'c'] });
  const data = world.groups.map((group) => group.tensor('float32', [4]));
  for (const { data: values } of data) values.fill(1);
  await world.each((group) => group.allReduce(data[group.rank]));
  const { messages } = world.sockets!;
  expect(messages).toBeGreaterThanOrEqual(3);
  // The largest that goes on sockets of its own, and one element more.
  for (const [count, onSockets] of [
    [networkPathScratchBytes / 4, true],
    [networkPathScratchBytes / 4 + 1, false],
  ] as const) {
    const before = world.sockets!.messages;
    const large = world.groups.map((group) => group.tensor('float32', [count]));
    for (const [rank, { data: values }] of large.entries()) values.forEach((_, k) => (values[k] = (k % 1000) + rank));
    await world.each((group) => group.allReduce(large[group.rank]));
    for (const { data: values } of large) expect(values.every((value, k) => value === 3 * (k % 1000) + 3)).toBe(true);
    expect(world.sockets!.messages > before).toBe(onSockets);
  }
  // Messages that came before the call are there when it returns.
  const works = world.groups.slice(0, 2).map((group) => group.allReduce(data[group.rank]));
  for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
  works.push(world.groups[2].allReduce(data[2]));
  await Promise.all(works);
  expect(data.map(({ data: values }) => [...values])).toEqual(Array.from({ length: 3 }, () => [9, 9, 9, 9]));
});

it("a rank that dies of another one's death is not blamed for it, also when its next call was refused", async () => {
  const step = { op: ReduceOp.Max, root: 1, late: [0, 0, 0] } as const;
  const all: Step[] = [
    { ...step, kind: 'reduce-scatter', count: 2, plain: [true, true, false], late: [0, 2, 0], awaited: [false, true, false] },
    { ...step, kind: 'broadcast', count: 8196, plain: [true, true, false], awaited: [true, true, true] },
    { ...step, kind: 'broadcast', count: 1000, plain: [false, false, true], awaited: [false, false, false] },
  ];
  // A rank that was lost with another one was blamed in one of ten runs.
  for (let k = 0; k < 60; k++) await runFaulty({ n: 3, all, fault: { rank: 0, at: 2, kind: 'dies' }, slowMs: 0 }, { fastPath: true });
});
