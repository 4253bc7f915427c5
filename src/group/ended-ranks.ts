/** Ranks that end before they have joined: whoever sees their processes end writes it to the store, and those that wait for
 *  them fail at once instead of when their time is up.
 *
 *      launcher ── rank 2 exited ──▶ not `connected/2`? ──▶ `ended` ──▶ every rank that waits: peer-lost, naming rank 2
 *
 *  Once a rank has all its links, these tell of its end. */
import { ShoalError } from '../base/errors.ts';
import type { Store, StoreWait } from './store/store.ts';

/** JSON `{ rank, ending }`: the first rank that ended too early. */
const endedKey = 'ended';
const connectedKey = (rank: number): string => `connected/${rank}`;
const nothing = new Uint8Array(0);

/** The rank has all its links. */
export async function noteJoined(store: Store, rank: number): Promise<void> {
  await store.set(connectedKey(rank), nothing);
}

/** The rank's process has ended; has no effect if it had joined. `ending`: `exited with code 0`. */
export async function reportEnded(store: Store, rank: number, ending: string): Promise<void> {
  if (await store.check([connectedKey(rank)])) return;
  await store.compareSet(endedKey, nothing, new TextEncoder().encode(JSON.stringify({ rank, ending })));
}

/** Rejects when some rank has ended before it joined; never resolves. */
export async function rankEnded(store: Store, ownRank: number, wait: StoreWait): Promise<never> {
  const value = await store.get(endedKey, wait).catch(() => undefined);
  if (value === undefined) return new Promise<never>(() => undefined);
  const { rank, ending } = JSON.parse(new TextDecoder().decode(value)) as { rank: number; ending: string };
  throw new ShoalError(
    'peer-lost',
    `rank ${rank} ${ending} before it joined; see that rank's own output: every rank has to call initProcessGroup`,
    { rank: ownRank, peer: rank },
  );
}
