/** One communication operation of any kind: a push, a pull, an all-reduce. The scheduler's `Core` decides when it starts; only
 *  the kind of task knows how it runs.
 *
 *      post ─▶ partition ─▶ prepare ─▶ notifyReady ─▶ queue ─▶ do ─▶ notifyFinish ─▶ end
 *                              immediate: ───────────▶ immediateDo ─▶ notifyFinish ─▶ end
 *
 *  A tensor that is larger than a partition is a *parent*: its children, one for each part, are prepared and done in its place,
 *  and it ends when all of them have.
 *
 *  Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration", SOSP 2019: its CommTask. */
import { ShoalError } from '../base/errors.ts';
import { describeValue } from '../base/schema.ts';
import { countParts, partsOf, type Part } from './task-parts.ts';
import type { Listed, TaskList } from './task-list.ts';

/** Options of `Task`; a kind of task may have more. */
export interface TaskOptions {
  /** Name of the tensor, for messages and traces. */
  readonly name: string;
  /** Name of the operation: `push`, `pull`, `all-reduce`. */
  readonly operation: string;
  /** Size of the tensor in bytes; a multiple of `unitBytes`. */
  readonly bytes: number;
  /** Smaller is sooner, as in the order of a model's layers. Equal ones start in the order in which they were posted. Default: 0. */
  readonly priority?: number;
  /** Bytes of a unit that is never cut. Default: 1. */
  readonly unitBytes?: number;
  /** The destination whose credit the task takes: a server, a group. Default: `''`. */
  readonly link?: string;
  /** Starts when it is posted, without credit. Default: false. */
  readonly immediate?: boolean;
  /** Called once, when the task and all its parts have ended, with the first error, if any. An error that it throws is thrown to
   *  the caller that caused the end. */
  readonly onEnd?: (error: ShoalError | undefined) => void;
}

/** `posted`: waits until its tensor is ready. `queued`: waits for credit. */
export type TaskState = 'new' | 'posted' | 'queued' | 'running' | 'ended';

/** The receiver of tasks' notifications: the core. */
export interface TaskListener {
  /** The tensor of a posted task is there: the task may start. */
  onReady(task: Task): void;
  /** The task has ended; `error` is undefined when it was done. */
  onFinish(task: Task, error: unknown): void;
}

/** One operation on one tensor, to be posted to a `Core` once, which decides when it starts. A kind of task implements `part` and `onDo`,
 *  and more where it differs: it calls `notifyReady` when its tensor is there, and `notifyFinish` when the operation has ended. */
export abstract class Task implements Listed<Task> {
  /** Name of the tensor, for messages and traces. */
  readonly name: string;
  /** Name of the operation: `push`, `pull`, `all-reduce`. */
  readonly operation: string;
  /** Size of the tensor, or of the part, in bytes. */
  readonly bytes: number;
  /** Smaller is sooner. */
  readonly priority: number;
  /** Bytes of a unit that is never cut: an element, or a row. */
  readonly unitBytes: number;
  /** The destination whose credit the task takes; `''` when none was named. */
  readonly link: string;
  /** True for a task that starts when it is posted, without queue and credit. Parts do as their parent. */
  readonly isImmediate: boolean;
  /** Called once, when the task and all its parts have ended, with the first error, if any; not called for parts. */
  readonly onEnd: ((error: ShoalError | undefined) => void) | undefined;
  /** The task that was posted, if this one is a part of it. */
  parent: Task | undefined;
  /** Parts, if the task was cut. */
  children: readonly Task[] = [];
  /** Stage of the task. One that was cut is `running` from its post until its last part has ended. */
  state: TaskState = 'new';

  // The core's own notes.
  /** Number of the post; parts have the number of their parent. */
  sequence = 0;
  /** Index of a part among its siblings. */
  index = 0;
  /** Number among the tasks that became ready. */
  arrival = 0;
  /** Time at which the task started, in milliseconds of the core's clock; 0 before. */
  startedMs = 0;
  /** Number of children that have not ended. */
  unended = 0;
  /** The error that the task ended with, if any; of a task that was cut, the first one of its parts. */
  failure: ShoalError | undefined;
  /** The list that the task is in. */
  list: TaskList<Task> | undefined;
  /** The neighbour that was added before. */
  before: Task | undefined;
  /** The neighbour that was added later. */
  after: Task | undefined;
  #listener: TaskListener | undefined;

  constructor(options: TaskOptions) {
    const fault = faultOf(options);
    if (fault !== undefined) throw new ShoalError('usage', `Task ${fault}`);
    const { name, operation, bytes, priority = 0, unitBytes = 1, link = '', immediate = false, onEnd } = options;
    this.name = name;
    this.operation = operation;
    this.bytes = bytes;
    this.priority = priority;
    this.unitBytes = unitBytes;
    this.link = link;
    this.isImmediate = immediate;
    this.onEnd = onEnd;
  }

  // ── called by the core ─────────────────────────────────────────────────────────────────────────────────────────

  /** Number of parts that `partition` makes. */
  countParts(partitionBytes: number): number {
    if (this.bytes <= partitionBytes) return 1;
    return countParts({ bytes: this.bytes, partitionBytes, unitBytes: this.unitBytes });
  }

  /** The task's parts: itself, when there would be one. */
  partition(partitionBytes: number): readonly Task[] {
    if (this.countParts(partitionBytes) === 1) return [this];
    const parts = this.cut(partitionBytes);
    const children = parts.map((part, index) => this.part(part, index));
    for (const [index, child] of children.entries()) {
      if (child.bytes !== parts[index].bytes || child.state !== 'new' || child.parent !== undefined) {
        throw refusal(this.name, `part ${index} must be a new task of ${parts[index].bytes} bytes`);
      }
      child.parent = this;
      child.index = index;
    }
    this.children = children;
    this.unended = children.length;
    return children;
  }

  /** Prepares the task; must lead to `notifyReady` when its tensor is there. */
  prepare(listener: TaskListener): void {
    this.#listener = listener;
    this.state = 'posted';
    this.onPrepare();
  }

  /** Starts the task; must lead to `notifyFinish` when its bytes have arrived. */
  do(): void {
    this.state = 'running';
    this.onDo();
  }

  /** Starts an immediate task, instead of `prepare` and `do`; must lead to `notifyFinish`. */
  immediateDo(listener: TaskListener): void {
    this.#listener = listener;
    this.state = 'running';
    this.onImmediateDo();
  }

  /** Ends the task's resources: it has failed, will not be done, or nobody waits for it any more. */
  abandon(error: ShoalError): void {
    this.onAbandon(error);
  }

  // ── called by the kind of task ─────────────────────────────────────────────────────────────────────────────────

  /** The task's tensor is there: the task may start. Without effect when the task has ended meanwhile. */
  notifyReady(): void {
    if (this.state === 'ended') return;
    if (this.state !== 'posted') throw refusal(this.name, `notifyReady of a task that is ${this.state}`);
    this.#listener?.onReady(this);
  }

  /** The task has been done, or has failed, whether or not it was ready. Without effect when it has ended meanwhile: a task that
   *  was given up may finish late. */
  notifyFinish(error?: unknown): void {
    if (this.state === 'ended') return;
    if (this.state === 'new') throw refusal(this.name, 'notifyFinish of a task that was not posted');
    this.#listener?.onFinish(this, error);
  }

  // ── implemented by a kind of task ──────────────────────────────────────────────────────────────────────────────

  /** The task of a part, over the same memory. */
  protected abstract part(part: Part, index: number): Task;

  /** The parts into which the task is cut. Default: as few and as equal as possible. */
  protected cut(partitionBytes: number): readonly Part[] {
    return partsOf({ bytes: this.bytes, partitionBytes: Math.max(1, partitionBytes), unitBytes: this.unitBytes });
  }

  /** Starts the transfer. */
  protected abstract onDo(): void;

  /** Called once the task is posted. Default: its tensor is there. */
  protected onPrepare(): void {
    this.notifyReady();
  }

  /** Starts an immediate task. Default: like any other. */
  protected onImmediateDo(): void {
    this.onDo();
  }

  /** Releases resources of a task that is given up; for kinds that have any. It may not throw. */
  protected onAbandon(_error: ShoalError): void {}
}

/** True if `a` starts before `b`: by priority, then in the order of posts, then by part. So all parts of a tensor come before the
 *  next tensor, however many they are. */
export function isSooner(a: Task, b: Task): boolean {
  if (a.priority !== b.priority) return a.priority < b.priority;
  return a.sequence === b.sequence ? a.index < b.index : a.sequence < b.sequence;
}

export function hasArrivedSooner(a: Task, b: Task): boolean {
  return a.arrival < b.arrival;
}

/** Text for messages: operation, name and part. */
export function describeTask({ name, operation, parent, index }: Task): string {
  const part = parent === undefined ? '' : `, part ${index + 1} of ${parent.children.length}`;
  return `${operation} of '${parent?.name ?? name}'${part}`;
}

/** Parts are made of options too, so this costs a few comparisons. Kinds of tasks have more options, which are theirs. */
function faultOf(options: TaskOptions): string | undefined {
  if (!(options instanceof Object)) return `options are an object, not ${describeValue(options)}`;
  const { name, operation, bytes, priority = 0, unitBytes = 1, link = '', immediate = false, onEnd } = options;
  if (typeof name !== 'string' || typeof operation !== 'string' || typeof link !== 'string') return 'name, operation and link are strings';
  if (!Number.isSafeInteger(bytes) || bytes < 0) return `'${name}': bytes must be a whole number, not ${describeValue(bytes)}`;
  if (!Number.isFinite(priority)) return `'${name}': priority must be a finite number, not ${describeValue(priority)}`;
  if (!Number.isSafeInteger(unitBytes) || unitBytes <= 0)
    return `'${name}': unitBytes must be a positive integer, not ${describeValue(unitBytes)}`;
  if (bytes % unitBytes !== 0) return `'${name}': ${bytes} bytes are no whole number of units of ${unitBytes}`;
  if (typeof immediate !== 'boolean') return `'${name}': immediate is true or false, not ${describeValue(immediate)}`;
  return onEnd === undefined || typeof onEnd === 'function' ? undefined : `'${name}': onEnd is a function, not ${describeValue(onEnd)}`;
}

function refusal(name: string, message: string): ShoalError {
  return new ShoalError('usage', `task '${name}': ${message}`);
}
