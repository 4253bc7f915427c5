import { describe, expect, it } from 'vitest';
import { systemClock, VirtualClock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { DependencyEngine, type EngineOptions } from './engine.ts';
import type { AsyncFunction, OnComplete } from './operation.ts';
import type { Variable } from './variable.ts';

function start(options: Partial<EngineOptions> = {}): DependencyEngine {
  return new DependencyEngine({ clock: systemClock, ...options });
}

const nothing: AsyncFunction = (onComplete) => onComplete();

/** A function that runs until `complete` is called. */
function held(): { readonly run: AsyncFunction; readonly complete: OnComplete } {
  let complete: OnComplete | undefined;
  return { run: (onComplete) => void (complete = onComplete), complete: (error) => complete?.(error) };
}

describe('pushing', () => {
  it('runs nothing within the call', async () => {
    const engine = start();
    let ran = false;
    engine.pushSync(() => void (ran = true), [], []);
    expect(ran).toBe(false);
    await engine.waitForAll();
    expect(ran).toBe(true);
  });

  it('reads together and writes alone', async () => {
    const engine = start();
    const x = engine.newVariable('x');
    const [first, second, writer] = [held(), held(), held()];
    const began: string[] = [];
    const push = (name: string, { run }: { run: AsyncFunction }, reads: readonly Variable[], writes: readonly Variable[]): void => {
      engine.pushAsync(
        (onComplete) => {
          began.push(name);
          run(onComplete);
        },
        reads,
        writes,
      );
    };
    push('first', first, [x], []);
    push('second', second, [x], []);
    push('writer', writer, [], [x]);
    push('third', { run: nothing }, [x], []);
    await Promise.resolve();
    expect(began).toEqual(['first', 'second']);
    second.complete();
    first.complete();
    await Promise.resolve();
    expect(began).toEqual(['first', 'second', 'writer']);
    writer.complete();
    await engine.waitForAll();
    expect(began).toEqual(['first', 'second', 'writer', 'third']);
  });

  it('takes functions that push', async () => {
    const engine = start();
    const x = engine.newVariable('x');
    const ran: number[] = [];
    const pushNext = (left: number): void => {
      ran.push(left);
      if (left > 0) engine.pushSync(() => pushNext(left - 1), [], [x]);
    };
    engine.pushSync(() => pushNext(3), [], [x]);
    await expect.poll(() => ran).toEqual([3, 2, 1, 0]);
  });

  it('lets the event loop turn', async () => {
    const engine = start({ operationsPerTurn: 8 });
    let turned = false;
    setImmediate(() => void (turned = true));
    const x = engine.newVariable('x');
    for (let k = 0; k < 100; k++) engine.pushAsync(nothing, [], [x]);
    await engine.waitForAll();
    expect(turned).toBe(true);
  });
});

describe('100,000 operations', () => {
  /** Cost of deciding which operation may go: attempts per use of a variable. */
  async function attemptsPerUse(push: (engine: DependencyEngine) => number): Promise<number> {
    const engine = start();
    const uses = push(engine);
    await engine.waitForAll();
    const { completed, attempts } = engine.statistics;
    expect(completed).toBe(100_000);
    return attempts / uses;
  }

  it.each<[string, (engine: DependencyEngine) => number]>([
    ['one chain of writers', (engine) => pushAll(engine, [engine.newVariable()], () => [[], [0]])],
    ['readers of one variable', (engine) => pushAll(engine, [engine.newVariable()], () => [[0], []])],
    ['readers and a writer in turn', (engine) => pushAll(engine, [engine.newVariable()], (k) => (k % 100 === 0 ? [[], [0]] : [[0], []]))],
    [
      '1,000 variables, three of them each',
      (engine) => pushAll(engine, many(engine, 1000), (k) => [[k % 1000, (k * 7 + 1) % 1000], [(k * 31 + 500) % 1000]]),
    ],
  ])('of %s take a constant number of steps per dependency', async (_, push) => {
    expect(await attemptsPerUse(push)).toBeLessThanOrEqual(3);
  });

  function many(engine: DependencyEngine, count: number): Variable[] {
    return Array.from({ length: count }, () => engine.newVariable());
  }

  function pushAll(engine: DependencyEngine, variables: readonly Variable[], uses: (k: number) => [number[], number[]]): number {
    let count = 0;
    for (let k = 0; k < 100_000; k++) {
      const [reads, writes] = uses(k).map((indices) => [...new Set(indices)].map((index) => variables[index]));
      const onlyRead = reads.filter((variable) => !writes.includes(variable));
      count += onlyRead.length + writes.length;
      engine.pushAsync(nothing, onlyRead, writes, { priority: k % 5 });
    }
    return count;
  }
});

describe('failures', () => {
  it('surface at every wait for the variable, and once at waitForAll', async () => {
    const engine = start();
    const [x, y, z] = ['x', 'y', 'z'].map((name) => engine.newVariable(name));
    const lost = new ShoalError('peer-lost', 'rank 3 is gone', { peer: 3 });
    engine.pushAsync((onComplete) => onComplete(lost), [], [x], { name: 'push x' });
    engine.pushSync(() => expect.unreachable(), [x], [y], { name: 'use x' });
    engine.pushAsync(nothing, [], [z]);
    const error = { code: 'peer-lost', peer: 3, operation: 'push x', message: "operation 'push x' failed: rank 3 is gone", cause: lost };
    await expect(engine.waitForVar(y)).rejects.toMatchObject(error);
    await expect(engine.waitForVar(y)).rejects.toMatchObject(error);
    await expect(engine.waitForAll()).rejects.toMatchObject(error);
    await engine.waitForAll();
    await engine.waitForVar(z);
    expect(engine.statistics).toMatchObject({ skipped: 1 });
    // An operation that is pushed later and does not run is reported, too.
    engine.pushAsync(nothing, [], [y]);
    await expect(engine.waitForAll()).rejects.toMatchObject(error);
  });

  it('are of the operation that was pushed first, whichever fails first', async () => {
    const engine = start();
    const [early, late] = [held(), held()];
    engine.pushAsync(early.run, [], [], { name: 'early' });
    engine.pushAsync(late.run, [], [], { name: 'late' });
    await Promise.resolve();
    late.complete(new Error('second'));
    early.complete(new Error('first'));
    await expect(engine.waitForAll()).rejects.toMatchObject({ operation: 'early', code: 'system' });
  });

  it('may be thrown after completion, and count', async () => {
    const engine = start();
    const [x, y] = [engine.newVariable('x'), engine.newVariable('y')];
    engine.pushAsync(
      (onComplete) => {
        onComplete();
        throw new Error('after all');
      },
      [],
      [x],
    );
    await expect(engine.waitForVar(x)).rejects.toThrow('after all');
    engine.pushAsync(
      // eslint-disable-next-line typescript/no-misused-promises
      async (onComplete) => {
        onComplete();
        await Promise.resolve();
        throw new Error('even later');
      },
      [],
      [y],
      { name: 'late' },
    );
    await engine.waitForVar(y);
    await expect(engine.waitForAll()).rejects.toThrow('after all');
    await expect(engine.waitForAll()).rejects.toThrow('even later');
  });

  it('leave a late completion without effect', async () => {
    const engine = start();
    const x = engine.newVariable('x');
    let complete: OnComplete | undefined;
    engine.pushAsync(
      (onComplete) => {
        complete = onComplete;
        throw new Error('thrown');
      },
      [],
      [x],
    );
    await expect(engine.waitForVar(x)).rejects.toThrow('thrown');
    complete?.();
    await expect(engine.waitForVar(x)).rejects.toThrow('thrown');
  });

  it('do not hide an error of onPoisoned', async () => {
    const engine = start();
    const x = engine.newVariable('x');
    engine.pushSync(
      () => {
        throw new Error('root');
      },
      [],
      [x],
    );
    await expect(engine.waitForAll()).rejects.toThrow('root');
    const onPoisoned = (): never => {
      throw new Error('in the handler');
    };
    engine.pushAsync(nothing, [x], [], { onPoisoned });
    await expect(engine.waitForAll()).rejects.toThrow('in the handler');
  });
});

describe('waits', () => {
  it('wait only for operations that were pushed before them', async () => {
    const engine = start();
    const x = engine.newVariable('x');
    const after = held();
    engine.pushAsync(nothing, [], [x]);
    const [one, all] = [engine.waitForVar(x), engine.waitForAll()];
    engine.pushAsync(after.run, [], [x]);
    await Promise.all([one, all]);
    after.complete();
    await engine.waitForAll();
  });

  it('name the operation that does not complete', async () => {
    const clock = new VirtualClock();
    const engine = start({ clock, timeoutMs: 1000 });
    const x = engine.newVariable('x');
    const stuck = held();
    engine.pushAsync(stuck.run, [], [x], { name: 'pull x' });
    const [one, all] = [engine.waitForVar(x), engine.waitForAll({ timeoutMs: 2000 })];
    await Promise.resolve();
    const timeout = (what: string, timeoutMs: number): object => ({
      code: 'timeout',
      timeoutMs,
      message: `${what} timed out after ${timeoutMs} ms; running: 'pull x'; does each of them call onComplete?`,
    });
    const outcomes = Promise.allSettled([one, all]);
    clock.advance(2000);
    expect(await outcomes).toMatchObject([{ reason: timeout("waitForVar('x')", 1000) }, { reason: timeout('waitForAll', 2000) }]);
    stuck.complete();
    await engine.waitForAll();
  });
});

describe('deletion', () => {
  it('comes after all uses, poisoned or not', async () => {
    const engine = start();
    const x = engine.newVariable('x');
    const events: string[] = [];
    engine.pushSync(
      () => {
        events.push('write');
        throw new Error('failed');
      },
      [],
      [x],
    );
    engine.deleteVariable(x, () => void events.push('release'));
    expect(() => engine.pushAsync(nothing, [x], [])).toThrow("variable 'x' has been deleted");
    await expect(engine.waitForAll()).rejects.toThrow('failed');
    expect(events).toEqual(['write', 'release']);
    expect(() => engine.deleteVariable(x)).toThrow('has been deleted');
    expect(() => engine.waitForVar(x)).toThrow('has been deleted');
  });
});

describe('bad input', () => {
  const other = start().newVariable('stranger');

  it.each<[string, string, (engine: DependencyEngine, x: Variable) => unknown]>([
    ['a variable read twice', 'is named twice', (engine, x) => engine.pushAsync(nothing, [x, x], [])],
    ['a variable written twice', 'is named twice', (engine, x) => engine.pushAsync(nothing, [], [x, x])],
    ['a variable read and written', 'what is read and written is mutable only', (engine, x) => engine.pushAsync(nothing, [x], [x])],
    ["another engine's variable", 'is no variable of this engine', (engine) => engine.pushAsync(nothing, [other], [])],
    ['what is no variable', 'is no variable of this engine', (engine) => engine.pushAsync(nothing, [], [{ name: 'x' }])],
    ['what is no list', 'must be a list', (engine, x) => engine.pushAsync(nothing, x as unknown as Variable[], [])],
    ['no function', 'must be a function', (engine) => engine.pushAsync(undefined as unknown as AsyncFunction, [], [])],
    ['a misspelt option', "did you mean 'priority'?", (engine) => engine.pushAsync(nothing, [], [], { priorty: 1 } as object)],
    ['a priority that is none', 'must be a number', (engine) => engine.pushAsync(nothing, [], [], { priority: NaN })],
    ['a limit of zero', 'must be a positive integer', (engine, x) => engine.waitForVar(x, { timeoutMs: 0 })],
    ['no limit of operations', 'must be a positive integer', () => start({ operationsMax: 0 })],
  ])('%s is refused', async (_, message, run) => {
    const engine = start();
    const x = engine.newVariable('x');
    expect(() => run(engine, x)).toThrow(expect.objectContaining({ code: 'usage', message: expect.stringContaining(message) as string }));
    await engine.waitForAll();
    expect(engine.statistics).toMatchObject({ pushed: 0 });
  });

  it('pushSync refuses a function that goes on after its return', async () => {
    const engine = start();
    // eslint-disable-next-line typescript/no-misused-promises
    engine.pushSync(async () => Promise.reject(new Error('unseen')), [], [], { name: 'async' });
    await expect(engine.waitForAll()).rejects.toMatchObject({ code: 'usage', operation: 'async' });
  });

  it('a second completion is refused', async () => {
    const engine = start();
    const once = held();
    engine.pushAsync(once.run, [], [], { name: 'once' });
    await Promise.resolve();
    once.complete();
    expect(() => once.complete()).toThrow("operation 'once' called onComplete twice");
    await engine.waitForAll();
  });

  it('more operations than the limit are refused, with the names of running ones', async () => {
    const engine = start({ operationsMax: 2 });
    const x = engine.newVariable('x');
    const first = held();
    engine.pushAsync(first.run, [], [x], { name: 'first' });
    engine.pushAsync(nothing, [], [x]);
    await Promise.resolve();
    expect(() => engine.pushAsync(nothing, [], [])).toThrow(
      expect.objectContaining({ code: 'out-of-memory', message: expect.stringContaining("running: 'first'") as string }),
    );
    first.complete();
    await expect.poll(() => engine.statistics.completed).toBe(2);
    await engine.waitForAll();
  });
});
