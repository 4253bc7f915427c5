/** The contract of a guest of the comm thread, and the services of that thread. A guest is a built module of a layer above, which
 *  exports `startGuest`. Guests share the modules that they import. */
import { readlinkSync } from 'node:fs';
import { basename } from 'node:path';
import { receiveMessageOnPort, type MessagePort } from 'node:worker_threads';
import { must } from '../../base/assert.ts';
import type { ShoalError } from '../../base/errors.ts';
import type { ThreadGate } from '../../messaging/thread-gate.ts';
import type { Arbiter } from '../../scheduler/arbiter.ts';
import { type GuestEvent, eventCount, threadNumber, type PortEnd } from '../shared/thread-protocol.ts';
import { loadNative } from '../../memory/native.ts';
import { takePostponed, type PostponedShare } from '../shared/postponed.ts';

/** The comm thread, as its guests see it. */
export interface CommThreadContext {
  /** Closed before the thread is ended: calls that must not be cut off pass it. */
  readonly gate: ThreadGate;
  /** The arbiter of its guests' traffic. */
  readonly arbiter: Arbiter;
  readonly giveWay: GiveWay;
}

/** Asked by a guest that has much to do at once. It gives true when the thread's other guests must not wait for the event loop any longer;
 *  then `resume` is called in its next turn. */
export type GiveWay = (resume: () => void) => boolean;

export interface GuestStart<Command, Event> {
  /** Plain data, from whoever wants the guest. */
  readonly plan: unknown;
  readonly port: GuestPort<Command, Event>;
  readonly thread: CommThreadContext;
  /** The guest has ended by itself, and holds nothing any more. */
  left(): void;
}

export interface Guest {
  /** Gives up all that the guest holds, without asking anybody. Called once, unless the guest has left. */
  end(): Promise<void>;
}

/** Starts a guest. An error that it throws ends the guest, and the guest's user hears of it. */
export type StartGuest<Command, Event> = (start: GuestStart<Command, Event>) => Guest | Promise<Guest>;

type Answered = GuestEvent<unknown, unknown>;

/** The guest's end of a channel. */
export class GuestPort<Command, Event> {
  readonly #port: MessagePort;
  readonly #events: Int32Array;
  readonly #postponed: PostponedShare | undefined;
  /** Commands received by the port, modulo 2³². */
  #received = 0;
  #stopWatching: (() => void) | undefined;

  constructor({ port, events, postponed }: PortEnd) {
    this.#port = port;
    this.#events = new Int32Array(events);
    this.#postponed = postponed;
    Atomics.store(this.#events, threadNumber, ownNumber());
  }

  onCommand(handle: (command: Command) => void): void {
    const receive = (command: Command): void => {
      this.#received = (this.#received + 1) | 0;
      handle(command);
    };
    this.#port.on('message', receive);
    if (this.#postponed) this.#stopWatching = this.#watch(this.#postponed, receive, handle);
  }

  /** Delivers a postponed command after those posted before it, and before those posted since. */
  #watch(postponed: PostponedShare, receive: (command: Command) => void, handle: (command: Command) => void): () => void {
    const native = must(loadNative({ enabled: true }), () => 'whoever postpones has the addon');
    const watch = native.watchDescriptor(postponed.timer, () => {
      native.setTimer(postponed.timer, 0);
      const taken = takePostponed(postponed);
      if (taken === undefined) return;
      while (this.#received !== taken.posted) {
        const next = must(receiveMessageOnPort(this.#port), () => 'what was posted before is there');
        receive(next.message as Command);
      }
      handle(taken.command as Command);
    });
    native.setWatching(watch, true);
    return () => native.closeWatch(watch);
  }

  emit(event: Event | Answered): void {
    this.#port.postMessage(event);
    Atomics.add(this.#events, eventCount, 1);
    Atomics.notify(this.#events, eventCount);
  }

  /** The work of that number has ended. */
  settle(work: number, error: ShoalError | undefined, answer?: unknown): void {
    this.emit({
      type: 'done',
      work,
      ...(error === undefined ? {} : { error: error.toData() }),
      ...(answer === undefined ? {} : { answer }),
    });
  }

  close(): void {
    this.#stopWatching?.();
    this.#port.close();
  }
}

/** Number of this thread in the system; 0 where the system does not say. */
function ownNumber(): number {
  try {
    return Number(basename(readlinkSync('/proc/thread-self')));
  } catch {
    return 0;
  }
}
