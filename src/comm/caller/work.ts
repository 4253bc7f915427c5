/** Work: the handle of a started operation. It settles once; the promise behind `then` is made only when asked for, so an
 *  operation that nobody awaits cannot raise an unhandled rejection (its group has failed, and says so at the next call). */
import type { CallSite } from '../../base/call-site.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, checkArgument } from '../../base/schema.ts';
import { settled } from '../../base/microtask.ts';

/** A started operation. `await work` resolves when it is complete and rejects with its `ShoalError`. */
export interface Work extends PromiseLike<void> {
  /** True once the operation has finished, well or not; also in a loop that never returns to the event loop, unless communication
   *  runs on this thread. */
  readonly done: boolean;
  /** The failure, once done; undefined while running or when it succeeded. */
  readonly error: ShoalError | undefined;
  /** Blocks this thread until done. @param timeoutMs Milliseconds. Default: until the operation ends, by its own limit at the latest.
   *  @throws ShoalError the operation's error; `timeout` when this limit passes, and the operation goes on; `usage` where
   *          communication runs on this thread. */
  waitSync(timeoutMs?: number): void;
  /** The same as `catch` of a promise. */
  catch<B = never>(onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<void | B>;
  /** The same as `finally` of a promise: runs however the operation ends. */
  finally(onFinally?: (() => void) | null): Promise<void>;
}

/** A work as those have it who start it. */
export interface SettlingWork extends Work {
  onceSettled(listener: () => void): void;
  /** If it is not done yet: `works` hears of it when it ends well and nobody has awaited it, nor asked whether it is done. */
  countIn(works: UnheededWorks): void;
}

/** The means by which a `Work` waits without the event loop; given by the channel. */
export interface WorkWaiter {
  readonly now: () => number;
  /** Delivers what has arrived; cheap when that is nothing. */
  drain(): void;
  /** Delivers events; blocks at most `timeoutMs` for the first. False when this thread cannot block. */
  pump(timeoutMs: number): boolean;
}

export interface WorkHooks {
  /** Before the work counts as done; a throw is its error. @param answer what came with the end, where something did. */
  readonly onSuccess?: ((answer?: unknown) => void) | undefined;
  /** @param touched it failed, and other ranks may still be reading and writing its buffers. */
  readonly onSettled?: (touched: boolean, error: ShoalError | undefined) => void;
  /** This thread is about to block for the work: it may do some of it. */
  readonly onWait?: () => void;
  /** Once, when somebody first awaits the work and it is not done. */
  readonly onAwaited?: () => void;
  /** The place in the program where the operation was called. */
  readonly site?: CallSite;
}

/** `catch` and `finally`, made of `then`. */
export abstract class Thenable implements PromiseLike<void> {
  abstract then<A = void, B = never>(
    onFulfilled?: ((value: void) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B>;

  catch<B = never>(onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<void | B> {
    return this.then(undefined, onRejected);
  }

  finally(onFinally?: (() => void) | null): Promise<void> {
    return this.then(undefined).finally(onFinally);
  }
}

/** A work that knows whether anybody has looked at it. */
export abstract class HeededWork extends Thenable {
  #state: 'uncounted' | 'running' | 'unheeded' | 'heeded' = 'uncounted';
  #works: UnheededWorks | undefined;

  countIn(works: UnheededWorks): void {
    if (this.#state !== 'uncounted') return;
    this.#state = 'running';
    this.#works = works;
    works.running += 1;
  }

  /** Describes the work for people. */
  abstract describe(): string;

  /** Somebody looks at it. */
  protected heed(): void {
    if (this.#state === 'heeded') return;
    if (this.#state === 'unheeded') this.#works?.delete(this);
    this.#end('heeded');
  }

  protected ended(error: ShoalError | undefined): void {
    if (this.#state === 'running' && !error) {
      this.#works?.add(this);
      this.#end('unheeded');
    } else this.#end('heeded');
  }

  #end(state: 'unheeded' | 'heeded'): void {
    if (this.#state === 'running' && this.#works) this.#works.running -= 1;
    this.#state = state;
  }
}

/** Works that nobody has looked at: how many, and what some of them were that have ended well. */
export class UnheededWorks {
  /** Works that have not ended. */
  running = 0;
  /** Number of works that have ended well. */
  count = 0;
  readonly #some = new Set<HeededWork>();

  add(work: HeededWork): void {
    this.count += 1;
    // Each holds on to the stack of its call.
    if (this.#some.size < keptMax) this.#some.add(work);
  }

  delete(work: HeededWork): void {
    this.count -= 1;
    this.#some.delete(work);
  }

  /** Descriptions of the works, each once. */
  describe(): string[] {
    return [...new Set(Array.from(this.#some, (work) => work.describe()))];
  }
}

const keptMax = 16;

interface Settlement {
  /** Others may have heard of it. Default true. */
  readonly begun?: boolean | undefined;
  readonly answer?: unknown;
}

export class PendingWork extends HeededWork implements SettlingWork {
  readonly #waiter: WorkWaiter;
  readonly #description: string;
  readonly #site: CallSite | undefined;
  #done = false;
  #error: ShoalError | undefined;
  /** Runs once on success, before the work counts as done: copies results to the caller's own arrays. */
  #onSuccess: WorkHooks['onSuccess'];
  #onSettled: WorkHooks['onSettled'];
  readonly #onWait: (() => void) | undefined;
  #onAwaited: (() => void) | undefined;
  #listeners: (() => void)[] | undefined;
  #promise: Promise<void> | undefined;
  #resolve: (() => void) | undefined;
  #reject: ((error: ShoalError) => void) | undefined;

  constructor(waiter: WorkWaiter, description: string, hooks: WorkHooks = {}) {
    super();
    this.#waiter = waiter;
    this.#description = description;
    this.#onSuccess = hooks.onSuccess;
    this.#onSettled = hooks.onSettled;
    this.#onWait = hooks.onWait;
    this.#onAwaited = hooks.onAwaited;
    this.#site = hooks.site;
  }

  describe(): string {
    const site = this.#site?.();
    return site === undefined ? this.#description : `${this.#description} at ${site}`;
  }

  /** Looks for what has arrived: a script that never returns to its event loop sees the end, too. */
  get done(): boolean {
    this.heed();
    if (!this.#done) this.#waiter.drain();
    return this.#done;
  }

  get error(): ShoalError | undefined {
    return this.done ? this.#error : undefined;
  }

  settle(error: ShoalError | undefined, { begun = true, answer }: Settlement = {}): void {
    if (this.#done) return;
    this.#error = error;
    try {
      if (!error) this.#onSuccess?.(answer);
    } catch (thrown) {
      this.#error = ShoalError.from(thrown, 'usage');
    }
    this.#done = true;
    this.#onSettled?.(error !== undefined && begun, error);
    this.#onSuccess = undefined;
    this.#onSettled = undefined;
    for (const listener of this.#listeners ?? []) listener();
    this.#listeners = undefined;
    this.ended(this.#error);
    if (this.#error) this.#reject?.(this.#error);
    else this.#resolve?.();
  }

  /** As soon as it has settled, for those who do not await it: at once where it has. */
  onceSettled(listener: () => void): void {
    if (this.#done) listener();
    else (this.#listeners ??= []).push(listener);
  }

  waitSync(timeoutMs = Infinity): void {
    checkArgument('waitSync: timeoutMs', timeoutMs, anyNumber);
    this.heed();
    const deadlineMs = this.#waiter.now() + timeoutMs;
    while (!this.#done) {
      this.#onWait?.();
      if (this.#done) break;
      const leftMs = deadlineMs - this.#waiter.now();
      if (leftMs <= 0) {
        const late = `${this.#description} was not complete after ${timeoutMs} ms; it goes on, wait again or await it`;
        throw new ShoalError('timeout', late, { timeoutMs });
      }
      if (!this.#waiter.pump(leftMs)) {
        const message = `${this.#description}: waitSync cannot block where communication runs inline; await the work instead`;
        throw new ShoalError('usage', message);
      }
    }
    if (this.#error) throw this.#error;
  }

  then<A = void, B = never>(
    onFulfilled?: ((value: void) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.heed();
    this.#promise ??= new Promise<void>((resolve, reject) => {
      if (!this.#done) {
        this.#resolve = resolve;
        this.#reject = reject;
        this.#onAwaited?.();
        this.#onAwaited = undefined;
      } else if (this.#error) reject(this.#error);
      else resolve();
    });
    return this.#promise.then(onFulfilled, onRejected);
  }
}

/** The work of an operation that was complete when its call returned. */
export class CompletedWork extends Thenable implements SettlingWork {
  readonly done = true;
  readonly error = undefined;
  onceSettled(listener: () => void): void {
    listener();
  }

  countIn(): void {}

  waitSync(timeoutMs = Infinity): void {
    if (timeoutMs !== Infinity) checkArgument('waitSync: timeoutMs', timeoutMs, anyNumber);
  }

  then<A = void, B = never>(
    onFulfilled?: ((value: void) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return settled.then(onFulfilled, onRejected);
  }
}

/** One is enough. */
export const completedWork = new CompletedWork();
