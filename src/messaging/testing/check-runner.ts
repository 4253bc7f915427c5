/** Runs the parts of role checks: sockets that are closed when every part has ended, and words between the parts. */
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import type { MessagingContext, MessagingOptions } from '../context.ts';
import { Dealer } from '../dealer.ts';
import { Router } from '../router.ts';
import { checkParts, type CheckPart, type CheckPlace, type MessagingCheck } from './role-checks.ts';

/** The surroundings of one part over all checks. */
export interface PartSurroundings {
  context(changes: Partial<MessagingOptions>): MessagingContext;
  url(): Promise<string> | string;
  readonly rebinds: boolean;
  /** Tells all parts; a key is told once. */
  tell(key: string, value: string): Promise<void> | void;
  hear(key: string): Promise<string>;
}

/** Ends when all parts of the check have, without their sockets. */
export async function runPart(check: MessagingCheck, part: CheckPart, surroundings: PartSurroundings): Promise<void> {
  const run = check.parts[part];
  if (run === undefined) return;
  const clock = new UnhurriedClock();
  const sockets: (Router | Dealer)[] = [];
  const contexts: MessagingContext[] = [];
  const keyOf = (what: string): string => `${check.name}/${what}`;
  const contextOf = (changes: Partial<MessagingOptions> = {}): MessagingContext => {
    const context = surroundings.context({ clock, ...changes });
    contexts.push(context);
    return context;
  };
  const keep = <T extends Router | Dealer>(socket: T): T => {
    sockets.push(socket);
    return socket;
  };
  const place: CheckPlace = {
    router: async (options, changes) => keep(new Router(contextOf(changes), options)),
    dealer: async (address, options, changes) => keep(new Dealer(contextOf(changes), { address, ...options })),
    url: () => surroundings.url(),
    rebinds: surroundings.rebinds,
    tell: async (what, value = '') => surroundings.tell(keyOf(what), value),
    hear: (what) => surroundings.hear(keyOf(what)),
  };
  await run(place);
  await place.tell(`end of ${part}`);
  for (const other of checkParts) if (check.parts[other] !== undefined) await place.hear(`end of ${other}`);
  for (const socket of sockets.reverse()) await socket.close({ timeoutMs: 0 });
  for (const context of contexts) await context.close();
}

/** All parts in this thread. */
export async function runTogether(check: MessagingCheck, surroundings: Omit<PartSurroundings, 'tell' | 'hear'>): Promise<void> {
  const told = new Map<string, { said: Promise<string>; say: (value: string) => void }>();
  const wordOf = (key: string): { said: Promise<string>; say: (value: string) => void } => {
    let word = told.get(key);
    if (word === undefined) {
      let say: (value: string) => void = () => undefined;
      const said = new Promise<string>((resolve) => (say = resolve));
      told.set(key, (word = { said, say }));
    }
    return word;
  };
  const words = { tell: (key: string, value: string) => wordOf(key).say(value), hear: (key: string) => wordOf(key).said };
  await Promise.all(checkParts.map((part) => runPart(check, part, { ...surroundings, ...words })));
}
