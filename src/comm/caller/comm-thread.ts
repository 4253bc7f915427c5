/** The comm thread of this process, from outside: it starts for its first guest and ends when its last one has left.
 *
 *      group    world ────┐                 ┌ port ─ CommCore
 *                         ├─▶ CommThread ═══╪
 *      kvstore  client ───┘   (one worker)  └ port ─ ClientNode
 *
 *  It must not know its guests or their layers: a guest is named by its built file. */
import { MessageChannel, Worker, type MessagePort, type WorkerOptions } from 'node:worker_threads';
import { systemClock, within } from '../../base/clock.ts';
import { isShoalError, messageOf, ShoalError } from '../../base/errors.ts';
import { exhaustion } from '../../base/exhaustion.ts';
import { builtEntry } from '../../base/packages/package-root.ts';
import { ThreadGate } from '../../messaging/thread-gate.ts';
import { Arbiter } from '../../scheduler/arbiter.ts';
import { loadNative } from '../../memory/native.ts';
import { PortHost, type CommHost, type CommHostHandlers } from './comm-host.ts';
import { Postponed } from '../shared/postponed.ts';
import { type FromThread, type ThreadData, type ToThread, eventMemory, type PortEnd } from '../shared/thread-protocol.ts';

/** Objects of the comm thread are garbage at once. Node's default lets 48 MiB of them pile up in each process before it collects. With
 *  less than 16, V8 collects so often in the first second that it takes memory for scarce, and marks all objects when the first rank is lost. */
const resourceLimits = { maxYoungGenerationSizeMb: 16 };
/** Time that a guest has for its end, once it was told to end while others go on. */
const endMs = 5000;

export interface GuestOptions {
  /** Its built module: `group/comm/world-guest.js`. */
  readonly entry: string;
  /** Plain data. */
  readonly plan: unknown;
  /** The guest's user, for messages: `rank 2`. */
  readonly who: string;
  /** Its commands may be postponed, by the addon's timer. */
  readonly postpones?: boolean;
  /** When: whoever wanted it has left; or as it says itself, for others use it as well. Default `left`. */
  readonly ends?: 'left' | 'itself';
}

interface Seat {
  readonly who: string;
  end(error: ShoalError): void;
  /** The guest has left. */
  onLeft: () => void;
  readonly left: Promise<void>;
}

/** All that this package keeps for the whole process: a process has one comm thread, or none, and one network. Worlds and stores know only
 *  of their own guest. */
const ofThisProcess: { thread: CommThread | undefined; arbiter: Arbiter | undefined } = { thread: undefined, arbiter: undefined };

/** Starts a guest in the comm thread, and that thread first, if there is none.
 *  @throws ShoalError `out-of-memory` when the system has no more threads, descriptors or memory for it. */
export function hostGuest<Command, Event>(guest: GuestOptions, handlers: CommHostHandlers<Event>): CommHost<Command> {
  const entry = builtEntry(guest.entry);
  ofThisProcess.thread ??= new CommThread(guest.who, (thread) => {
    if (ofThisProcess.thread === thread) ofThisProcess.thread = undefined;
  });
  return ofThisProcess.thread.host({ ...guest, entry }, handlers);
}

/** The arbiter of the calling thread's traffic; it also counts the bytes that the comm thread has in flight. */
export function processArbiter(): Arbiter {
  ofThisProcess.arbiter ??= new Arbiter();
  return ofThisProcess.arbiter;
}

class CommThread {
  readonly #worker: Worker;
  readonly #gate = new ThreadGate();
  readonly #seats = new Map<number, Seat>();
  readonly #onEnd: (thread: CommThread) => void;
  #nextGuest = 1;
  #ended: Promise<unknown> | undefined;
  /** A process that ends stops its threads wherever they are. */
  readonly #onExit = (): void => this.#gate.close();

  constructor(who: string, onEnd: (thread: CommThread) => void) {
    this.#onEnd = onEnd;
    const workerData: ThreadData = { gate: this.#gate.memory, inFlight: processArbiter().memory };
    // No execArgv: loaders and inspectors of the main thread are not for the comm thread.
    this.#worker = startWorker(who, { workerData, execArgv: [], name: 'shoal-comm', resourceLimits });
    this.#worker.on('message', ({ guest }: FromThread) => this.#left(guest));
    this.#worker.on('error', (error) => this.#lose((each) => failure(each, error)));
    this.#worker.on('exit', (code) => this.#lose(() => new ShoalError('system', `the comm thread ended with code ${code}`)));
    // Guests' ports keep the process alive while they have something to do. After the listeners: one of them refers to it again.
    this.#worker.unref();
    process.once('exit', this.#onExit);
  }

  host<Command, Event>({ entry, plan, who, ends, postpones = false }: GuestOptions, handlers: CommHostHandlers<Event>): CommHost<Command> {
    const guest = this.#nextGuest++;
    const { port1, port2 } = new MessageChannel();
    const events = eventMemory();
    const native = loadNative({ enabled: postpones });
    const postponed = native && new Postponed(native);
    const end: PortEnd = { port: port2, events, ...(postponed && { postponed: postponed.share }) };
    this.#post({ type: 'host', guest, who, entry, plan, end }, [port2]);
    const onLeave = ends === 'itself' ? undefined : (): Promise<void> => this.#leave(guest);
    const host = new PortHost<Command, Event>({ port: port1, events }, handlers, { onLeave, postponed });
    let onLeft!: () => void;
    const left = new Promise<void>((resolve) => {
      onLeft = resolve;
    });
    this.#seats.set(guest, { who, end: (error) => host.end(error), left, onLeft });
    return host;
  }

  #post(message: ToThread, transfer: readonly MessagePort[] = []): void {
    this.#worker.postMessage(message, transfer);
  }

  /** Whoever wanted the guest does not any more. */
  async #leave(guest: number): Promise<void> {
    const seat = this.#seats.get(guest);
    if (seat !== undefined && this.#seats.size > 1) {
      this.#post({ type: 'leave', guest });
      await within(systemClock, endMs, seat.left, () => undefined);
    }
    this.#left(guest);
    await this.#ended;
  }

  #left(guest: number): void {
    this.#seats.get(guest)?.onLeft();
    if (!this.#seats.delete(guest) || this.#seats.size > 0) return;
    this.#end();
    this.#gate.close();
    this.#ended = this.#worker.terminate();
  }

  #lose(errorOf: (who: string) => ShoalError): void {
    this.#end();
    const seats = [...this.#seats.values()];
    this.#seats.clear();
    for (const { who, end, onLeft } of seats) {
      onLeft();
      end(errorOf(who));
    }
  }

  /** The next guest has another thread. */
  #end(): void {
    process.off('exit', this.#onExit);
    this.#onEnd(this);
  }
}

function startWorker(who: string, options: WorkerOptions): Worker {
  try {
    return new Worker(builtEntry('comm/thread/comm-entry.js'), options);
  } catch (thrown) {
    throw isShoalError(thrown) ? thrown : failure(who, thrown);
  }
}

function failure(who: string, thrown: unknown): ShoalError {
  const ranOut = exhaustion(who, thrown, 'running its comm thread');
  return ranOut ?? new ShoalError('system', `the comm thread failed: ${messageOf(thrown)}`, { cause: thrown });
}
