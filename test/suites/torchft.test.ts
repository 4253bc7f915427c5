/** torchft's tests of its manager, told from their descriptions: what it does with quorums and healing, `elastic.run` does with the ranks of a group,
 *  which the next group has or has not. The originals run in one process, as these do. */
import { describe, expect } from 'vitest';
import { VirtualClock } from '../../src/base/clock.ts';
import { seededRandom } from '../../src/base/random.ts';
import { elastic, type ElasticState } from '../../src/elastic/elastic.ts';
import type { ProcessGroup } from '../../src/group/caller/types.ts';
import { InProcessSite, type InProcessOptions } from '../../src/group/testing/in-process-world.ts';
import type { DType } from '../../src/memory/dtype.ts';
import { ReduceOp } from '../../src/memory/reduce-op.ts';
import { torchft } from './elastic-suites.ts';
import { numbersOf, tensorOf } from './support/element-values.ts';
import { onOwnRanks, ranksOf } from './support/shared-worlds.ts';
import { SuiteCases } from './support/suite-cases.ts';

/** A job whose ranks can be lost. */
async function startSite(size: number, options: InProcessOptions = {}): Promise<{ site: InProcessSite; groups: ProcessGroup[] }> {
  const site = new InProcessSite(size, { kind: 'host', fastPath: true, ...options });
  return { site, groups: await Promise.all(ranksOf(size).map((rank) => site.start(rank))) };
}

async function endAll(groups: readonly ProcessGroup[]): Promise<void> {
  await Promise.all(groups.map((group) => group.destroy({ timeoutMs: 100 })));
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

interface Extra {
  readonly batches: number;
  readonly note?: string;
}

interface Trained {
  readonly last: ProcessGroup;
  readonly ranks: readonly number[];
  readonly step: number;
  readonly extra: Extra;
  readonly weights: Float32Array;
}

interface Training {
  /** The training is over when these ranks have made so many steps together. */
  readonly ranks: readonly number[];
  readonly steps: number;
  /** The state that this rank begins with. */
  readonly loaded?: { readonly step: number; readonly extra: Extra };
  /** Called as a step begins. */
  readonly during?: (rank: number, step: number, group: ProcessGroup) => Promise<void> | void;
}

async function train(group: ProcessGroup, { ranks, steps, loaded, during }: Training): Promise<Trained> {
  const rank = group.globalRanks[group.rank];
  const weights = new Float32Array(1000).fill(sumTo(loaded?.step ?? 0));
  const state: ElasticState = { step: loaded?.step ?? 0, tensors: [weights], extra: loaded?.extra ?? { batches: 0 } };
  const last = await elastic.run(group, state, async (current, _, boundary) => {
    const isWhole = ranks.every((each) => current.globalRanks.includes(each));
    for (let made = 0; !isWhole || made < steps; made++) {
      await during?.(rank, state.step, current);
      const gradient = new Float32Array(weights.length).fill(state.step + 1);
      await current.allReduce(gradient, { op: ReduceOp.Avg });
      weights.forEach((each, i) => (weights[i] = each + gradient[i]));
      const extra = state.extra as Extra;
      state.extra = { ...extra, batches: extra.batches + current.size };
      state.step++;
      await boundary();
    }
  });
  return { last, ranks: last.globalRanks, step: state.step, extra: state.extra as Extra, weights };
}

/** The weights after so many steps, each of which counts once. */
const sumTo = (steps: number): number => (steps * (steps + 1)) / 2;

/** All have ended with the same ranks and the same state. */
async function expectSame(trained: readonly Trained[], ranks: readonly number[]): Promise<void> {
  for (const { last: _, weights, ...each } of trained) {
    expect(each).toEqual({ ranks, step: trained[0].step, extra: trained[0].extra });
    expect(weights).toEqual(new Float32Array(1000).fill(sumTo(each.step)));
  }
  await endAll(trained.map(({ last }) => last));
}

/** A job in which ranks are lost as their step 2 begins; others are started for them, and in the end all have the same state. */
async function recovers(size: number, lost: readonly number[]): Promise<void> {
  const { site, groups } = await startSite(size);
  const [left, late] = [ranksOf(size).filter((rank) => !lost.includes(rank)), lost.map((_, k) => size + k)];
  const joined: Promise<Trained>[] = [];
  const training: Training = {
    ranks: [...left, ...late],
    steps: 4,
    during: async (rank, step) => {
      if (lost.includes(rank) && step === 2) {
        site.crash(rank);
        await new Promise(() => undefined);
      }
      if (rank === 0 && step === 3 && joined.length === 0)
        for (const each of late) joined.push(site.start(each).then((group) => train(group, training)));
    },
  };
  const all = groups.map((group) => train(group, training));
  const ends = await Promise.all(left.map((rank) => all[rank]));
  await expectSame([...ends, ...(await Promise.all(joined))], ends[0].ranks);
  expect(ends[0].ranks.toSorted((a, b) => a - b)).toEqual([...left, ...late]);
}

const cases = new SuiteCases(torchft);

function stateCases(): void {
  cases.add('manager', 'the group that trains is the one that was given, and so is the last one', () =>
    onOwnRanks(2, async (group) => {
      expect(await elastic.run(group, { step: 0, tensors: [] }, async (current) => expect(current).toBe(group))).toBe(group);
    }),
  );
  const loads = [
    ['state_dict', 'steps and batches that one rank has loaded are those of all', { batches: 2345 }],
    ['user_state_dict', 'a state of the program’s own comes with it', { batches: 0, note: 'of the program' }],
  ] as const;
  for (const [test, what, extra] of loads)
    cases.add(test, what, async () => {
      const { groups } = await startSite(3);
      const loaded = { step: 1234, extra };
      const trained = await Promise.all(groups.map((group, rank) => train(group, { ranks: [], steps: 0, ...(rank === 1 && { loaded }) })));
      expect(trained.map(({ step, extra: got }) => [step, got])).toEqual(ranksOf(3).map(() => [1234, extra]));
      await expectSame(trained, [0, 1, 2]);
    });
  cases.add('quorum_happy', 'a step counts once, with the batches of all ranks', async () => {
    const { groups } = await startSite(2);
    const trained = await Promise.all(groups.map((group) => train(group, { ranks: [0, 1], steps: 1 })));
    expect(trained.map(({ step, extra }) => [step, extra.batches])).toEqual([1, 2].map(() => [1, 2]));
    await expectSame(trained, [0, 1]);
  });
  cases.add('quorum_heal_sync', 'a newcomer gets step 20, and takes part in the next one', async () => {
    const { site, groups } = await startSite(2);
    const seen: [number, number][] = [];
    const training: Training = {
      ranks: [0, 1, 2],
      steps: 1,
      loaded: { step: 20, extra: { batches: 40 } },
      during: (rank, step, { size }) => void (rank === 2 && seen.push([step, size])),
    };
    const { loaded: _, ...newcomer } = training;
    const late = site.start(2).then((group) => train(group, newcomer));
    const trained = await Promise.all([...groups.map((group) => train(group, training)), late]);
    expect(seen).toEqual([[trained[0].step - 1, 3]]);
    expect(trained[0].step).toBeGreaterThan(20);
    await expectSame(trained, [0, 1, 2]);
  });
  cases.each(
    'quorum_checkpoint_errors',
    [1, 2, 3, 4, 5, 6],
    (seed) => `the rank that hands on its state is lost meanwhile, seed ${seed}`,
    async (seed) => {
      const { site, groups } = await startSite(3);
      const loaded = { step: 7, extra: { batches: 21 } };
      const during = (rank: number): Promise<void> | void => (rank === 0 ? new Promise(() => undefined) : undefined);
      const all = groups.map((group, rank) => train(group, { ranks: [1, 2], steps: 2, during, ...(rank === 0 && { loaded }) }));
      for (const each of all) each.catch(() => undefined);
      await turns(seededRandom(seed).integer(12));
      site.crash(0);
      const trained = await Promise.all([all[1], all[2]]);
      // All of its state, or none.
      expect([2, 9]).toContain(trained[0].step);
      await expectSame(trained, [1, 2]);
    },
  );
}

function failureCases(): void {
  const moments = [
    ['allreduce_error', 'a call that is underway fails, the step is made again, and the next ones count', true],
    ['pg_errored', 'a failure between two calls: the next one tells of it, and its step is made again', false],
  ] as const;
  for (const [test, what, isUnderway] of moments)
    cases.add(test, what, async () => {
      const { site, groups } = await startSite(3);
      const failures: unknown[] = [];
      let isLost = false;
      const during = async (rank: number, step: number, group: ProcessGroup): Promise<void> => {
        if (step !== 3 || isLost) return;
        if (rank === 2) {
          if (isUnderway) site.crash(2);
          await new Promise(() => undefined);
        }
        if (!isUnderway && rank === 0) site.crash(2);
        const call = (): PromiseLike<void> => group.allReduce(new Float32Array(4));
        await Promise.all([call(), call()]).catch((error: unknown) => {
          failures.push(error);
          isLost = failures.length === 2;
          throw error;
        });
      };
      const all = groups.map((group) => train(group, { ranks: [0, 1], steps: 5, during }));
      const trained = await Promise.all([all[0], all[1]]);
      expect(failures).toEqual([0, 1].map(() => expect.objectContaining({ code: 'peer-lost', peer: 2 }) as Error));
      await expectSame(trained, [0, 1]);
    });
  cases.add('manager_report_error', 'an error that one rank reports ends the training on all', async () => {
    const { groups } = await startSite(2);
    const during = (rank: number, step: number, group: ProcessGroup): void => {
      if (rank === 1 && step === 3) group.abort(new Error('some error'));
    };
    const all = groups.map((group) => train(group, { ranks: [0, 1], steps: 9, during }));
    for (const each of all)
      await expect(each).rejects.toMatchObject({ code: 'aborted', message: expect.stringMatching(/rank 1 .*some error/) as string });
    expect(groups.map(({ isAborted }) => isAborted)).toEqual([true, true]);
    await endAll(groups);
  });
  cases.add('manager_wrap_future', 'a program puts a value in the place of a call that fails, and the group tells of it', () =>
    onOwnRanks(2, async (group) => {
      const work = group.recv(new Float32Array(1), 1 - group.rank).then(
        () => 1,
        () => 2,
      );
      expect(group.isAborted).toBe(false);
      if (group.rank === 0) group.abort(new Error('injected failure'));
      expect([await work, group.isAborted]).toEqual([2, true]);
      await expect((async () => group.barrier())()).rejects.toMatchObject({ code: 'aborted' });
    }),
  );
  cases.add('manager_wrap_future_timeout', 'a call that takes too long', () =>
    onOwnRanks(2, async (group) => {
      if (group.rank === 1) return;
      const call = group.allReduce(new Float32Array(4), { timeoutMs: 10 });
      await expect(call).rejects.toMatchObject({ code: 'timeout', peer: 1, timeoutMs: 10 });
    }),
  );
  cases.add('quorum_happy_timeouts', 'each change has a time limit of its own', async () => {
    const clock = new VirtualClock();
    const { groups } = await startSite(3, { clock });
    for (const timeoutMs of [12, 23]) {
      const both = [groups[0], groups[1]].map((group) =>
        expect(group.shrink({ timeoutMs })).rejects.toMatchObject({ code: 'timeout', peer: 2, timeoutMs }),
      );
      await turns(20);
      clock.advance(timeoutMs / 2);
      await turns(20);
      clock.advance(timeoutMs);
      await Promise.all(both);
    }
    await endAll(groups);
  });
  cases.add('quorum_configure_errors', 'a rank is lost while the others go on without another one', async () => {
    const { site, groups } = await startSite(4);
    await Promise.all(groups.map((group) => group.barrier()));
    site.crash(3);
    const all = groups.slice(0, 3).map((group) => train(group, { ranks: [0, 1], steps: 2 }));
    for (const each of all) each.catch(() => undefined);
    await turns(2);
    site.crash(2);
    await expectSame(await Promise.all([all[0], all[1]]), [0, 1]);
  });
  cases.add('quorum_timeout', 'a rank whose others do not come', async () => {
    const site = new InProcessSite(2, { kind: 'host', joinTimeoutMs: 10 });
    await expect(site.start(0)).rejects.toMatchObject({ code: 'timeout', peer: 1 });
  });
}

function sumCases(): void {
  const dtypes: readonly DType[] = ['float16', 'bfloat16', 'float32', 'int64'];
  cases.each(
    'manager_numerics',
    dtypes,
    (dtype) => `${dtype}, of the ranks that are left`,
    async (dtype) => {
      const { site, groups } = await startSite(6);
      await Promise.all(groups.map((group) => group.barrier()));
      site.crash(5);
      const five = await Promise.all(groups.slice(0, 5).map((group) => group.shrink()));
      const expected: readonly (readonly [ReduceOp, number])[] = [
        ...(dtype === 'int64' ? [] : ([[ReduceOp.Avg, 2]] as const)),
        [ReduceOp.Sum, 10],
        [ReduceOp.Max, 10],
        [ReduceOp.Min, 0],
        [ReduceOp.Product, 0],
      ];
      for (const [op, result] of expected)
        await Promise.all(
          five.map(async (group) => {
            const data = tensorOf(group, dtype, [group.rank === 1 ? 10 : 0]);
            await group.allReduce(data, { op });
            expect(numbersOf(data), op).toEqual([result]);
          }),
        );
      await endAll(five);
    },
  );
  cases.add('manager_allreduce', 'what follows a call sees its result', () =>
    onOwnRanks(2, async (group) => {
      const data = Float32Array.of(group.rank + 1);
      const doubled = group.allReduce(data).then(() => 2 * data[0]);
      expect(await doubled).toBe(6);
    }),
  );
}

describe(torchft.name, () => {
  stateCases();
  failureCases();
  sumCases();
  cases.add('ddp_healthy', 'two ranks end with the same state', async () => {
    const { groups } = await startSite(2);
    await expectSame(await Promise.all(groups.map((group) => train(group, { ranks: [0, 1], steps: 4 }))), [0, 1]);
  });
  cases.add('ddp_recovery', 'one of two ranks is lost', () => recovers(2, [1]));
  cases.add('ddp_recovery_multi_rank', 'two of four ranks are lost at once', () => recovers(4, [2, 3]));
  cases.complete();
});
