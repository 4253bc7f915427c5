/** The number of a process that joins a world which has begun: one that no other has or had, beyond those that the world began with. */
import type { WorldPlan } from '../shared/comm-protocol.ts';
import { openWorldStore } from '../shared/open-world-store.ts';

/** @throws ShoalError as `openStore`. */
export async function newcomerNumber(plan: WorldPlan): Promise<number> {
  const { store } = await openWorldStore(plan, { connectTimeoutMs: plan.settings.connectTimeoutMs });
  try {
    return plan.size - 1 + (await store.add('newcomers', 1));
  } finally {
    await store.close();
  }
}
