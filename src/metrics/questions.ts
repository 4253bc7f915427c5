/** Questions to the processes of a job, through its store: how they are, now.
 *
 *      who asks      removes `answer/<who>`, writes `ask/<who>`, waits for `answer/<who>`
 *      who answers   waits for `ask/<who>`, removes it, says how it is in `answer/<who>`
 *                    says in `presence/<who>` that it is here, or has left
 *
 *  An answer that appears is fresh, whoever has asked. Nothing is left but three keys for each process, however often is asked; one that is
 *  stopped answers once when it goes on. */
import { decodeJson, encodeJson } from '../base/bytes.ts';
import { ShoalError } from '../base/errors.ts';
import type { Store } from '../store/store.ts';

const prefix = 'status';
const askKey = (who: string): string => `ask/${who}`;
const answerKey = (who: string): string => `answer/${who}`;
const presenceFolder = 'presence';
const nothing = new Uint8Array(0);
const foreverMs = 0x7fffffff;

/** `left`: it answers no more, and may go on. */
export type Presence = 'here' | 'left';

/** Says that there is somebody who answers, and answers questions until `signal`, or until the store is gone. Never rejects.
 *  @param answer gives plain data, or a promise of it. */
export async function answerQuestions(store: Store, who: string, answer: () => unknown, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  const questions = store.prefix(prefix);
  // Without it, nobody asks.
  const note = (presence: Presence): void => void questions.set(`${presenceFolder}/${who}`, presence).catch(() => undefined);
  note('here');
  signal.addEventListener('abort', () => note('left'), { once: true });
  for (;;) {
    try {
      await questions.get(askKey(who), { timeoutMs: foreverMs, signal });
      await questions.deleteKey(askKey(who));
      await questions.set(answerKey(who), encodeJson(await answer()));
    } catch (thrown) {
      // A wait of weeks may begin anew; else there is nobody to tell.
      if (signal.aborted || ShoalError.from(thrown).code !== 'timeout') return;
    }
  }
}

/** All that have ever answered. Never rejects: without the store there is nobody. */
export async function presentIn(store: Store): Promise<ReadonlyMap<string, Presence>> {
  const folder = store.prefix(`${prefix}/${presenceFolder}`);
  try {
    const names = await folder.listKeys();
    const values = await folder.multiGet(names);
    return new Map(names.map((who, at) => [who, Buffer.from(values[at]).toString() as Presence]));
  } catch {
    return new Map();
  }
}

/** Asks one process. @returns its answer, parsed; undefined: it has not answered within `timeoutMs`. */
export async function ask(store: Store, who: string, timeoutMs: number): Promise<unknown> {
  const questions = store.prefix(prefix);
  // The wait begins in the same turn, before anybody can answer.
  const told = [questions.deleteKey(answerKey(who)), questions.set(askKey(who), nothing)];
  const answered = questions.get(answerKey(who), { timeoutMs });
  try {
    const [answer] = await Promise.all([answered, ...told]);
    return decodeJson(answer);
  } catch {
    return undefined;
  }
}
