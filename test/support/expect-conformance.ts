/** Expects that all ranks of a world have passed all checks of groups. */
import { expect } from 'vitest';
import { groupChecks } from '../../src/group/conformance.ts';
import type { OpenedWorld } from './start-worlds.ts';

export async function expectConformance({ said }: OpenedWorld): Promise<void> {
  for (const { passed } of await said((line) => line.passed !== undefined)) expect(passed).toEqual(groupChecks.map(({ name }) => name));
}
