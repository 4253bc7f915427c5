/** torch's tests of process groups over gloo and of object collectives, told from their descriptions. */
import { describe, expect } from 'vitest';
import type { ProcessGroup } from '../../src/index.ts';
import { torchGloo, torchObjects } from './foreign-suites.ts';
import { SuiteCases } from './support/suite-cases.ts';
import { ranksOf, sharedWorlds } from './support/shared-worlds.ts';
import { glooCollectiveCases } from './torch/gloo-collectives.ts';
import { glooGroupCases } from './torch/gloo-groups.ts';

const onRanks = sharedWorlds();

describe(torchGloo.name, () => {
  const cases = new SuiteCases(torchGloo);
  glooCollectiveCases(cases, onRanks);
  glooGroupCases(cases, onRanks);
  cases.complete();
});

describe(torchObjects.name, () => {
  const cases = new SuiteCases(torchObjects);
  const size = 4;
  cases.add('all_gather_object', 'the rank of each, by rank', () =>
    onRanks(size, async (group) => expect(await group.allGatherObject(group.rank)).toEqual(ranksOf(size))),
  );
  cases.add('gather_object', 'at rank 0 alone', () =>
    onRanks(size, async (group) => expect(await group.gatherObject(group.rank)).toEqual(group.rank === 0 ? ranksOf(size) : null)),
  );
  cases.add('broadcast_object_list', 'the value of rank 0', () =>
    onRanks(size, async (group) => expect(await group.broadcastObject(group.rank === 0 ? [99, 99] : undefined)).toEqual([99, 99])),
  );
  cases.add('scatter_object_list', 'each rank its own', () =>
    onRanks(size, async (group) => expect(await group.scatterObject(group.rank === 0 ? ranksOf(size) : null)).toBe(group.rank)),
  );
  const inPairs = (run: (pair: ProcessGroup, ranks: number[]) => Promise<void>): Promise<void[]> =>
    onRanks(size, async (group) => {
      const first = group.rank - (group.rank % 2);
      const pair = await group.newSubgroups({ groupSize: 2 });
      await run(pair!, [first, first + 1]);
      await pair!.destroy();
    });
  cases.add('subpg_scatter_object', 'within pairs', () =>
    inPairs(async (pair, ranks) => expect(await pair.scatterObject(pair.rank === 0 ? ranks : null)).toBe(ranks[pair.rank])),
  );
  cases.add('subpg_all_gather_object', 'within pairs', () =>
    inPairs(async (pair, ranks) => expect(await pair.allGatherObject(ranks[pair.rank])).toEqual(ranks)),
  );
  cases.add('subpg_gather_object', 'within pairs', () =>
    inPairs(async (pair, ranks) => expect(await pair.gatherObject(ranks[pair.rank])).toEqual(pair.rank === 0 ? ranks : null)),
  );
  cases.add('subpg_broadcast_object', 'within pairs', () =>
    inPairs(async (pair, ranks) => expect(await pair.broadcastObject(pair.rank === 0 ? ranks[0] : undefined)).toBe(ranks[0])),
  );
  cases.complete();
});
