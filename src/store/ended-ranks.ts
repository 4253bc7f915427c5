/** Processes that end or give up, and the ranks that caused it.
 *
 *  Until all have joined: a process that sees a rank's process end writes that to the store, and so does a rank that gives up, with its
 *  reason, before it closes its links. The first report counts: ranks that still wait fail at once, and repeat it.
 *
 *      launcher ── rank 2 exited ──▶ not `connected/2`? ─┐
 *      rank 0 ── waited for rank 2 in vain ──────────────┴▶ `ended` ──▶ every rank that waits, naming rank 2
 *
 *  A process that ends badly ends the job. Everybody is told, also those that need nothing from it:
 *
 *      launcher ── server 0 was killed ──▶ `failed` ──▶ every process that has joined; `ended` ──▶ every one that waits
 *
 *  A rank that fails because of another one reports that before it ends, because its own end may be seen before that of the other one:
 *
 *      rank 0 ── lost rank 2 ──▶ `cause/0`, the first ──▶ launcher: not rank 0 has failed first
 *                          └────▶ `cause`, the first only: for ranks that blame each other */
import { decodeJson, encodeJson } from '../base/bytes.ts';
import { ShoalError, type ErrorData } from '../base/errors.ts';
import type { Store, StoreWait } from './store.ts';

/** JSON of an `End`: the first. */
const endedKey = 'ended';
/** JSON of an `End`: of the process with which the job has failed. */
const failedKey = 'failed';
const connectedKey = (rank: number): string => `connected/${rank}`;
const goneKey = (number: number): string => `gone/${number}`;
const causeKey = (rank: number): string => `cause/${rank}`;
/** The rank that was the first to be noted as a cause. */
const firstCauseKey = 'cause';
/** Behind the number of a rank. */
const abortedMark = ' aborted';
const nothing = new Uint8Array(0);
const foreverMs = 0x7fffffff;

/** A rank that did not join, and what became of it: its process ended, or it gave up; or a process with which the job has failed, and the
 *  rank to blame. */
type End = ({ readonly rank: number } & ({ readonly ending: string; readonly because?: string } | { readonly error: ErrorData })) | JobEnd;

/** A rank whose process has ended, in a job that goes on without it. */
export interface GoneRank {
  readonly rank: number;
  /** The rank with which the job began in its place. */
  readonly place: number;
  /** `was killed by SIGKILL`. */
  readonly text: string;
  /** Another process will be started in its place. */
  readonly returns: boolean;
}

interface JobEnd {
  readonly rank: number | undefined;
  /** `rank 2 exited with code 3`. */
  readonly failed: string;
}

/** The rank has all its links. */
export async function noteJoined(store: Store, rank: number): Promise<void> {
  await store.set(connectedKey(rank), nothing);
}

/** Waits until these ranks have all their links. */
export async function whenJoined(store: Store, ranks: readonly number[], wait: StoreWait): Promise<void> {
  await store.wait(ranks.map(connectedKey), wait);
}

/** The rank's process has ended; has no effect if it had joined. `ending`: `exited with code 0`; `because`: why it was ended. */
export async function reportEnded(store: Store, rank: number, how: { ending: string; because?: string | undefined }): Promise<void> {
  if (await store.check([connectedKey(rank)])) return;
  await store.compareSet(endedKey, nothing, encodeJson({ rank, ...how }));
}

/** A process has ended badly, and the job fails. The first report counts. Whoever has joined is told first: it must not learn from the end
 *  of one that waited, and ends because it was told. */
export async function reportFailed(store: Store, end: JobEnd): Promise<void> {
  const value = encodeJson(end);
  await Promise.all([failedKey, endedKey].map((key) => store.compareSet(key, nothing, value)));
}

/** The rank gives up joining. What it is to say: `error`, unless that may be a consequence of what another rank has said before. */
export async function giveUp(store: Store, rank: number, error: ShoalError): Promise<ShoalError> {
  const first = decodeJson(await store.compareSet(endedKey, nothing, encodeJson({ rank, error: error.toData() }))) as End;
  const consequence = error.code === 'timeout' || error.code === 'peer-lost';
  return consequence && first.rank !== rank ? errorOf(first, rank) : error;
}

/** Writes down that a process of a rank has ended: `number` counts them from 0, in any order of the ranks. */
export async function noteGone(store: Store, number: number, gone: GoneRank): Promise<void> {
  await store.set(goneKey(number), new TextEncoder().encode(JSON.stringify(gone)));
}

/** All ranks that have ended since the job began, and each that ends, until `signal`. */
export async function* goneRanks(store: Store, signal: AbortSignal): AsyncGenerator<GoneRank> {
  for (let number = 0; ; number++) {
    const value = await store.get(goneKey(number), { timeoutMs: foreverMs, signal });
    yield JSON.parse(new TextDecoder().decode(value)) as GoneRank;
  }
}

/** Rejects when some rank has ended or given up before it joined; never resolves. */
export async function rankEnded(store: Store, ownRank: number, wait: StoreWait): Promise<never> {
  return told(ownRank, await store.get(endedKey, wait).catch(() => undefined));
}

/** Rejects when the job has failed; never resolves. */
export async function jobFailed(store: Store, ownRank: number, signal: AbortSignal): Promise<never> {
  return told(ownRank, await store.get(failedKey, { timeoutMs: foreverMs, signal }).catch(() => undefined));
}

/** Rejects when the store is lost; never resolves. */
export function storeLost(store: Store, signal: AbortSignal): Promise<never> {
  const lost = (thrown: unknown): Promise<never> => {
    if (ShoalError.from(thrown).code === 'peer-lost') throw thrown;
    return new Promise<never>(() => undefined);
  };
  return store.get(failedKey, { timeoutMs: foreverMs, signal }).then(() => new Promise<never>(() => undefined), lost);
}

function told(ownRank: number, value: Uint8Array | undefined): Promise<never> {
  if (value === undefined) return new Promise<never>(() => undefined);
  throw errorOf(decodeJson(value) as End, ownRank);
}

function errorOf(end: End, ownRank: number): ShoalError {
  if ('failed' in end) {
    const { rank: peer, failed } = end;
    // A rank that was stopped may be the reason.
    return new ShoalError('peer-lost', `${failed}; the job ends with it`, { rank: ownRank, ...(peer !== ownRank && { peer }) });
  }
  if ('ending' in end) {
    const next = end.because ?? "see that rank's own output: every rank has to join";
    const message = `rank ${end.rank} ${end.ending} before it joined; ${next}`;
    return new ShoalError('peer-lost', message, { rank: ownRank, peer: end.rank });
  }
  const { code, message, peer, timeoutMs, resource } = end.error;
  const text = `rank ${end.rank} gave up joining: ${message}`;
  // One that names nobody has failed by itself. One that waited for this rank does not make it the cause of its own failure.
  if (peer === undefined)
    return new ShoalError(resource === undefined ? 'peer-lost' : code, text, { rank: ownRank, peer: end.rank, resource });
  return new ShoalError(code, text, { rank: ownRank, timeoutMs, ...(peer !== ownRank && { peer }) });
}

/** A group of the rank fails because of another rank, if the error names one. The first one counts: what other groups lose then comes
 *  from that. After a group that somebody has aborted, the script goes on: it counts until another one fails. */
export async function noteCause(store: Store, rank: number, { peer, code }: ShoalError): Promise<void> {
  if (peer === undefined || peer === rank) return;
  const isAborted = code === 'aborted';
  const value = new TextEncoder().encode(`${peer}${isAborted ? abortedMark : ''}`);
  const keys = isAborted ? [causeKey(rank)] : [causeKey(rank), firstCauseKey];
  try {
    const [noted] = await Promise.all(keys.map((key) => store.compareSet(key, nothing, value)));
    const isOver = new TextDecoder().decode(noted).endsWith(abortedMark);
    if (isOver && !isAborted) await store.compareSet(causeKey(rank), noted, value);
  } catch {
    // Without the store there is nobody to tell.
  }
}

/** The rank goes on after its groups have failed: what comes later has another reason. */
export async function forgetCause(store: Store, rank: number): Promise<void> {
  await Promise.all([causeKey(rank), firstCauseKey].map((key) => store.deleteKey(key)));
}

/** The rank because of which a rank has failed; undefined when none is known before `signal`. */
export function causeOf(store: Store, rank: number, signal: AbortSignal): Promise<number | undefined> {
  return rankAt(store, causeKey(rank), signal);
}

/** The rank that any rank of the job was the first to fail because of. Ranks that blame each other do so in turn: whoever was given up
 *  because it did not answer blames, when it goes on, the one that gave it up. */
export function firstNamed(store: Store, signal: AbortSignal): Promise<number | undefined> {
  return rankAt(store, firstCauseKey, signal);
}

async function rankAt(store: Store, key: string, signal: AbortSignal): Promise<number | undefined> {
  const value = await store.get(key, { timeoutMs: foreverMs, signal }).catch(() => undefined);
  return value === undefined ? undefined : parseInt(new TextDecoder().decode(value), 10);
}
