/** Admission against a reference model, for random posts, ends, and changes of credit and partition.
 *  `SCHEDULER_PROGRAMS=100000 npx vitest run src/scheduler` runs more of them. */
import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { Core } from './core.ts';
import type { Task } from './task.ts';
import { HeldTask } from './testing/held-task.ts';

const numRuns = Number(process.env.SCHEDULER_PROGRAMS ?? 2000);

type Command =
  | { readonly kind: 'post'; readonly bytes: number; readonly priority: number; readonly link: number; readonly isLate: boolean }
  | { readonly kind: 'finish' | 'fail' | 'ready'; readonly which: number }
  | { readonly kind: 'credit' | 'partition'; readonly bytes: number }
  | { readonly kind: 'link credit'; readonly link: number; readonly bytes: number };

const small = fc.integer({ min: 1, max: 12 });
const commands: fc.Arbitrary<Command> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('post' as const),
      bytes: fc.nat(20),
      priority: fc.nat(3),
      link: fc.nat(1),
      isLate: fc.boolean(),
    }),
  },
  { weight: 6, arbitrary: fc.record({ kind: fc.constantFrom('finish' as const, 'finish' as const, 'ready' as const), which: fc.nat(50) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('fail' as const), which: fc.nat(50) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constantFrom('credit' as const, 'partition' as const), bytes: small }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('link credit' as const), link: fc.nat(1), bytes: small }) },
);

/** The model's view of a part: its place in the order of its link. */
interface Entry {
  readonly task: Task;
  readonly key: readonly [priority: number, post: number, index: number];
}

const isBefore = (a: Entry, b: Entry): number => a.key[0] - b.key[0] || a.key[1] - b.key[1] || a.key[2] - b.key[2];

/** The reference: sorted lists in place of queues, and everything counted anew each time. */
class Model {
  creditBytes: number;
  readonly ownCredit = new Map<string, number>();
  readonly late: Entry[] = [];
  readonly queues = new Map<string, Entry[]>();
  readonly running: Task[] = [];
  readonly started: Task[] = [];
  readonly ended = new Set<Task>();

  constructor(creditBytes: number) {
    this.creditBytes = creditBytes;
  }

  ready(entry: Entry): void {
    const { link } = entry.task;
    const queue = this.queues.get(link) ?? [];
    queue.push(entry);
    this.queues.set(link, queue.sort(isBefore));
  }

  /** Ends a task. A failure also ends siblings that have not started. */
  end(task: Task, failed: boolean): void {
    const dropped = failed && task.parent !== undefined ? task.parent.children.filter((each) => !this.running.includes(each)) : [];
    for (const each of [task, ...dropped]) this.ended.add(each);
    this.running.splice(this.running.indexOf(task), 1);
    for (const queue of this.queues.values()) filterInPlace(queue, (entry) => !this.ended.has(entry.task));
    filterInPlace(this.late, (entry) => !this.ended.has(entry.task));
  }

  inFlight(link: string): Task[] {
    return this.running.filter((task) => task.link === link);
  }

  bytesOf(link: string): number {
    return this.inFlight(link).reduce((sum, { bytes }) => sum + bytes, 0);
  }

  admit(): void {
    for (const [link, queue] of this.queues) {
      const credit = this.ownCredit.get(link) ?? this.creditBytes;
      while (queue.length > 0 && (this.inFlight(link).length === 0 || this.bytesOf(link) + queue[0].task.bytes <= credit)) {
        const [{ task }] = queue.splice(0, 1);
        this.running.push(task);
        this.started.push(task);
        // The invariant: within the credit, or one task alone.
        expect(this.bytesOf(link) <= credit || this.inFlight(link).length === 1).toBe(true);
      }
    }
  }
}

function filterInPlace<T>(list: T[], keep: (each: T) => boolean): void {
  list.splice(0, list.length, ...list.filter(keep));
}

function run(program: readonly Command[]): void {
  const started: Task[] = [];
  const ended: Task[] = [];
  const observer = { onStarted: (task: Task) => void started.push(task), onEnded: (task: Task) => void ended.push(task) };
  const core = new Core({ clock: new VirtualClock(), creditBytes: 8, partitionBytes: 4, observer });
  const model = new Model(8);
  let posts = 0;
  let parents = 0;
  let parentsEnded = 0;
  core.start();
  const agree = (): void => {
    model.admit();
    const byLink = (tasks: readonly Task[], link: string): string[] => tasks.filter((task) => task.link === link).map(({ name }) => name);
    for (const link of ['0', '1']) {
      expect(byLink(started, link)).toEqual(byLink(model.started, link));
      const { inFlightBytes, inFlight } = core.statusOf(link);
      expect([inFlightBytes, inFlight]).toEqual([model.bytesOf(link), model.inFlight(link).length]);
    }
  };
  const finish = (which: number, error?: Error): void => {
    if (model.running.length === 0) return;
    const task = model.running[which % model.running.length];
    model.end(task, error !== undefined);
    task.notifyFinish(error);
  };
  const becomeReady = (which: number): void => {
    if (model.late.length === 0) return;
    const [entry] = model.late.splice(which % model.late.length, 1);
    model.ready(entry);
    entry.task.notifyReady();
  };
  for (const command of program) {
    if (command.kind === 'post') {
      const { bytes, priority, link, isLate } = command;
      const onEnd = (): void => void parentsEnded++;
      const task = new HeldTask({ name: String(posts), bytes, priority, link: String(link), isLate: true, onEnd });
      core.post(task);
      parents++;
      const parts = task.children.length > 0 ? task.children : [task];
      expect(parts.reduce((sum, part) => sum + part.bytes, 0)).toBe(bytes);
      expect(Math.max(...parts.map((part) => part.bytes))).toBeLessThanOrEqual(core.partitionBytes);
      for (const [index, part] of parts.entries()) {
        model.late.push({ task: part, key: [priority, posts, index] });
        if (isLate) continue;
        becomeReady(model.late.length - 1);
        model.admit();
      }
      posts++;
    } else if (command.kind === 'finish') finish(command.which);
    else if (command.kind === 'fail') finish(command.which, new Error('failed'));
    else if (command.kind === 'ready') becomeReady(command.which);
    else if (command.kind === 'credit') {
      model.creditBytes = command.bytes;
      core.setCredit(command.bytes);
    } else if (command.kind === 'partition') core.setPartition(command.bytes);
    else if (command.kind === 'link credit') {
      model.ownCredit.set(String(command.link), command.bytes);
      core.setLink(String(command.link), { creditBytes: command.bytes });
    }
    agree();
  }
  // Everything that was posted ends: late tasks become ready, and running ones finish.
  while (model.late.length > 0) {
    becomeReady(0);
    agree();
  }
  while (model.running.length > 0) {
    finish(0);
    agree();
  }
  expect(ended.length).toBe(model.ended.size);
  expect(parentsEnded).toBe(parents);
}

it('admits what the model admits, in its order', () => {
  fc.assert(
    fc.property(fc.array(commands, { maxLength: 60 }), (program) => run(program)),
    { numRuns },
  );
});
