/** A few jobs of the soak test/soaks/mixed.ts: what they compute is right, and nothing of them is left. */
import { expect, it } from 'vitest';
import { runMixed } from '../soaks/mixed.ts';

it('jobs of several systems in random order, with faults, leave nothing behind', async () => {
  const names = ['collectives', 'scheduled', 'graphs', 'rendezvous'];
  const done = await runMixed({ seed: 3, names, isOver: (count) => count === 3, report: () => undefined });
  expect(Object.values(done).reduce((sum, count) => sum + count)).toBe(3);
});
