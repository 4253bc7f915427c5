/** MPICH's programs of test/mpi/ft, told from their descriptions: what is left to ranks when others have ended. All but `abort` are told by one
 *  job of six ranks for each way of its data. */
import { describe, expect } from 'vitest';
import { allGone, pidsOf, shoalRun } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';
import { mpichFt } from './elastic-suites.ts';
import { sharedJobs } from './support/shared-jobs.ts';
import { SuiteCases } from './support/suite-cases.ts';

const jobs = sharedJobs('-n', '6', '--min', '1', fixtureScript('mpich-ft'));
const whole = [...mpichFt.covered.matchAll(/\w+/g)].map(([name]) => name).filter((name) => name !== 'abort' && name !== 'die');
/** The names by which the ranks tell of a program, where they are not its own. */
const parts: Readonly<Record<string, readonly string[]>> = {
  bcast: ['bcast, small', 'bcast, large'],
  scatter: ['scatter, small', 'scatter, large'],
};
/** Ranks that are left at the end of a program. */
const ranksAfter: Readonly<Record<string, number>> = { revoke_nofail: 6, multi_isendalive: 4, failure_ack: 3, revoke_shrink: 2 };

describe(mpichFt.name, () => {
  const cases = new SuiteCases(mpichFt);
  for (const { place, job } of jobs) {
    cases.add('die', place, async () => {
      const { code, stderr } = await job();
      expect({ code, stderr }).toMatchObject({ code: 0 });
      const changes = [...stderr.matchAll(/world (\d) → \d: rank (\d) exited with code 1; the others go on/g)];
      expect(changes.map(([, ranks, rank]) => [ranks, rank].join())).toEqual(['6,1', '5,3', '4,4', '3,5']);
    });
    for (const program of whole)
      for (const part of parts[program] ?? [program])
        cases.add(program, `${part === program ? '' : `${part}, `}${place}`, async () => {
          const { stdout, stderr } = await job();
          expect(stdout.split(`well: ${part}\n`).length - 1, stderr).toBe(ranksAfter[program] ?? 5);
        });
  }
  cases.add('abort', 'a rank that ends the job ends ranks that never come back to their event loop', async () => {
    const { code, stdout, stderr } = await shoalRun('-n', '2', '--grace', '50ms', fixtureScript('mpich-ft'), 'abort').ended;
    expect({ code, stderr }).toEqual({ code: 3, stderr: expect.stringContaining('rank 0 failed first: it exited with code 3') as string });
    await allGone(pidsOf([...stdout.matchAll(/pid (\d+)/g)]));
  });
  cases.complete();
});
