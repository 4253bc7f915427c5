/** Entry of the comm thread: loads and hosts guests on demand. If one fails to start, its requester gets the error, and the other guests
 *  go on. */
import { pathToFileURL } from 'node:url';
import { parentPort, workerData } from 'node:worker_threads';
import { must } from '../../base/assert.ts';
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import { ThreadGate } from '../../messaging/thread-gate.ts';
import { Arbiter } from '../../scheduler/arbiter.ts';
import { GuestPort, type CommThreadContext, type Guest, type StartGuest } from './guest.ts';
import { turnsOf } from './turns.ts';
import type { FromThread, ThreadData, ToThread } from '../shared/thread-protocol.ts';

type Hosting = Extract<ToThread, { type: 'host' }>;

const main = must(parentPort, () => 'the comm thread is a worker');
const { gate, inFlight } = workerData as ThreadData;
const guests = new Map<number, { readonly port: GuestPort<unknown, unknown>; readonly started: Promise<Guest | undefined> }>();
const thread: CommThreadContext = {
  gate: new ThreadGate(gate),
  arbiter: new Arbiter({ memory: inFlight, thread: 'comm' }),
  giveWay: turnsOf({ clock: systemClock, isShared: () => guests.size > 1, nextTurn: setImmediate }),
};

main.on('message', (message: ToThread) => {
  if (message.type === 'host') host(message);
  else void end(message.guest);
});

function host(hosting: Hosting): void {
  const { guest, end } = hosting;
  const port = new GuestPort<unknown, unknown>(end);
  guests.set(guest, { port, started: start(hosting, port) });
}

async function start({ guest, who, entry, plan }: Hosting, port: GuestPort<unknown, unknown>): Promise<Guest | undefined> {
  try {
    const { startGuest } = (await import(pathToFileURL(entry).href)) as { startGuest: StartGuest<unknown, unknown> };
    return await startGuest({ plan, port, thread, left: () => left(guest) });
  } catch (thrown) {
    const error = exhaustion(who, thrown, 'starting in the comm thread') ?? ShoalError.from(thrown);
    port.emit({ type: 'failed', error: error.toData(), begun: false });
    left(guest);
    return undefined;
  }
}

async function end(guest: number): Promise<void> {
  try {
    await (await guests.get(guest)?.started)?.end();
  } catch {
    // Nobody is there any more to hear of it.
  }
  left(guest);
}

function left(guest: number): void {
  guests.get(guest)?.port.close();
  if (!guests.delete(guest)) return;
  const told: FromThread = { guest };
  main.postMessage(told);
}
