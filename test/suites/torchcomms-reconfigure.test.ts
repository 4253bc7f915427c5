/** torchcomms' ReconfigureTest, told from its descriptions: ranks in processes of their own change their group by `reconfigure`, under the launcher.
 *  One job for each way of its data makes all of it. */
import { describe, expect } from 'vitest';
import { fixtureScript } from '../support/fixtures.ts';
import { torchcommsReconfigure } from './elastic-suites.ts';
import { sharedJobs } from './support/shared-jobs.ts';
import { onOwnRanks } from './support/shared-worlds.ts';
import { SuiteCases } from './support/suite-cases.ts';

const jobs = sharedJobs('-n', '4', '--min', '1', fixtureScript('reconfigures'));
/** The names by which the ranks tell of the original's tests. Sums and messages follow every change. */
const tests: readonly (readonly [string, string])[] = [
  ['reconfigure_basic', 'basic'],
  ['reconfigure_then_allreduce', 'order'],
  ['reconfigure_identity', 'identity'],
  ['reconfigure_late', 'late'],
  ['reconfigure_merge_split', 'merge, split'],
  ['reconfigure_after_abort', 'after an abort'],
  ['shrink_basic', 'shrink'],
  ['shrink_exclude_middle_rank', 'exclude the middle'],
  ['reconfigure_scale_down_up', 'down, up'],
  ['reconfigure_single_to_all', 'one, all'],
];

describe(torchcommsReconfigure.name, () => {
  const cases = new SuiteCases(torchcommsReconfigure);
  for (const { place, job } of jobs) {
    const endedWell = async (name: string, ranks: number): Promise<void> => {
      const { code, stdout, stderr } = await job();
      expect({ code, stdout, stderr }).toMatchObject({ code: 0 });
      expect(stdout.split(`well: ${name}\n`).length - 1).toBe(ranks);
    };
    for (const [test, name] of tests) cases.add(test, `${name}, ${place}`, () => endedWell(name, 4));
    cases.add('shrink_basic', `a rank is killed, ${place}`, () => endedWell('killed', 3));
  }
  cases.add('reconfigure_unsupported_backend', 'a scheduled group is made anew', () =>
    onOwnRanks(2, async (group) => {
      const scheduled = await group.scheduled();
      await expect(scheduled.reconfigure()).rejects.toMatchObject({ code: 'unsupported' });
      await scheduled.destroy();
    }),
  );
  cases.complete();
});
