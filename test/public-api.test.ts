/** Scripts run without a type check: every public function refuses what it does not take, whatever is wrong with it, before anything
 *  is done. Nothing is left out: the tables below must have every function of every subpath of the package, or they do not compile. */
import { describe, expect, it } from 'vitest';
import * as shoal from '../src/index.ts';
import { createRegionAllocator } from '../src/memory/regions/allocator.ts';
import type { CommGroup } from '../src/group/process-group.ts';
import { CompletedWork, PendingWork } from '../src/group/work.ts';
import { startRanks } from '../src/group/testing/in-process-world.ts';
import type { ProcessGroup, Work } from '../src/index.ts';
import { argument, call, options, refusesEverythingElse, type CallsOf, type Exempt, type PublicCall } from './support/public-calls.ts';

type Table = Readonly<Record<string, PublicCall | Exempt>>;

/** What a module exports that can be called or constructed. */
type FunctionsOf<Module> = {
  [K in keyof Module & string]: Module[K] extends ((...given: never[]) => unknown) | (abstract new (...given: never[]) => unknown)
    ? K
    : never;
}[keyof Module & string];

type Exports<Module> = { readonly [K in FunctionsOf<Module>]: PublicCall | Exempt };

async function walk(name: string, table: Table): Promise<void> {
  for (const [method, each] of Object.entries(table)) {
    if (typeof each === 'string') continue;
    expect(await refusesEverythingElse(`${name}.${method}`, each), `${name}.${method}`).toBeGreaterThan(0);
  }
}

/** The types know every function; so does the module as it runs. */
function hasAll(module: object, table: Table): void {
  const functions = Object.entries(module).flatMap(([name, value]) => (typeof value === 'function' ? [name] : []));
  expect(Object.keys(table).toSorted()).toEqual(functions.toSorted());
}

const tensorLike = argument(new Float32Array(2));

describe('shoal', () => {
  const exported: Exports<typeof shoal> = {
    initProcessGroup: call(
      shoal.initProcessGroup,
      options('backend', 'initMethod', 'rank', 'worldSize', 'timeoutMs', 'joinTimeoutMs', 'environment'),
    ),
    isShoalError: 'takes anything',
    ShoalError: 'an error is made whatever it is told',
    Tensor: call(
      (...given: ConstructorParameters<typeof shoal.Tensor>) => new shoal.Tensor(...given),
      argument('float32'),
      argument([2]),
      argument(createRegionAllocator().create(8)),
      argument(0),
    ),
  };

  function callsOfGroup(group: CommGroup): CallsOf<ProcessGroup> {
    const [pair, part] = [argument(new Float32Array(4)), argument(new Float32Array(2))];
    const rest = ['timeoutMs', 'name'];
    return {
      tensor: call(group.tensor.bind(group), argument('float32'), argument([2])),
      release: call(group.release.bind(group), argument(undefined)),
      allReduce: call(group.allReduce.bind(group), tensorLike, options('op', 'factor', ...rest)),
      broadcast: call(group.broadcast.bind(group), tensorLike, options('root', ...rest)),
      reduce: call(group.reduce.bind(group), tensorLike, options('op', 'factor', 'root', ...rest)),
      allGather: call(group.allGather.bind(group), pair, part, options('counts', ...rest)),
      gather: call(group.gather.bind(group), pair, part, options('counts', 'root', ...rest)),
      scatter: call(group.scatter.bind(group), part, pair, options('counts', 'root', ...rest)),
      reduceScatter: call(group.reduceScatter.bind(group), part, pair, options('op', 'factor', 'counts', ...rest)),
      allToAll: call(group.allToAll.bind(group), part, part, options('inputSplits', 'outputSplits', ...rest)),
      send: call(group.send.bind(group), tensorLike, argument(1), options('tag', ...rest)),
      recv: call(group.recv.bind(group), tensorLike, argument(1), options('tag', ...rest)),
      barrier: call(group.barrier.bind(group), options(...rest)),
      monitoredBarrier: call(group.monitoredBarrier.bind(group), options(...rest)),
      split: call(group.split.bind(group), argument(0, 'null'), options('key', 'timeoutMs')),
      newGroup: call(group.newGroup.bind(group), argument([0]), options('timeoutMs', 'name', 'backend')),
      destroy: call(group.destroy.bind(group), options('timeoutMs')),
    };
  }

  const callsOfWork = (work: Work): CallsOf<Work> => ({
    waitSync: call(work.waitSync.bind(work), argument(undefined, 'undefined', 'number')),
    then: 'takes what promises take',
  });

  it('its functions and classes', async () => {
    hasAll(shoal, exported);
    await walk('shoal', exported);
  });

  it('groups, which are as good as before', async () => {
    await using world = await startRanks(2);
    await walk('group', callsOfGroup(world.groups[0]));
    const sums = await world.each(async (group) => {
      const x = Int32Array.of(group.rank + 1);
      await group.allReduce(x);
      return x[0];
    });
    expect(sums).toEqual([3, 3]);
  });

  it('all-reduces that are repeated', async () => {
    const group = await shoal.initProcessGroup({ environment: {} });
    for (const x of [group.tensor('float32', [2]), new Float32Array(2)]) {
      for (let k = 0; k < 3; k++) await group.allReduce(x, { op: shoal.ReduceOp.Max });
      for (let k = 0; k < 3; k++) await group.allReduce(x);
      await walk('group', { allReduce: call(group.allReduce.bind(group), argument(x), options('op', 'factor', 'timeoutMs', 'name')) });
    }
    await group.destroy();
  });

  it('works', async () => {
    await walk('work', callsOfWork(new CompletedWork()));
    await walk('work', callsOfWork(new PendingWork({ now: () => 0, drain: () => undefined, pump: () => false }, 'a work')));
  });
});
