/** Ranks that end, and because of whom.
 *
 *  Before they have joined: whoever sees their processes end writes it to the store, and those that wait for them fail at once
 *  instead of when their time is up. Once a rank has all its links, these tell of its end.
 *
 *      launcher ── rank 2 exited ──▶ not `connected/2`? ──▶ `ended` ──▶ every rank that waits: peer-lost, naming rank 2
 *
 *  A rank that fails because of another one says so before it ends, which may be seen earlier than the end of the other one:
 *
 *      rank 0 ── lost rank 2 ──▶ `cause/0` ──▶ launcher: not rank 0 has failed first */
import { ShoalError } from '../base/errors.ts';
import type { Store, StoreWait } from './store/store.ts';

/** JSON `{ rank, ending }`: the first rank that ended too early. */
const endedKey = 'ended';
const connectedKey = (rank: number): string => `connected/${rank}`;
const causeKey = (rank: number): string => `cause/${rank}`;
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

/** The rank fails because of another one, if the error names one. */
export async function noteCause(store: Store, rank: number, { peer }: ShoalError): Promise<void> {
  if (peer === undefined || peer === rank) return;
  try {
    await store.set(causeKey(rank), new TextEncoder().encode(String(peer)));
  } catch {
    // Without the store there is nobody to tell.
  }
}

/** The rank because of which a rank has failed; undefined when none is known before `signal`. */
export async function causeOf(store: Store, rank: number, signal: AbortSignal): Promise<number | undefined> {
  const value = await store.get(causeKey(rank), { timeoutMs: 0x7fffffff, signal }).catch(() => undefined);
  return value === undefined ? undefined : Number(new TextDecoder().decode(value));
}
