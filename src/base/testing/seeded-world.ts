/** A world in one process and one thread whose order of events a seed decides: time passes when nothing else can happen, and the
 *  seed chooses which of the processes with something to do goes on. Roles stand for processes: they can be stopped, resumed and
 *  killed. Equal seeds give equal traces, if everything that happens later goes over `clock` and `turn` of some role. */
import { VirtualClock, type Clock, type Timer } from '../clock.ts';
import type { Random } from '../random.ts';

/** Most turns at one point in time; with more, some role is assumed to run in circles. */
const turnsMax = 200_000;
/** Number of turns of the real event loop without work after which nothing more can happen. */
const quietTurns = 3;

export type Turn = (callback: () => void) => void;

/** A role, which stands for a process: its time, its turns, and whether it runs. */
export class Role {
  readonly name: string;
  /** Clock whose timers fire while the role runs: late when it was stopped, never when it was killed. */
  readonly clock: Clock;
  /** Calls back in some later turn. */
  readonly turn: Turn;
  readonly #ends: (() => void)[] = [];
  readonly #timers = new Set<Timer>();
  #held: (() => void)[] = [];
  #interrupts: (() => void)[] = [];
  #state: 'runs' | 'stopped' | 'ended' = 'runs';

  constructor(name: string, world: SeededWorld) {
    this.name = name;
    const { time } = world;
    this.clock = {
      now: () => time.now(),
      wallNow: () => time.wallNow(),
      setTimer: (delayMs, callback) => this.#timer(time, delayMs, () => this.#when(callback, world)),
    };
    this.turn = (callback) => {
      if (this.#state !== 'ended') world.post(() => this.#when(callback, world));
    };
  }

  get ended(): boolean {
    return this.#state === 'ended';
  }

  get stopped(): boolean {
    return this.#state === 'stopped';
  }

  stop(): void {
    if (this.#state === 'runs') this.#state = 'stopped';
  }

  resume(): void {
    if (this.#state !== 'stopped') return;
    this.#state = 'runs';
    for (const interrupt of this.#interrupts.splice(0)) interrupt();
    for (const callback of this.#held.splice(0)) this.turn(callback);
  }

  /** Runs what the system does to the role, whatever the role is doing: at once, or as soon as it is resumed. */
  interrupt(callback: () => void): void {
    if (this.#state === 'stopped') this.#interrupts.push(callback);
    else callback();
  }

  /** Ends the role: nothing of it happens any more. Idempotent. */
  end(): void {
    if (this.#state === 'ended') return;
    this.#state = 'ended';
    this.#held = [];
    this.#interrupts = [];
    for (const timer of this.#timers) timer.cancel();
    for (const tell of this.#ends.splice(0)) tell();
  }

  /** Calls back when the role ends for any reason, to take back its resources as the system would. */
  onEnd(callback: () => void): void {
    this.#ends.push(callback);
  }

  #timer(time: VirtualClock, delayMs: number, callback: () => void): Timer {
    if (this.#state === 'ended') return { cancel: () => undefined };
    const timer = time.setTimer(delayMs, () => {
      this.#timers.delete(timer);
      callback();
    });
    this.#timers.add(timer);
    return {
      cancel: () => {
        this.#timers.delete(timer);
        timer.cancel();
      },
    };
  }

  #when(callback: () => void, world: SeededWorld): void {
    if (this.#state === 'stopped') this.#held.push(callback);
    if (this.#state !== 'runs') return;
    world.note(this.name);
    callback();
  }
}

export interface SeededWorldOptions {
  readonly random: Random;
  /** One turn in this many takes time, up to `delayMs`. Default: none does. */
  readonly delayedOneIn?: number;
  readonly delayMs?: number;
}

export class SeededWorld {
  readonly time = new VirtualClock();
  readonly random: Random;
  readonly #options: SeededWorldOptions;
  readonly #turns: (() => void)[] = [];
  readonly #marks: { readonly at: number; readonly callback: () => void }[] = [];
  #trace = 0x811c9dc5;
  #events = 0;
  /** Number of turns since time has last passed. */
  #turnsNow = 0;

  constructor(options: SeededWorldOptions) {
    this.#options = options;
    this.random = options.random;
  }

  /** Text that is equal for worlds in which the same has happened. */
  get trace(): string {
    return `${this.#events} events, ${(this.#trace >>> 0).toString(16)}`;
  }

  get events(): number {
    return this.#events;
  }

  role(name: string): Role {
    return new Role(name, this);
  }

  /** Calls back after this many events. */
  at(events: number, callback: () => void): void {
    this.#marks.push({ at: events, callback });
  }

  post(callback: () => void): void {
    const { delayedOneIn = 0, delayMs = 0 } = this.#options;
    if (delayedOneIn > 0 && this.random.integer(delayedOneIn) === 0) this.time.setTimer(this.random.next() ** 3 * delayMs, callback);
    else this.#turns.push(callback);
  }

  /** Adds to the trace that this has happened now. */
  note(what: string): void {
    this.#events++;
    // FNV-1a.
    for (let k = 0; k < what.length; k++) this.#trace = Math.imul(this.#trace ^ what.charCodeAt(k), 0x01000193);
    this.#trace = Math.imul(this.#trace ^ Math.round(this.time.now() * 1000), 0x01000193);
  }

  /** Runs the world until the promise has settled. @throws Error when it has not, although nothing can happen any more, `limitMs`
   *  have passed, or time does not pass. */
  async until<T>(promise: Promise<T>, limitMs: number): Promise<T> {
    let settled = false;
    const end = (): void => {
      settled = true;
    };
    promise.then(end, end);
    const endMs = this.time.now() + limitMs;
    await eventLoopTurn();
    while (!settled) {
      if (!(await this.#step(endMs))) throw new Error(`pending for ever: nothing has ended it within ${limitMs} ms`);
    }
    return promise;
  }

  /** Runs everything that can happen within that time. */
  async pass(byMs: number): Promise<void> {
    const endMs = this.time.now() + byMs;
    await eventLoopTurn();
    while (await this.#step(endMs));
  }

  async #step(endMs: number): Promise<boolean> {
    this.#passMarks();
    for (let quiet = 0; this.#turns.length === 0; quiet++) {
      if (quiet === quietTurns) {
        const { nextMs } = this.time;
        if (nextMs === undefined || nextMs > endMs) return false;
        this.time.fireNext();
        this.#turnsNow = 0;
        break;
      }
      await eventLoopTurn();
    }
    if (this.#turnsNow++ === turnsMax) throw new Error(`busy for ever: ${turnsMax} turns at ${this.time.now()} ms`);
    this.#takeTurn();
    await eventLoopTurn();
    return true;
  }

  #passMarks(): void {
    for (const mark of this.#marks.filter(({ at }) => at <= this.#events)) {
      this.#marks.splice(this.#marks.indexOf(mark), 1);
      mark.callback();
    }
  }

  #takeTurn(): void {
    const { length } = this.#turns;
    if (length === 0) return;
    const index = this.random.integer(length);
    const turn = this.#turns[index];
    // The last callback takes the place of the removed one: the order of the rest has no meaning.
    this.#turns[index] = this.#turns[length - 1];
    this.#turns.length--;
    turn();
  }
}

/** Lets settled promises be handled, and callbacks of the real event loop run. */
function eventLoopTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
