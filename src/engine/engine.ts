/** A dependency engine in the vocabulary of MXNet's: functions are pushed with the variables that they read and write, and run as
 *  soon as the program's order of reads and writes allows, by priority among those that could run.
 *
 *      pushAsync ─▶ waiting for variables ─▶ ready, by priority ─▶ its function runs ─▶ onComplete ─▶ releases its variables
 *
 *  Whatever order functions complete in, each sees the data that the same pushes, executed one after the other, would have shown
 *  it. An operation that fails *poisons* the variables that it writes; operations that depend on them do not run and poison
 *  theirs; the error surfaces where somebody waits. The engine does not know the meaning of variables.
 *
 *  One thread: a function runs whole, then the next. Functions that go on afterwards, until they call `onComplete`, overlap. Chen
 *  et al., "MXNet: A Flexible and Efficient Machine Learning Library for Heterogeneous Distributed Systems", 2015, §3.2. */
import { systemClock, type Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { namedFailure } from '../base/named-failure.ts';
import { Fifo } from '../base/collections/fifo.ts';
import { listed } from '../base/collections/lists.ts';
import { PriorityQueue } from '../base/collections/priority-queue.ts';
import {
  anyList,
  anyNumber,
  anyObject,
  anyText,
  callback,
  checkArgument,
  checkOptions,
  checkPositive,
  describeValue,
  noOptions,
  optionTable,
} from '../base/schema.ts';
import { Era } from './era.ts';
import { Operation, type AsyncFunction, type OnComplete, type Pushed, type PushOptions } from './operation.ts';
import { QueuedVariable, type Variable } from './variable.ts';

/** Options of `DependencyEngine`. */
export interface EngineOptions {
  /** Default: the system's. */
  readonly clock?: Clock;
  /** Most operations that have been pushed and have not completed. Default: 1,048,576. */
  readonly operationsMax?: number;
  /** Limit of waits that give none. Default: 300,000. */
  readonly timeoutMs?: number;
  /** Number of functions that run before the event loop turns. Default: 256. */
  readonly operationsPerTurn?: number;
}

/** Options of `waitForVar` and `waitForAll`. */
export interface WaitOptions {
  /** Time limit of the wait, in milliseconds. Default: the engine's `timeoutMs`. */
  readonly timeoutMs?: number;
}

const engineOptions = optionTable<EngineOptions>({
  clock: anyObject,
  operationsMax: anyNumber,
  timeoutMs: anyNumber,
  operationsPerTurn: anyNumber,
});
const pushOptions = optionTable<PushOptions>({ priority: anyNumber, name: anyText, onPoisoned: callback });
const waitOptions = optionTable<WaitOptions>({ timeoutMs: anyNumber });
/** Most operations that an error names. */
const namedMax = 4;

/** Runs functions as soon as those that were pushed before them, and that use the same variables, allow: many readers of a variable at a
 *  time, or one writer. A failed function poisons what it writes. All functions run on the thread that made the engine. */
export class DependencyEngine {
  readonly #clock: Clock;
  readonly #operationsMax: number;
  readonly #timeoutMs: number;
  readonly #operationsPerTurn: number;
  readonly #ready = new PriorityQueue<Operation>(isBefore);
  readonly #running = new Set<Operation>();
  readonly #counts = { pushed: 0, completed: 0, skipped: 0, attempts: 0 };
  /** Eras in order; the last one is open: it takes new operations. */
  readonly #eras = new Fifo<Era>();
  #era = new Era();
  #named = 0;
  #variables = 0;
  #turning = false;
  readonly #onReady = (operation: Operation): void => {
    this.#ready.push(operation);
    this.#turn();
  };

  constructor(options: EngineOptions = noOptions) {
    checkOptions('DependencyEngine', options, engineOptions);
    this.#clock = options.clock ?? systemClock;
    this.#operationsMax = checkPositive('operationsMax', options.operationsMax ?? 2 ** 20);
    this.#timeoutMs = checkPositive('timeoutMs', options.timeoutMs ?? 300_000);
    this.#operationsPerTurn = checkPositive('operationsPerTurn', options.operationsPerTurn ?? 256);
    this.#eras.push(this.#era);
  }

  /** Counts of what the engine has done so far. Waits for variables and deletions are operations too. */
  get statistics(): {
    /** Number of operations that were pushed. */
    readonly pushed: number;
    /** Number of operations that have ended. */
    readonly completed: number;
    /** Number of those that never ran, because a variable was poisoned. */
    readonly skipped: number;
    /** Number of times that an operation's request for a variable was considered. */
    readonly attempts: number;
  } {
    return { ...this.#counts };
  }

  /** Makes a variable, which stands for data that functions read and write. @param name for messages; default: `variable` and a number. */
  newVariable(name = `variable ${this.#variables}`): Variable {
    checkArgument('newVariable: name', name, anyText);
    this.#variables++;
    return new QueuedVariable(name, this, this.#counts);
  }

  /** Runs `run` when it may read `constVars` and write `mutableVars`: after all writers of the former and all users of the latter
   *  that were pushed before it. Readers run together, a writer alone. The variables are held until `onComplete` is called; an
   *  error given to it, or thrown by `run`, poisons `mutableVars`.
   *  @throws ShoalError `usage` for a variable that is named twice, deleted or another engine's; `out-of-memory` when
   *          `operationsMax` have not completed. Nothing is pushed then. */
  pushAsync(run: AsyncFunction, constVars: readonly Variable[], mutableVars: readonly Variable[], options: PushOptions = noOptions): void {
    this.#pushCall('pushAsync', run, constVars, mutableVars, options);
  }

  /** Like `pushAsync`, for a function that has done its work when it returns. It runs later as well: not within this call. */
  pushSync(run: () => void, constVars: readonly Variable[], mutableVars: readonly Variable[], options: PushOptions = noOptions): void {
    checkArgument('pushSync: the function', run, callback);
    const runAndComplete = (onComplete: OnComplete): void => {
      const result: unknown = run();
      if (isThenable(result)) {
        // The error below says what is wrong; a rejection adds nothing.
        result.then(undefined, () => undefined);
        throw new ShoalError('usage', 'the function given to pushSync returned a promise; use pushAsync');
      }
      onComplete();
    };
    this.#pushCall('pushSync', runAndComplete, constVars, mutableVars, options);
  }

  /** Deletes a variable after every operation that was pushed before and uses it; no later operation may name it. Poison does not
   *  prevent that.
   *  @param release called then: frees the data that the variable stands for. */
  deleteVariable(variable: Variable, release?: () => void): void {
    const [own] = this.#own('deleteVariable', [variable], this.#named++);
    if (release !== undefined) checkArgument('deleteVariable: release', release, callback);
    this.#reserve('deleteVariable');
    own.deleted = true;
    const run = completing(() => release?.());
    this.#push({ name: `delete '${own.name}'`, priority: 0, reads: [], writes: [own], run, onPoisoned: 'run' });
  }

  /** Waits until all writes of `variable` that were pushed so far have completed.
   *  @throws ShoalError the error of the operation that has poisoned its value, as long as it is poisoned; `timeout`, with the
   *          names of operations that have not completed. */
  waitForVar(variable: Variable, options: WaitOptions = noOptions): Promise<void> {
    const [own] = this.#own('waitForVar', [variable], this.#named++);
    const timeoutMs = this.#waitMs('waitForVar', options);
    this.#reserve('waitForVar');
    return this.#wait(`waitForVar('${own.name}')`, timeoutMs, (onEnd) => {
      const run = completing(() => onEnd(own.poison));
      this.#push({ name: `wait for '${own.name}'`, priority: Infinity, reads: [own], writes: [], run, onPoisoned: 'run' });
    });
  }

  /** Waits until all operations that were pushed so far have completed.
   *  @throws ShoalError the error of the first operation, in the order of pushes, that failed or was not run since the last
   *          `waitForAll`; `timeout`, with the names of operations that have not completed. */
  waitForAll(options: WaitOptions = noOptions): Promise<void> {
    const timeoutMs = this.#waitMs('waitForAll', options);
    this.#reserve('waitForAll');
    return this.#wait('waitForAll', timeoutMs, (onEnd) => {
      this.#era.close(onEnd);
      this.#era = new Era();
      this.#eras.push(this.#era);
      this.#endEras();
    });
  }

  /** Runs operations that are ready now, and those that become ready by that: for threads that wait without their event loop.
   *  @returns false if none was ready. */
  runReady(): boolean {
    let count = 0;
    for (let operation = this.#ready.pop(); operation !== undefined; operation = this.#ready.pop()) {
      this.#start(operation);
      count++;
    }
    return count > 0;
  }

  // ── pushing ────────────────────────────────────────────────────────────────────────────────────────────────────

  #pushCall(
    call: string,
    run: AsyncFunction,
    constVars: readonly Variable[],
    mutableVars: readonly Variable[],
    options: PushOptions,
  ): void {
    checkArgument(`${call}: the function`, run, callback);
    checkOptions(call, options, pushOptions);
    const mark = this.#named++;
    const reads = this.#own(`${call}: constVars`, constVars, mark);
    const writes = this.#own(`${call}: mutableVars`, mutableVars, mark);
    this.#reserve(call);
    const { priority = 0, name = `operation ${this.#counts.pushed}`, onPoisoned } = options;
    this.#push({ name, priority, reads, writes, run, onPoisoned });
  }

  #push(pushed: Pushed): void {
    const operation = new Operation(pushed, this.#counts.pushed++, this.#era, this.#onReady);
    this.#era.pending++;
    operation.request();
  }

  /** @param mark number of this push: a variable that has it already is named twice. */
  #own(role: string, variables: readonly Variable[], mark: number): QueuedVariable[] {
    checkArgument(role, variables, anyList);
    return variables.map((variable) => {
      if (!(variable instanceof QueuedVariable) || variable.owner !== this) {
        throw new ShoalError('usage', `${role}: ${describeValue(variable)} is no variable of this engine; make it with newVariable`);
      }
      if (variable.deleted) throw new ShoalError('usage', `${role}: variable '${variable.name}' has been deleted`);
      if (variable.namedBy === mark) {
        throw new ShoalError('usage', `${role}: variable '${variable.name}' is named twice; what is read and written is mutable only`);
      }
      variable.namedBy = mark;
      return variable;
    });
  }

  #reserve(call: string): void {
    if (this.#counts.pushed - this.#counts.completed + this.#eras.length <= this.#operationsMax) return;
    const held = `${this.#operationsMax} operations have not completed, which is the limit`;
    throw new ShoalError('out-of-memory', `${call}: ${held}; ${this.#culprits()}; wait for some, or raise operationsMax`);
  }

  // ── running ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Runs ready operations later, not within the call that made them ready: operations pushed together compete by priority. */
  #turn(): void {
    if (this.#turning) return;
    this.#turning = true;
    queueMicrotask(this.#onTurn);
  }

  readonly #onTurn = (): void => {
    for (let left = this.#operationsPerTurn; left > 0; left--) {
      const operation = this.#ready.pop();
      if (operation === undefined) {
        this.#turning = false;
        return;
      }
      this.#start(operation);
    }
    // Sockets and timers are served in between.
    setImmediate(this.#onTurn);
  };

  #start(operation: Operation): void {
    const { poison, pushed } = operation;
    const { name, onPoisoned } = pushed;
    operation.state = 'calling';
    this.#running.add(operation);
    const skipped = onPoisoned === 'run' ? undefined : poison;
    try {
      if (skipped === undefined) this.#call(operation);
      else if (onPoisoned !== 'run') onPoisoned?.(skipped);
    } catch (thrown) {
      operation.completion = { error: namedFailure('operation', name, thrown), thrown: true };
    }
    operation.state = 'running';
    const { completion } = operation;
    if (skipped !== undefined) this.#skip(operation, skipped);
    else if (completion !== undefined) this.#complete(operation, completion.error);
  }

  #call(operation: Operation): void {
    const result: unknown = operation.pushed.run((error) => this.#onComplete(operation, error));
    // The function is asynchronous: its rejection must not get lost.
    if (isThenable(result)) result.then(undefined, (error: unknown) => this.#rejected(operation, error));
  }

  #skip(operation: Operation, poison: ShoalError): void {
    this.#counts.skipped++;
    // An error of `onPoisoned` comes first: the poison surfaces elsewhere as well.
    if (operation.completion?.error !== undefined) operation.era.failed(operation.number, operation.completion.error);
    this.#complete(operation, poison);
  }

  #onComplete(operation: Operation, error: unknown): void {
    const { completion, pushed } = operation;
    // The operation has failed already; work that it had begun may end late.
    if (completion?.thrown) return;
    if (completion !== undefined) throw new ShoalError('usage', `operation '${pushed.name}' called onComplete twice`);
    operation.completion = {
      error: error === undefined || error === null ? undefined : namedFailure('operation', pushed.name, error),
      thrown: false,
    };
    if (operation.state === 'running') this.#complete(operation, operation.completion.error);
  }

  #rejected(operation: Operation, thrown: unknown): void {
    const error = namedFailure('operation', operation.pushed.name, thrown);
    const { completion } = operation;
    if (completion === undefined) {
      operation.completion = { error, thrown: true };
      this.#complete(operation, error);
    } else if (!completion.thrown) {
      // Others may have used the data that it wrote, so waitForAll reports the error.
      this.#era.failed(operation.number, error);
    }
  }

  #complete(operation: Operation, error: ShoalError | undefined): void {
    const { pushed, era, number } = operation;
    this.#running.delete(operation);
    this.#counts.completed++;
    if (error !== undefined) {
      era.failed(number, error);
      for (const variable of pushed.writes) variable.poison = error;
    }
    operation.release();
    era.pending--;
    this.#endEras();
  }

  #endEras(): void {
    for (let era = this.#eras.peek(); era?.closed && era.pending === 0; era = this.#eras.peek()) {
      this.#eras.shift();
      era.end();
    }
  }

  // ── waiting ────────────────────────────────────────────────────────────────────────────────────────────────────

  #waitMs(call: string, options: WaitOptions): number {
    checkOptions(call, options, waitOptions);
    return options.timeoutMs === undefined ? this.#timeoutMs : checkPositive(`${call}: timeoutMs`, options.timeoutMs);
  }

  #wait(what: string, timeoutMs: number, begin: (onEnd: (failure: ShoalError | undefined) => void) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const late = (): void => {
        const message = `${what} timed out after ${timeoutMs} ms; ${this.#culprits()}; does each of them call onComplete?`;
        reject(new ShoalError('timeout', message, { timeoutMs }));
      };
      const timer = this.#clock.setTimer(timeoutMs, late, { keepAlive: true });
      begin((failure) => {
        timer.cancel();
        if (failure === undefined) resolve();
        else reject(failure);
      });
    });
  }

  /** Names of the operations that have been running longest: everything else waits for them, or for the event loop. */
  #culprits(): string {
    const names = Array.from(this.#running, ({ pushed }) => `'${pushed.name}'`);
    return names.length === 0 ? 'none runs' : `running: ${listed(names, namedMax)}`;
  }
}

function isBefore(a: Operation, b: Operation): boolean {
  return a.pushed.priority > b.pushed.priority || (a.pushed.priority === b.pushed.priority && a.number < b.number);
}

function completing(run: () => void): AsyncFunction {
  return (onComplete) => {
    run();
    onComplete();
  };
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';
}
