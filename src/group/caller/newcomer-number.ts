/** The number of a process that joins a world which has begun: one that no other has or had, beyond those that the world began with. */
import type { WorldPlan } from '../shared/comm-protocol.ts';
import { openWorldStore } from '../shared/open-world-store.ts';

/** @param given a launcher's, which has taken it from the same counter. Of processes that have inherited it, the first gets it.
 *  @throws ShoalError as `openStore`. */
export async function newcomerNumber(plan: WorldPlan, given: string | undefined): Promise<number> {
  const { store } = await openWorldStore(plan, { connectTimeoutMs: plan.settings.connectTimeoutMs });
  try {
    if (Number(given) >= plan.size && (await store.add(`given/${given}`, 1)) === 1) return Number(given);
    return plan.size - 1 + (await store.add('newcomers', 1));
  } finally {
    await store.close();
  }
}
