/** One arbiter per process, for traffic that shares its network or its memory: scheduled groups, and links to parameter servers. Each has
 *  an account: its bytes in flight, and its refused task.
 *
 *      group  ── account ─┐              admitted: the first of an account, always;
 *      group  ── account ─┼─ network     a further one when it is within the account's credit, when all together stay within the
 *      server ── account ─┘              largest of their credits, and when nothing that is sooner waits
 *
 *  So the bytes in flight are at most the largest credit, plus one task of each account. There is no deadlock, however accounts depend on
 *  each other: the earliest all-reduce that has not ended on all ranks is, on each, the first of its group's account, since ranks start
 *  them in one order; it is admitted everywhere and ends. A transfer to a server ends when the server has received it. Servers do not count
 *  for each other, so a slow one does not delay the others. */
import { checkOptions, literal, noOptions, optionTable, that } from '../base/schema.ts';

/** A resource that accounts share. `network`: this host's network; `memory`: the memory of peers on this host. */
export type SharedResource = 'network' | 'memory';

export interface AccountOptions {
  /** Most bytes in flight; one larger task may be alone. May change. */
  readonly creditBytes: () => number;
  /** The resource that this account shares with others; undefined: none, its bytes count for itself alone. May be set later. */
  readonly resource?: SharedResource | undefined;
  /** The account is that of one destination among many: destinations do not count for each other. */
  readonly isDestination?: boolean;
  /** Called when a task that was refused may be admitted now. */
  readonly onRoom: () => void;
}

/** Bytes in flight of each resource, by thread; each thread writes its own. */
export const arbiterMemoryBytes = 4 * Float64Array.BYTES_PER_ELEMENT;

/** Options of `Arbiter`. */
export interface ArbiterOptions {
  /** Bytes in flight of each resource and thread, zeros at first, shared with the arbiter of the process's other thread: the
   *  other's bytes in flight count here, its waiting tasks do not. Default: there is no other thread. */
  readonly memory?: SharedArrayBuffer;
  /** The thread that this arbiter counts for: of two that share `memory`, each has another one. Default: `main`. */
  readonly thread?: 'main' | 'comm';
}

const arbiterOptions = optionTable<ArbiterOptions>({
  memory: that('a SharedArrayBuffer', (value) => value instanceof SharedArrayBuffer && value.byteLength >= arbiterMemoryBytes),
  thread: literal('main', 'comm'),
});

/** Decides which of a process's tasks may start when they share its network or its memory: all accounts together stay within their largest
 *  credit, plus one task of each. Give one arbiter to all `Core`s of a process, and to their links a `resource`. */
export class Arbiter {
  /** The accounts that are open; one leaves the set when it is disposed of. */
  readonly accounts = new Set<CreditAccount>();
  /** Bytes in flight of each resource and thread; the arbiter of the process's other thread is made with the same memory. */
  readonly memory: SharedArrayBuffer;
  readonly #inFlight: Float64Array;
  readonly #own: number;

  constructor(options: ArbiterOptions = noOptions) {
    checkOptions('Arbiter', options, arbiterOptions);
    const { memory = new SharedArrayBuffer(arbiterMemoryBytes), thread = 'main' } = options;
    this.memory = memory;
    this.#inFlight = new Float64Array(memory);
    this.#own = thread === 'main' ? 0 : 2;
    // A thread before this one may have ended with bytes in flight.
    this.#inFlight.fill(0, this.#own, this.#own + 2);
  }

  /** Opens an account, which a `Core` does for each of its links. Dispose of the account to close it. */
  open(options: AccountOptions): CreditAccount {
    const account: CreditAccount = new CreditAccount(options, this);
    this.accounts.add(account);
    return account;
  }

  /** Bytes that the other thread has in flight. */
  elsewhere(resource: SharedResource): number {
    return this.#inFlight[2 - this.#own + place(resource)];
  }

  /** Adds to the bytes that this thread has in flight; negative: as many have arrived. */
  note(resource: SharedResource, bytes: number): void {
    this.#inFlight[this.#own + place(resource)] += bytes;
  }
}

function place(resource: SharedResource): number {
  return resource === 'network' ? 0 : 1;
}

export class CreditAccount implements Disposable {
  inFlightBytes = 0;
  /** Number of tasks in flight. */
  inFlight = 0;
  #resource: SharedResource | undefined;
  /** Priority of the task that was refused last; smaller is sooner. */
  #refused: number | undefined;
  readonly #options: AccountOptions;
  readonly #arbiter: Arbiter;

  constructor(options: AccountOptions, arbiter: Arbiter) {
    this.#options = options;
    this.#arbiter = arbiter;
    this.#resource = options.resource;
  }

  get resource(): SharedResource | undefined {
    return this.#resource;
  }

  /** Moves the account, with its bytes in flight, to another resource. */
  set resource(resource: SharedResource | undefined) {
    this.#note(-this.inFlightBytes);
    this.#resource = resource;
    this.#note(this.inFlightBytes);
  }

  get creditBytes(): number {
    return this.#options.creditBytes();
  }

  /** Asks whether the task that is first in the account's order may start now. */
  admits(bytes: number, priority: number): boolean {
    const isAdmitted =
      this.inFlight === 0 ||
      (this.inFlightBytes + bytes <= this.creditBytes && (this.#resource === undefined || this.#hasRoom(this.#resource, bytes, priority)));
    this.#refused = isAdmitted ? undefined : priority;
    return isAdmitted;
  }

  started(bytes: number): void {
    this.inFlight++;
    this.inFlightBytes += bytes;
    this.#note(bytes);
  }

  /** Counts a task as finished. Its owner calls `offerRoom` later, when its state allows for it. */
  finished(bytes: number): void {
    this.inFlight--;
    this.inFlightBytes -= bytes;
    this.#note(-bytes);
  }

  /** Withdraws the refused task: nothing waits here any more. */
  withdraw(): void {
    this.#refused = undefined;
  }

  /** Offers the room of finished tasks to this account and those that share the resource, the soonest first.
   *  @throws the first error that one of them threw, when all have been asked. */
  offerRoom(): void {
    if (!this.#isAwaited()) return this.#options.onRoom();
    const asked = [...this.#arbiter.accounts].filter((each) => each === this || (each.#refused !== undefined && this.#shares(each)));
    const priorityOf = (account: CreditAccount): number => account.#refused ?? Infinity;
    const thrown: unknown[] = [];
    for (const account of asked.toSorted((a, b) => priorityOf(a) - priorityOf(b))) {
      try {
        account.#options.onRoom();
      } catch (error) {
        thrown.push(error);
      }
    }
    if (thrown.length > 0) throw thrown[0];
  }

  /** Forgets everything in flight, as the connection is new. */
  reset(): void {
    this.#note(-this.inFlightBytes);
    this.inFlight = 0;
    this.inFlightBytes = 0;
    this.#refused = undefined;
  }

  [Symbol.dispose](): void {
    this.#arbiter.accounts.delete(this);
    this.resource = undefined;
  }

  /** True if another account waits for room that this one holds. */
  #isAwaited(): boolean {
    if (this.#resource === undefined) return false;
    for (const other of this.#arbiter.accounts) if (other.#refused !== undefined && this.#shares(other)) return true;
    return false;
  }

  #note(bytes: number): void {
    if (this.#resource !== undefined) this.#arbiter.note(this.#resource, bytes);
  }

  #hasRoom(resource: SharedResource, bytes: number, priority: number): boolean {
    let inFlightBytes = this.inFlightBytes + bytes + this.#arbiter.elsewhere(resource);
    let { creditBytes } = this;
    for (const other of this.#arbiter.accounts) {
      if (!this.#shares(other)) continue;
      if (other.#refused !== undefined && other.#refused < priority) return false;
      inFlightBytes += other.inFlightBytes;
      creditBytes = Math.max(creditBytes, other.creditBytes);
    }
    return inFlightBytes <= creditBytes;
  }

  #shares(other: CreditAccount): boolean {
    if (other === this || other.#resource !== this.#resource) return false;
    return !(this.#options.isDestination && other.#options.isDestination);
  }
}
