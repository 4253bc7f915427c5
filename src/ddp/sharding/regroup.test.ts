/** The sharded optimiser in worlds that change: whoever is lost or joins, and whenever, parameters have the bits of unsharded optimisers in fresh
 *  worlds of the same ranks, each begun from the state that the one before it had at that step. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { temporaryFolder } from '../../base/testing/temporary-folder.ts';
import type { ProcessGroup, Work } from '../../group/caller/types.ts';
import { InProcessSite, startRanks } from '../../group/testing/in-process-world.ts';
import { Checkpoints } from '../checkpoints/checkpoints.ts';
import { elastic, type ElasticState } from '../../elastic/elastic.ts';
import { Adam, SGD, type Floats, type OptimizerParameter } from '../optimizers.ts';
import { ZeroRedundancyOptimizer, type ZeroGroup } from './zero-redundancy-optimizer.ts';

const sizes = [5, 40, 17, 0, 33, 8];
const steps = 24;
const options = { lr: 0.01, weightDecay: 0.1 };

function parametersOf(): OptimizerParameter[] {
  const random = seededRandom(1);
  return sizes.map((size, k) => {
    const values = Array.from({ length: size }, () => random.next() - 0.5);
    return { name: k === 5 ? 'p1.' : `p${k}`, data: k % 3 === 2 ? Float64Array.from(values) : Float32Array.from(values) };
  });
}

/** A rank's gradients of a step, averaged over the ranks of the group. */
async function gradientsOf(group: ProcessGroup, step: number, rank: number): Promise<Floats[]> {
  const random = seededRandom(step * 100 + rank);
  const gradients = parametersOf().map(({ data }) => data.map(() => random.next() * 2 - 1) as Floats);
  for (const data of gradients) await group.allReduce(data, { op: 'avg' });
  return gradients;
}

/** The learning rate falls once. */
const rateOf = (step: number): number => (step < steps / 2 ? options.lr : options.lr / 4);

type Changes = (readonly [step: number, ranks: readonly number[]])[];

/** Trains with a sharded Adam. @param during what a rank does as its step begins. */
async function train(world: ProcessGroup, redundancy: 0 | 1, during: (rank: number, step: number) => Promise<void> | void = () => {}) {
  const rank = world.globalRanks[world.rank];
  const parameters = parametersOf();
  const sharded = new ZeroRedundancyOptimizer(world, parameters, Adam, options, { redundancy });
  const changes: Changes = [];
  const state: ElasticState = { step: 0, tensors: parameters.map(({ data }) => data), sharded, extra: changes };
  const last = await elastic.run(world, state, async (group, _, boundary) => {
    const ranks = [...group.globalRanks];
    while (state.step < steps) {
      await during(rank, state.step);
      const gradients = await gradientsOf(group, state.step, rank);
      // Once, and not after each change: what is set goes along.
      if (state.step === steps / 2) (sharded.local as Adam).lr = rateOf(state.step);
      await sharded.step(gradients);
      const seen = state.extra as Changes;
      if (seen.at(-1)?.[1].join() !== ranks.join()) seen.push([state.step, ranks]);
      state.step++;
      await boundary();
    }
  });
  return { last, changes: state.extra as Changes, parameters, sharded };
}

/** The same training without sharding: a fresh world for each change, from the parameters and the state that the last one had. */
async function reference(changes: Changes): Promise<OptimizerParameter[]> {
  const parameters = parametersOf();
  const { state } = new Adam(parameters, options);
  for (const [k, [from, ranks]] of changes.entries()) {
    const to = changes[k + 1]?.[0] ?? steps;
    await using world = await startRanks(ranks.length);
    await world.each(async (group) => {
      const own = parameters.map(({ name, data }) => ({ name, data: data.slice() as Floats }));
      const adam = new Adam(own, options);
      for (const [name, array] of Object.entries(state)) adam.state[name].set(array);
      for (let step = from; step < to; step++) {
        adam.lr = rateOf(step);
        adam.step(await gradientsOf(group, step, ranks[group.rank]));
      }
      await group.barrier();
      if (group.rank !== 0) return;
      for (const [index, { data }] of own.entries()) parameters[index].data.set(data);
      for (const [name, array] of Object.entries(adam.state)) state[name].set(array);
    });
  }
  return parameters;
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
}

type Path = { readonly kind: 'host' | 'network'; readonly fastPath: boolean };

/** Ranks that train, of which some crash: from then on they do nothing more. */
async function startTraining(ranks: number, redundancy: 0 | 1, path: Path = { kind: 'host', fastPath: false }) {
  const site = new InProcessSite(ranks, path);
  const lost = new Set<number>();
  const furthest = new Map<number, number>();
  const during = async (rank: number, step: number): Promise<void> => {
    furthest.set(rank, step);
    if (lost.has(rank)) await new Promise(() => undefined);
    await turns(1);
  };
  const groups = await Promise.all(Array.from({ length: ranks }, (_, rank) => site.start(rank)));
  const results = groups.map((group) => train(group, redundancy, during));
  for (const result of results) result.catch(() => undefined);
  return {
    lose: (...victims: number[]) => {
      for (const victim of victims) lost.add(victim);
      for (const victim of victims) site.crash(victim);
    },
    join: (rank: number) => {
      results[rank] = site.start(rank).then((group) => train(group, redundancy, during));
      results[rank].catch(() => undefined);
    },
    /** Rank 0 has begun this step. */
    reached: (step: number) => expect.poll(() => furthest.get(0) ?? 0, { interval: 1 }).toBeGreaterThanOrEqual(step),
    results,
    /** All that are left end alike. */
    end: async (left: readonly number[]) => {
      const ends = await Promise.all(left.map((rank) => results[rank]));
      const [{ changes, parameters }] = ends;
      const expected = await reference(changes);
      expect(parameters).toEqual(expected);
      for (const end of ends) {
        expect({ parameters: end.parameters, changes: end.changes }).toEqual({ parameters, changes });
        end.sharded.close();
      }
      await Promise.all(ends.map(({ last }) => last.destroy({ timeoutMs: 100 })));
      return changes.map(([, ranks]) => ranks.join(''));
    },
  };
}

describe.each<Path>([
  { kind: 'host', fastPath: true },
  { kind: 'network', fastPath: false },
])('over $kind', (path) => {
  it.each([1, 2, 3, 4, 5, 6, 7, 8])('a rank is lost, and then another: seed %i', async (seed) => {
    const random = seededRandom(seed);
    const training = await startTraining(4, 1, path);
    const left = [0, 1, 2, 3];
    for (const step of [4, 14]) {
      await training.reached(step);
      await turns(random.integer(30));
      training.lose(...left.splice(1 + random.integer(left.length - 1), 1));
    }
    expect(await training.end(left)).toHaveLength(3);
  });

  it.each([1, 2, 3, 4, 5, 6])('a rank joins, and one is lost about then: seed %i', async (seed) => {
    const random = seededRandom(seed);
    const training = await startTraining(3, 1, path);
    const victim = 1 + random.integer(2);
    await training.reached(3);
    training.join(3);
    await turns(random.integer(60));
    training.lose(victim);
    const changes = await training.end([0, 3 - victim]);
    if (changes.at(-1)?.includes('3') === true) await training.results[3];
  });
});

it.each([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])('a rank is lost as the state of another is dealt out: seed %i', async (seed) => {
  const random = seededRandom(seed);
  const training = await startTraining(5, 1);
  const left = [0, 1, 2, 3, 4];
  await training.reached(5);
  training.lose(...left.splice(1 + random.integer(4), 1));
  await turns(random.integer(100));
  training.lose(...left.splice(1 + random.integer(3), 1));
  // Both may have had the last copies of some state: all agree on that.
  const ends = await Promise.allSettled(left.map((rank) => training.results[rank]));
  const errors = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason as Error] : []));
  if (errors.length === 0) expect((await training.end(left)).at(-1)).toBe(left.join(''));
  else expect(errors.map((error) => error.message)).toEqual(left.map(() => expect.stringContaining('is lost with its rank') as string));
});

it('two ranks that are not next to each other are lost at once', async () => {
  const training = await startTraining(4, 1);
  await training.reached(5);
  training.lose(1, 3);
  expect(await training.end([0, 2])).toEqual(['0123', '02']);
});

it.each<[string, 0 | 1, number[]]>([
  ['a rank and the one that keeps its copy', 1, [1, 2]],
  ['the last rank and the first', 1, [3, 0]],
  ['a rank, without redundancy', 0, [2]],
])('state that is lost ends all ranks: %s', async (_, redundancy, victims) => {
  const training = await startTraining(4, redundancy);
  await training.reached(5);
  training.lose(...victims);
  const left = [0, 1, 2, 3].filter((rank) => !victims.includes(rank));
  for (const rank of left)
    await expect(training.results[rank]).rejects.toMatchObject({
      code: 'aborted',
      message: expect.stringMatching(/is lost with its rank: 'p\d\.+exp_avg'.*start again from the last checkpoint/) as string,
    });
});

it('ranks that join get their part of the state, without redundancy too', async () => {
  const training = await startTraining(2, 0);
  await training.reached(5);
  training.join(2);
  expect(await training.end([0, 1, 2])).toEqual(['01', '012']);
});

it.each<[string, readonly number[], number]>([
  ['on some ranks only is kept on all', [1, 2], 1],
  ['on all ranks is taken back', [0, 1, 2], 0],
])('a step that fails %s', async (_, failing, steps) => {
  await using world = await startRanks(3);
  await world.each(async (group) => {
    const [parameters, whole] = [parametersOf(), parametersOf()];
    let fails = false;
    const { rank, size } = group;
    const flaky: ZeroGroup = {
      ...{ rank, size, tensor: group.tensor.bind(group), release: group.release.bind(group), barrier: group.barrier.bind(group) },
      ...{ allGatherObject: group.allGatherObject.bind(group), gatherObject: group.gatherObject.bind(group) },
      allToAll: group.allToAll.bind(group),
      allGather: (output, input, how) => {
        const work = group.allGather(output, input, how);
        // The call ends well elsewhere, and as lost here.
        return fails ? (work.then(() => Promise.reject(new ShoalError('peer-lost', 'a rank is lost'))) as unknown as Work) : work;
      },
    };
    const zero = new ZeroRedundancyOptimizer(flaky, parameters, Adam, options, { redundancy: 1 });
    await zero.regroup(flaky);
    fails = failing.includes(rank);
    const adam = new Adam(whole, options);
    const before = await gradientsOf(group, 0, rank);
    const outcome = zero.step(before);
    if (fails) await expect(outcome).rejects.toMatchObject({ code: 'peer-lost' });
    else await outcome;
    if (steps === 1) adam.step(before);
    // A rank that is behind gets the parameters of one that is not.
    for (const { data } of parameters) await group.broadcast(data);
    zero.settle(steps);
    await zero.regroup(group);
    expect(zero.steps).toBe(steps);
    const gradients = await gradientsOf(group, 1, rank);
    await zero.step(gradients);
    adam.step(gradients);
    expect(parameters).toEqual(whole);
  });
});

it('a checkpoint is loaded into all that is held; copies that are forgotten are a mismatch', async () => {
  const folder = temporaryFolder('zero-held');
  await using world = await startRanks(3);
  const errors = await world.each(async (group) => {
    const make = () => {
      const parameters = parametersOf();
      const zero = new ZeroRedundancyOptimizer(group, parameters, Adam, options, { redundancy: 1 });
      return { parameters, zero, tensors: Object.fromEntries(parameters.map(({ name, data }) => [name, data])) };
    };
    const checkpoints = new Checkpoints(group, folder);
    const first = make();
    for (const step of [0, 1]) await first.zero.step(await gradientsOf(group, step, group.rank));
    await checkpoints.save({ tensors: first.tensors, owned: first.zero.state });
    const [resumed, forgetful] = [make(), make()];
    const found = await checkpoints.latest();
    await found?.load({ ...resumed.tensors, ...resumed.zero.held });
    await found?.load({ ...forgetful.tensors, ...forgetful.zero.state });
    const gradients = await gradientsOf(group, 2, group.rank);
    await first.zero.step(gradients);
    await resumed.zero.step(gradients);
    expect(resumed.parameters).toEqual(first.parameters);
    return forgetful.zero.step(gradients).catch((thrown: unknown) => thrown);
  });
  for (const error of errors)
    expect(error).toMatchObject({
      code: 'mismatch',
      message: expect.stringMatching(/copy of parameter 'p.*load checkpoints into 'held'/) as string,
    });
});

it('refuses what it does not take', async () => {
  await using world = await startRanks(1);
  const [group] = world.groups;
  expect(() => new ZeroRedundancyOptimizer(group, parametersOf(), SGD, {}, { redundancy: 2 as never })).toThrow(
    /option 'redundancy' must be one of 0, 1, not 2/,
  );
  const zero = new ZeroRedundancyOptimizer(group, parametersOf(), SGD);
  await expect(zero.regroup({} as never)).rejects.toThrow(/regroup: the first argument is the process group/);
  const state = { step: 0, tensors: [], sharded: {} as never };
  await expect(elastic.run(group, state, async () => {})).rejects.toThrow(/state.sharded is a ZeroRedundancyOptimizer, not an object/);
  zero.close();
  await expect(zero.regroup(group)).rejects.toMatchObject({ code: 'closed' });
});
