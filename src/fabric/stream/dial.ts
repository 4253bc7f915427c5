/** Dialling a peer that offers several ways to reach it: all candidates at once (bounded), again and again until one
 *  answers or the time is over; the first that authenticates is kept and the others are ended. It must not know
 *  sockets. In the spirit of RFC 8305 (Happy Eyeballs), without its delay: candidates are few and hosts near. */
import { setMaxListeners } from 'node:events';
import { setServedTimer, type Timer } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { isExhaustion } from '../../base/exhaustion.ts';
import { retry } from '../../base/connections/retry.ts';
import type { Abortable } from '../abortable.ts';
import type { ConnectOptions, FabricAddress, FabricOptions } from '../fabric.ts';

const maxParallel = 8;
/** After one candidate refused the secret, the others have this long to prove that it was merely the wrong door. */
const graceMs = 1000;
/** Errors that another attempt cannot change, most telling first. */
const finalCodes: readonly string[] = ['auth', 'config', 'unsupported', 'protocol'];

interface DialOptions extends ConnectOptions, Pick<FabricOptions, 'clock' | 'random'> {
  readonly rank: number;
}

/** One attempt; it must give up, and release its resources, when `signal` fires. */
export type DialAttempt<T> = (candidate: string, signal: AbortSignal) => Promise<T>;

/** @throws ShoalError the most telling final error; else `timeout`, listing every candidate with its last reason;
 *          `aborted` when the caller's signal fires. */
export async function dial<T extends Abortable>(
  { candidates }: FabricAddress,
  connect: ConnectOptions,
  { identity: { rank }, clock, random }: FabricOptions,
  attempt: DialAttempt<T>,
): Promise<T> {
  const { peer, timeoutMs, signal } = connect;
  const options = { ...connect, rank, clock, random };
  if (candidates.length === 0) throw new ShoalError('usage', `rank ${peer.rank} offers no address`, { rank, peer: peer.rank });
  const startMs = clock.now();
  const stop = new AbortController();
  setMaxListeners(0, stop.signal);
  const onAbort = (): void => stop.abort();
  if (signal?.aborted) stop.abort();
  signal?.addEventListener('abort', onAbort, { once: true });
  // The timer counts only time in which this process got CPU: without it the process has not waited in vain.
  const timer = setServedTimer(clock, timeoutMs, onAbort);
  const reasons = new Map<string, { error: ShoalError; attempts: number }>();
  const queue = [...candidates];
  let winner: { value: T } | undefined;
  let grace: Timer | undefined;

  const tryOne = async (candidate: string): Promise<void> => {
    const made = await retry({ clock, random, signal: stop.signal, isFinal }, (end) => attempt(candidate, end));
    if ('value' in made) {
      if (winner === undefined) winner = made;
      else made.value.abort(); // two succeeded in one turn
      stop.abort();
    } else if (made.error !== undefined) {
      const { error, attempts, why } = made;
      reasons.set(candidate, { error, attempts });
      if (why === 'final' && error.code === 'auth') grace ??= clock.setTimer(graceMs, onAbort);
      if (isExhaustion(error)) onAbort();
    }
  };
  const worker = async (): Promise<void> => {
    for (let candidate = queue.shift(); candidate !== undefined; candidate = queue.shift()) await tryOne(candidate);
  };
  await Promise.all(Array.from({ length: Math.min(maxParallel, candidates.length) }, worker));
  timer.cancel();
  grace?.cancel();
  signal?.removeEventListener('abort', onAbort);

  if (winner !== undefined) return winner.value;
  throw failure(options, candidates, { reasons, startMs });
}

function isFinal(error: ShoalError): boolean {
  return finalCodes.includes(error.code) || isExhaustion(error);
}

/** The error when no candidate was reached, with the reasons. */
function failure(
  { rank, peer, timeoutMs, clock, signal }: DialOptions,
  candidates: readonly string[],
  { reasons, startMs }: { readonly reasons: ReadonlyMap<string, { error: ShoalError; attempts: number }>; readonly startMs: number },
): ShoalError {
  const fields = { rank, peer: peer.rank, timeoutMs, operation: 'connect' };
  if (signal?.aborted)
    return new ShoalError('aborted', `rank ${rank} stopped connecting to rank ${peer.rank}: cancelled by the caller`, fields);
  const errors = [...reasons.values()].map(({ error }) => error);
  const exhausted = errors.find(isExhaustion);
  if (exhausted) return exhausted;
  const list = candidates.map((candidate) => {
    const last = reasons.get(candidate);
    return last === undefined ? `${candidate}: not tried` : `${candidate}: ${last.error.message} (attempts: ${last.attempts})`;
  });
  const telling = finalCodes.flatMap((code) => errors.filter((error) => error.code === code))[0];
  const elapsedMs = Math.round(clock.now() - startMs);
  const message = `rank ${rank} cannot connect to rank ${peer.rank} after ${elapsedMs} of ${timeoutMs} ms: ${list.join('; ')}`;
  return new ShoalError(telling?.code ?? 'timeout', message, { ...fields, cause: telling ?? errors[0] });
}
