/** Expects that all ranks of a world have passed its checks of groups. */
import { expect } from 'vitest';
import { groupChecks, plannedChecks } from '../../src/group/conformance.ts';
import type { OpenedWorld } from './start-worlds.ts';
import type { TestWorld } from './worlds.ts';

export async function expectConformance({ said }: OpenedWorld, { checks }: TestWorld): Promise<void> {
  const names = (checks === 'planned' ? plannedChecks : groupChecks).map(({ name }) => name);
  for (const { passed } of await said((line) => line.passed !== undefined)) expect(passed).toEqual(names);
}
