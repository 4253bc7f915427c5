/** Random loops on several tasks against the same loops in one session, for tests of carriers. */
import { expect } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { Session } from '../execute/session.ts';
import type { KernelTable } from '../execute/kernel.ts';
import { scalarOf, numbersOf } from './kernels.ts';
import { arithmetic, startLocalCluster, type LocalClusterOptions } from './local-cluster.ts';
import { randomLoop } from './random-loop.ts';

/** Elements as they are behind a transfer. */
const single: KernelTable = Object.fromEntries(
  Object.entries(arithmetic).map(([name, kernel]) => [
    name,
    async (call) => (await kernel(call)).map((value) => ({ ...value, data: numbersOf(value).map(Math.fround) })),
  ]),
);

export async function loopsOverTasks(
  options: LocalClusterOptions,
  { doFuseRecv, seeds }: { readonly doFuseRecv: boolean; readonly seeds: number },
): Promise<void> {
  await using cluster = await startLocalCluster({ worker: 2, ps: 1 }, { ...options, kernels: single });
  const devices = Object.values(cluster.tasks).map(({ device }) => device);
  for (let seed = 0; seed < seeds; seed++) {
    const { graph, count, fetches } = randomLoop(seededRandom(seed), (dice) => devices[Math.floor(dice * 3)]);
    const local = new Session(graph, { devices, kernels: single });
    const session = await cluster.tasks.worker0.session(graph, { doFuseRecv });
    for (const iterations of [-1, 0, 3]) {
      const [expected, values] = await Promise.all([local, session].map((each) => each.run([[count, scalarOf(iterations)]], fetches)));
      expect(values.map(numbersOf), `seed ${seed}`).toEqual(expected.map(numbersOf));
    }
    session.close();
  }
}
