/** Questions to the processes of a job, through its store: how they are, now.
 *
 *      who asks      removes `answer/<who>`, writes `ask/<who>`, waits for `answer/<who>`
 *      who answers   waits for `ask/<who>`, removes it, says how it is in `answer/<who>`
 *
 *  An answer that appears is fresh, whoever has asked. Nothing is left but two keys for each process, however often is asked; one that is
 *  stopped answers once when it goes on. */
import { ShoalError } from '../base/errors.ts';
import type { Store } from '../store/store.ts';

const prefix = 'status';
const askKey = (who: string): string => `ask/${who}`;
const answerKey = (who: string): string => `answer/${who}`;
const presenceKey = (who: string): string => `present/${who}`;
const nothing = new Uint8Array(0);
const foreverMs = 0x7fffffff;

/** Answers questions until `signal`, or until the store is gone. Never rejects. @param answer gives plain data. */
export async function answerQuestions(store: Store, who: string, answer: () => unknown, signal: AbortSignal): Promise<void> {
  const questions = store.prefix(prefix);
  try {
    while (!signal.aborted) {
      await questions.get(askKey(who), { timeoutMs: foreverMs, signal });
      await questions.deleteKey(askKey(who));
      await questions.set(answerKey(who), JSON.stringify(answer()));
    }
  } catch (thrown) {
    // A wait of weeks may begin anew; else there is nobody to tell.
    if (ShoalError.from(thrown).code === 'timeout') void answerQuestions(store, who, answer, signal);
  }
}

/** Says until `signal` that there is somebody who answers. Never throws: without it, nobody asks. */
export function announce(store: Store, who: string, signal: AbortSignal): void {
  const presence = store.prefix(prefix);
  presence.set(presenceKey(who), nothing).catch(() => undefined);
  signal.addEventListener('abort', () => void presence.deleteKey(presenceKey(who)).catch(() => undefined), { once: true });
}

/** True if somebody has announced to answer. */
export function isAnnounced(store: Store, who: string): Promise<boolean> {
  return store.prefix(prefix).check([presenceKey(who)]);
}

/** Asks one process. @returns its answer, parsed; undefined: it has not answered within `timeoutMs`. */
export async function ask(store: Store, who: string, timeoutMs: number): Promise<unknown> {
  const questions = store.prefix(prefix);
  // The wait begins in the same turn, before anybody can answer.
  const told = [questions.deleteKey(answerKey(who)), questions.set(askKey(who), nothing)];
  const answered = questions.get(answerKey(who), { timeoutMs });
  try {
    const [answer] = await Promise.all([answered, ...told]);
    return JSON.parse(Buffer.from(answer).toString());
  } catch {
    return undefined;
  }
}
