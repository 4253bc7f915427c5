import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { Core, type CoreOptions } from './core.ts';
import type { Task } from './task.ts';
import { HeldTask, type HeldTaskOptions } from './testing/held-task.ts';

interface World {
  readonly core: Core;
  readonly clock: VirtualClock;
  /** Names of tasks, in the order in which they started. */
  readonly started: string[];
  readonly running: Map<string, Task>;
  post(options: HeldTaskOptions): HeldTask;
  finish(name: string, error?: Error): void;
}

function start(options: Partial<CoreOptions> = {}): World {
  const clock = new VirtualClock();
  const started: string[] = [];
  const running = new Map<string, Task>();
  const observer = {
    onStarted: (task: Task) => {
      started.push(task.name);
      running.set(task.name, task);
    },
  };
  const core = new Core({ clock, creditBytes: 100, partitionBytes: 100, timeoutMs: 1000, observer, ...options });
  core.start();
  return {
    core,
    clock,
    started,
    running,
    post: (taskOptions) => {
      const task = new HeldTask(taskOptions);
      core.post(task);
      return task;
    },
    finish: (name, error) => running.get(name)?.notifyFinish(error),
  };
}

describe('credit', () => {
  it('is never exceeded, but by one task alone', () => {
    const { core, started, post, finish } = start({ creditBytes: 10 });
    post({ name: 'a', bytes: 6 });
    post({ name: 'b', bytes: 5 });
    post({ name: 'c', bytes: 40 });
    post({ name: 'd', bytes: 1 });
    expect(started).toEqual(['a']);
    finish('a');
    expect(started).toEqual(['a', 'b']);
    // The task d would fit beside b, but c comes first.
    finish('b');
    expect(started).toEqual(['a', 'b', 'c']);
    expect(core.statusOf('')).toEqual({ creditBytes: 10, inFlightBytes: 40, inFlight: 1, queued: 1 });
    finish('c');
    expect(started).toEqual(['a', 'b', 'c', 'd']);
  });

  it('is of each link alone', () => {
    const { core, started, post, finish } = start({ creditBytes: 10 });
    core.setLink('fast', { creditBytes: 20 });
    for (const name of ['slow 0', 'slow 1']) post({ name, bytes: 10, link: 'slow' });
    for (const name of ['fast 0', 'fast 1', 'fast 2']) post({ name, bytes: 10, link: 'fast' });
    expect(started).toEqual(['slow 0', 'fast 0', 'fast 1']);
    finish('fast 0');
    expect(started).toEqual(['slow 0', 'fast 0', 'fast 1', 'fast 2']);
  });

  it('changes while tasks are in flight, which still count', () => {
    const { core, started, post, finish } = start({ creditBytes: 20 });
    for (const name of ['a', 'b', 'c', 'd']) post({ name, bytes: 10 });
    core.setCredit(10);
    finish('a');
    expect(started).toEqual(['a', 'b']);
    finish('b');
    expect(started).toEqual(['a', 'b', 'c']);
    core.setCredit(20);
    expect(started).toEqual(['a', 'b', 'c', 'd']);
  });

  it('is not needed by immediate tasks', () => {
    const { core, started, post } = start({ creditBytes: 10, partitionBytes: 10 });
    post({ name: 'a', bytes: 10 });
    post({ name: 'init', bytes: 25, immediate: true });
    expect(started).toEqual(['a', 'init.0', 'init.1', 'init.2']);
    expect(core.statusOf('')).toMatchObject({ inFlightBytes: 10, inFlight: 1 });
  });
});

describe('order', () => {
  it('is by priority, then by post, and by part within a tensor however many there are', () => {
    const { started, post, finish } = start({ creditBytes: 1, partitionBytes: 1 });
    post({ name: 'first', bytes: 1 });
    post({ name: 'c', bytes: 2, priority: 2 });
    post({ name: 'b', bytes: 3000, priority: 1 });
    post({ name: 'a', bytes: 2, priority: 0 });
    post({ name: 'c2', bytes: 1, priority: 2 });
    for (let k = 0; k < 3006; k++) finish(started[k]);
    const b = Array.from({ length: 3000 }, (_, k) => `b.${k}`);
    expect(started).toEqual(['first', 'a.0', 'a.1', ...b, 'c.0', 'c.1', 'c2']);
  });

  it('lets a tensor that is needed sooner overtake between parts', () => {
    const { started, post, finish } = start({ creditBytes: 10, partitionBytes: 10 });
    post({ name: 'late', bytes: 30, priority: 1 });
    finish('late.0');
    post({ name: 'soon', bytes: 20, priority: 0 });
    for (const name of ['late.1', 'soon.0', 'soon.1', 'late.2']) finish(name);
    expect(started).toEqual(['late.0', 'late.1', 'soon.0', 'soon.1', 'late.2']);
  });

  it('is that of becoming ready on links that ask for it', () => {
    const { core, started, post, finish } = start({ creditBytes: 1 });
    core.setLink('group', { order: 'arrival' });
    const tasks = [2, 1, 0].map((priority) => post({ name: String(priority), bytes: 1, priority, link: 'group', isLate: true }));
    for (const task of [tasks[1], tasks[0], tasks[2]]) task.notifyReady();
    for (const name of ['1', '2', '0']) finish(name);
    expect(started).toEqual(['1', '2', '0']);
  });

  it('waits for the start of the core', () => {
    const clock = new VirtualClock();
    const started: string[] = [];
    const core = new Core({ clock, creditBytes: 10, partitionBytes: 10, observer: { onStarted: ({ name }) => void started.push(name) } });
    core.post(new HeldTask({ name: 'b', bytes: 1, priority: 1 }));
    core.post(new HeldTask({ name: 'a', bytes: 1, priority: 0 }));
    core.post(new HeldTask({ name: 'init', bytes: 1, immediate: true }));
    expect(started).toEqual(['init']);
    core.start();
    expect(started).toEqual(['init', 'a', 'b']);
  });

  it('takes tasks that finish as they start, without depth', () => {
    const { started, post } = start({ creditBytes: 1, partitionBytes: 1 });
    let ended = 0;
    post({ name: 'x', bytes: 100_000, run: (task) => task.notifyFinish(), onEnd: () => void ended++ });
    expect([started.length, ended]).toEqual([100_000, 1]);
  });
});

describe('partitions', () => {
  it('are as few and as equal as possible, larger ones last, and never cut a unit', () => {
    const { core, post } = start({ partitionBytes: 10 });
    const partsOf = (options: Partial<HeldTaskOptions>): number[] => {
      const { children } = post({ name: 'x', bytes: 0, ...options });
      return children.map(({ bytes }) => bytes);
    };
    expect(partsOf({ bytes: 10 })).toEqual([]);
    expect(partsOf({ bytes: 32 })).toEqual([8, 8, 8, 8]);
    expect(partsOf({ bytes: 11 })).toEqual([5, 6]);
    expect(partsOf({ bytes: 48, unitBytes: 4 })).toEqual([8, 8, 8, 8, 8, 8]);
    expect(partsOf({ bytes: 44, unitBytes: 4 })).toEqual([4, 8, 8, 8, 8, 8]);
    expect(partsOf({ bytes: 60, unitBytes: 20 })).toEqual([20, 20, 20]);
    expect(partsOf({ bytes: 20, unitBytes: 20 })).toEqual([]);
    core.setPartition(30);
    expect(partsOf({ bytes: 60 })).toEqual([30, 30]);
  });

  it('change for tensors that are posted later only', () => {
    const { core, started, post, finish } = start({ creditBytes: 10, partitionBytes: 10 });
    post({ name: 'a', bytes: 20 });
    core.setPartition(5);
    post({ name: 'b', bytes: 10 });
    for (const name of ['a.0', 'a.1', 'b.0', 'b.1']) finish(name);
    expect(started).toEqual(['a.0', 'a.1', 'b.0', 'b.1']);
  });
});

describe('a link', () => {
  it('has a partition of its own, and goes when nothing is left for it', () => {
    const { core, started, post, finish } = start();
    core.setLink('a', { partitionBytes: 10 });
    post({ name: 'cut', bytes: 20, link: 'a' });
    post({ name: 'whole', bytes: 20, link: 'b' });
    expect(started).toEqual(['cut.0', 'cut.1', 'whole']);
    core.removeLink('a');
    finish('cut.0');
    finish('cut.1');
    core.removeLink('a');
    post({ name: 'later', bytes: 20, link: 'a' });
    expect(started.at(-1)).toBe('later');
  });
});

describe('failures', () => {
  /** Records the error that each task ends with; a task that has not ended has no entry. */
  function ends(): { readonly of: Map<string, ShoalError | undefined>; onEnd(name: string): (error: ShoalError | undefined) => void } {
    const of = new Map<string, ShoalError | undefined>();
    return { of, onEnd: (name) => (error) => void of.set(name, error) };
  }

  it('end the task with its name and the known facts, and give the credit back', () => {
    const { core, started, post } = start({ creditBytes: 10 });
    const { of, onEnd } = ends();
    const run = (): never => {
      throw new ShoalError('peer-lost', 'server 2 is gone', { peer: 2 });
    };
    post({ name: 'a', bytes: 10, run, onEnd: onEnd('a') });
    post({ name: 'b', bytes: 10 });
    expect(of.get('a')).toMatchObject({ code: 'peer-lost', peer: 2, message: "task 'push of 'a'' failed: server 2 is gone" });
    expect(started).toEqual(['a', 'b']);
    expect(core.statusOf('')).toMatchObject({ inFlightBytes: 10 });
  });

  it('of a part give up those that have not started, and wait for those that have', () => {
    const abandoned: string[] = [];
    const { core, started, post, finish } = start({ creditBytes: 20, partitionBytes: 10 });
    const { of, onEnd } = ends();
    post({ name: 'a', bytes: 50, onEnd: onEnd('a'), onAbandon: ({ name }) => void abandoned.push(name) });
    finish('a.0', new Error('refused'));
    expect(abandoned).toEqual(['a.0', 'a.2', 'a.3', 'a.4']);
    expect(of.has('a')).toBe(false);
    finish('a.1', new Error('refused as well'));
    expect(of.get('a')?.message).toBe("task 'push of 'a', part 1 of 5' failed: refused");
    post({ name: 'b', bytes: 10 });
    expect(started).toEqual(['a.0', 'a.1', 'b']);
    expect(core.statusOf('')).toMatchObject({ inFlight: 1, queued: 0 });
  });

  it('of preparing end the task as well', () => {
    const { started, core } = start({ partitionBytes: 10 });
    const { of, onEnd } = ends();
    class Unprepared extends HeldTask {
      protected override onPrepare(): void {
        throw new Error('no proxy');
      }
      protected override part(): Unprepared {
        return new Unprepared({ name: 'part', bytes: 10 });
      }
    }
    core.post(new Unprepared({ name: 'a', bytes: 30, onEnd: onEnd('a') }));
    expect(of.get('a')?.message).toContain('no proxy');
    expect(started).toEqual([]);
  });

  it('include tasks that never finish: a limit names them, and a late end has no effect', () => {
    const { core, clock, started, running, post, finish } = start({ creditBytes: 10 });
    const { of, onEnd } = ends();
    post({ name: 'a', bytes: 10, link: 'server 1', onEnd: onEnd('a') });
    post({ name: 'b', bytes: 10, link: 'server 1', onEnd: onEnd('b') });
    clock.advance(999);
    expect(of.size).toBe(0);
    clock.advance(1);
    expect(of.get('a')).toMatchObject({ code: 'timeout', operation: 'a', bytes: 10, timeoutMs: 1000 });
    expect(of.get('a')?.message).toBe(
      "push of 'a' did not finish within 1000 ms: link 'server 1'; its credit is given back; is its peer alive?",
    );
    expect(started).toEqual(['a', 'b']);
    running.get('a')?.notifyFinish();
    running.get('a')?.notifyReady();
    expect(core.statusOf('server 1')).toMatchObject({ inFlightBytes: 10, inFlight: 1 });
    clock.advance(500);
    finish('b');
    expect(of.get('b')).toBeUndefined();
    clock.advance(5000);
    expect(core.statusOf('server 1')).toMatchObject({ inFlightBytes: 0, inFlight: 0 });
  });

  it('of a callback do not stop the others', () => {
    const { core, started, post, finish } = start({ creditBytes: 10 });
    const onEnd = (): never => {
      throw new Error("the program's own");
    };
    post({ name: 'a', bytes: 10, onEnd });
    post({ name: 'b', bytes: 10 });
    expect(() => finish('a')).toThrow("the program's own");
    expect(started).toEqual(['a', 'b']);
    finish('b');
    // Callbacks of tasks that end as they start may throw, too: the next tasks start all the same.
    const run = (task: HeldTask): void => task.notifyFinish();
    expect(() => post({ name: 'c', bytes: 10, run, onEnd })).toThrow("the program's own");
    core.post(new HeldTask({ name: 'd', bytes: 10, isLate: true, run, onEnd }));
    post({ name: 'e', bytes: 10 });
    const late = post({ name: 'f', bytes: 10, isLate: true, run, onEnd });
    post({ name: 'g', bytes: 10, priority: 1 });
    late.notifyReady();
    expect(() => finish('e')).toThrow("the program's own");
    expect(started).toEqual(['a', 'b', 'c', 'e', 'f', 'g']);
  });
});

describe('shutdown', () => {
  it('drains: everything that was posted ends', async () => {
    const { core, started, post, finish } = start({ creditBytes: 10 });
    post({ name: 'a', bytes: 10 });
    post({ name: 'b', bytes: 10 });
    const late = post({ name: 'c', bytes: 10, isLate: true });
    const ended = core.shutdown('drain');
    expect(() => post({ name: 'd', bytes: 1 })).toThrow(expect.objectContaining({ code: 'closed' }));
    finish('a');
    finish('b');
    late.notifyReady();
    expect(started).toEqual(['a', 'b', 'c']);
    finish('c');
    await ended;
  });

  it('aborts: gives up tasks that have not started, and waits for those that run', async () => {
    const { core, clock, post, finish } = start({ creditBytes: 10 });
    const ended: string[] = [];
    const onEnd = (name: string) => (error?: ShoalError) => void ended.push(`${name}: ${error?.code}`);
    post({ name: 'a', bytes: 10, onEnd: onEnd('a') });
    post({ name: 'b', bytes: 10, onEnd: onEnd('b') });
    post({ name: 'c', bytes: 10, isLate: true, onEnd: onEnd('c') });
    post({ name: 'd', bytes: 10, link: 'other', onEnd: onEnd('d') });
    const abandoned: string[] = [];
    post({ name: 'e', bytes: 300, onEnd: onEnd('e'), onAbandon: ({ name }) => void abandoned.push(name) });
    const end = core.shutdown('abort');
    expect(abandoned).toEqual(['e.0', 'e.1', 'e.2']);
    expect(ended).toEqual(['b: aborted', 'c: aborted', 'e: aborted']);
    finish('a');
    clock.advance(1000);
    await end;
    expect(ended).toEqual(['b: aborted', 'c: aborted', 'e: aborted', 'a: undefined', 'd: timeout']);
  });

  it('names tensors that never became ready', async () => {
    const { core, clock, post, finish } = start();
    post({ name: 'a', bytes: 10, isLate: true });
    post({ name: 'b', bytes: 10 });
    const ended = core.shutdown('drain');
    clock.advance(900);
    finish('b');
    clock.advance(900);
    const outcome = expect(ended).rejects.toMatchObject({
      code: 'timeout',
      message: "shutdown: 1 tasks did not become ready within 1000 ms: push of 'a'",
    });
    clock.advance(100);
    await outcome;
  });

  it('can be cut short, and drains a core that was never started', async () => {
    const clock = new VirtualClock();
    const core = new Core({ clock, creditBytes: 1, partitionBytes: 1 });
    const ended: string[] = [];
    core.post(new HeldTask({ name: 'a', bytes: 1, run: (task) => task.notifyFinish(), onEnd: () => void ended.push('a') }));
    core.post(new HeldTask({ name: 'b', bytes: 1, isLate: true, onEnd: () => void ended.push('b') }));
    const drained = core.shutdown('drain');
    expect(ended).toEqual(['a']);
    void core.shutdown('abort');
    await drained;
    expect(ended).toEqual(['a', 'b']);
    expect(() => core.start()).toThrow(expect.objectContaining({ code: 'closed' }));
  });
});

describe('bad input', () => {
  const clock = new VirtualClock();
  const good = { clock, creditBytes: 10, partitionBytes: 10 };

  it.each<[string, string, () => unknown]>([
    ['a credit of zero', 'must be a positive integer', () => new Core({ ...good, creditBytes: 0 })],
    ['a negative partition', 'must be a positive integer', () => new Core({ ...good, partitionBytes: -1 })],
    ['half a byte', 'must be a positive integer', () => new Core({ ...good, partitionBytes: 1.5 })],
    ['a credit larger than memory', "more than this machine's memory", () => new Core({ ...good, memoryBytes: 9 })],
    ['a misspelt option', "did you mean 'creditBytes'?", () => new Core({ ...good, creditByte: 1 } as never)],
    ['no options', 'needs an object', () => new Core(undefined as never)],
    ['a credit of zero, later', 'must be a positive integer', () => new Core(good).setCredit(0)],
    ['a partition that is no number', 'must be a positive integer', () => new Core(good).setPartition('1' as never)],
    ['a credit of a link', 'must be a positive integer', () => new Core(good).setLink('x', { creditBytes: 0.5 })],
    ['an order that there is not', "one of 'priority', 'arrival'", () => new Core(good).setLink('x', { order: 'random' as never })],
    ['a shutdown of its own kind', "'drain' or 'abort'", () => new Core(good).shutdown('now' as never)],
    ['negative bytes', 'must be a whole number', () => new HeldTask({ name: 'x', bytes: -1 })],
    ['a priority that is none', 'must be a finite number', () => new HeldTask({ name: 'x', bytes: 1, priority: NaN })],
    ['a unit of zero', 'unitBytes must be a positive integer', () => new HeldTask({ name: 'x', bytes: 1, unitBytes: 0 })],
    ['half a unit', 'no whole number of units', () => new HeldTask({ name: 'x', bytes: 3, unitBytes: 2 })],
    [
      'a task that is ready before it is posted',
      'notifyReady of a task that is new',
      () => new HeldTask({ name: 'x', bytes: 1 }).notifyReady(),
    ],
  ])('%s is refused', (_, message, run) => {
    expect(run).toThrow(expect.objectContaining({ code: 'usage', message: expect.stringContaining(message) as string }));
  });

  it('a task is posted once, and its parts never', () => {
    const { core, post } = start({ partitionBytes: 1 });
    const task = post({ name: 'x', bytes: 2 });
    expect(() => core.post(task)).toThrow("push of 'x' was posted before");
    expect(() => core.post(task.children[0])).toThrow("push of 'x', part 1 of 2 was posted before");
  });

  it('the order of a link does not change under its tasks', () => {
    const { core, post } = start();
    post({ name: 'x', bytes: 1, link: 'a' });
    expect(() => core.setLink('a', { order: 'arrival' })).toThrow("link 'a' is in use, in the order of priority");
  });

  it('more tasks or links than there may be are refused, and nothing is done', () => {
    const { core, started, post, finish } = start({ tasksMax: 3, linksMax: 2, partitionBytes: 1, creditBytes: 1 });
    expect(() => post({ name: 'many', bytes: 1e15 })).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
    post({ name: 'a', bytes: 2, link: 'a' });
    expect(() => post({ name: 'b', bytes: 2, link: 'b' })).toThrow(/2 parts of push of 'b' on top of 2 tasks/);
    post({ name: 'c', bytes: 1, link: 'c' });
    finish('c');
    expect(() => post({ name: 'd', bytes: 1, link: 'd' })).toThrow(/more than linksMax = 2/);
    expect(started).toEqual(['a.0', 'c']);
    // A task that was given up in a queue still takes its place until the queue reaches it.
    finish('a.0', new Error('failed'));
    expect(core.statusOf('a').queued).toBe(0);
  });

  it('parts that are not new tasks of the requested bytes are refused', () => {
    class Wrong extends HeldTask {
      protected override part(): HeldTask {
        return new HeldTask({ name: 'part', bytes: 1 });
      }
    }
    const { core } = start({ partitionBytes: 10 });
    expect(() => core.post(new Wrong({ name: 'x', bytes: 20 }))).toThrow('part 0 must be a new task of 10 bytes');
  });
});
