/** A rank that cannot even begin to join says so to those that wait for it. */
import { systemClock, within } from '../../base/clock.ts';
import type { ShoalError } from '../../base/errors.ts';
import type { WorldPlan } from '../shared/comm-protocol.ts';
import { giveUp } from '../../store/ended-ranks.ts';
import { openWorldStore } from '../shared/open-world-store.ts';

const storeMs = 3000;

/** Where the store cannot be reached, who has started the process says that it has ended. Never rejects. */
export async function tellAbsence(plan: WorldPlan, error: ShoalError): Promise<void> {
  // Nobody waits for one that joins a world which has begun.
  if (plan.size === 1 || plan.joins === true) return;
  const tell = async (): Promise<void> => {
    const { store } = await openWorldStore(plan, { connectTimeoutMs: storeMs });
    try {
      await giveUp(store, plan.rank, error);
    } finally {
      await store.close();
    }
  };
  await within(
    systemClock,
    2 * storeMs,
    tell().catch(() => undefined),
    () => undefined,
  );
}
