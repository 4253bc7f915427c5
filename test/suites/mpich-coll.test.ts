/** MPICH's programs for collectives, told from their descriptions. */
import { describe } from 'vitest';
import { mpichColl } from './foreign-suites.ts';
import { movementCases } from './mpich/movement.ts';
import { reductionCases } from './mpich/reductions.ts';
import { startedCases } from './mpich/started-calls.ts';
import { SuiteCases } from './support/suite-cases.ts';
import { sharedWorlds } from './support/shared-worlds.ts';

describe(mpichColl.name, () => {
  const cases = new SuiteCases(mpichColl);
  const onRanks = sharedWorlds();
  movementCases(cases, onRanks);
  reductionCases(cases, onRanks);
  startedCases(cases, onRanks);
  cases.complete();
});
