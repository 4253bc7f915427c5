/** The core of ByteScheduler: one queue by priority and one credit for each link; tasks start when they are the first and the credit
 *  has room. It knows no kind of task.
 *
 *      post ─▶ parts ─▶ posted ── ready ──▶ queue of the link ── credit ──▶ running ── finish ──▶ ended, credit returns
 *
 *  Everything happens within the call that causes it: a post, a notification, a change of the credit, a timer. A task of higher
 *  priority overtakes between parts, never within one. Bounds: `tasksMax` tasks that have not ended, `linksMax` links. */
import { systemClock, type Clock, type Timer } from '../base/clock.ts';
import { listed } from '../base/collections/lists.ts';
import { ShoalError } from '../base/errors.ts';
import { namedFailure } from '../base/named-failure.ts';
import { anyNumber, anyObject, anyText, checkArgument, checkFields, checkPositive, describeValue, optionTable } from '../base/schema.ts';
import { Arbiter } from './arbiter.ts';
import { RunningTasks } from './running-tasks.ts';
import { linkOptions, SchedulerLink, type LinkOptions, type LinkOrder, type LinkStatus } from './scheduler-link.ts';
import { describeTask, Task, type TaskListener } from './task.ts';
import { TaskList } from './task-list.ts';

/** Options of `Core`. */
export interface CoreOptions {
  /** Default: the system's. */
  readonly clock?: Clock;
  /** Most bytes in flight of a link; one larger task may be alone. */
  readonly creditBytes: number;
  /** Largest part that a tensor is cut into, in bytes. */
  readonly partitionBytes: number;
  /** Limit of credit and partitions: the memory of the machine. Default: no limit. */
  readonly memoryBytes?: number;
  /** Longest time that a task may run. Default: 300,000. */
  readonly timeoutMs?: number;
  /** Most tasks that have not ended, each part counted. Default: 1,048,576. */
  readonly tasksMax?: number;
  /** Most links. Default: 4,096. */
  readonly linksMax?: number;
  /** Observer of all events. Default: none. */
  readonly observer?: CoreObserver;
  /** Arbiter of the resources that links share with others of the process. Default: they share nothing. */
  readonly arbiter?: Arbiter;
}

/** An observer of all events, for traces and counters. It may not throw, post or notify. */
export interface CoreObserver {
  /** The task's tensor is ready: the task waits for credit in the queue of its link. */
  onQueued?(task: Task): void;
  /** The task is about to run: it has got credit, or is an immediate one. */
  onStarted?(task: Task): void;
  /** `task` was started, or was given up before that. */
  onEnded?(task: Task, error: ShoalError | undefined): void;
}

/** `drain`: everything posted is done. `abort`: tasks that have not started are given up. */
export type ShutdownMode = 'drain' | 'abort';

const coreOptions = optionTable<CoreOptions>({
  clock: anyObject,
  creditBytes: anyNumber,
  partitionBytes: anyNumber,
  memoryBytes: anyNumber,
  timeoutMs: anyNumber,
  tasksMax: anyNumber,
  linksMax: anyNumber,
  observer: anyObject,
  arbiter: anyObject,
});
/** Tasks that an error names. */
const namedMax = 4;

/** The first of several errors. */
interface Thrown {
  readonly error: unknown;
}

interface Closing {
  readonly ended: Promise<void>;
  end(error?: ShoalError): void;
}

/** Decides when tasks start: cuts them into parts, queues these by priority, and bounds the bytes in flight of each link by a credit.
 *  Several cores of a process that share its network get one `Arbiter`. Everything happens on the thread that made the core. */
export class Core implements TaskListener {
  readonly #clock: Clock;
  readonly #memoryBytes: number;
  readonly #timeoutMs: number;
  readonly #tasksMax: number;
  readonly #linksMax: number;
  readonly #observer: CoreObserver;
  readonly #arbiter: Arbiter;
  #creditBytes: number;
  #partitionBytes: number;
  readonly #links = new Map<string, SchedulerLink>();
  /** Tasks that are posted or queued. */
  readonly #waiting = new TaskList<Task>();
  readonly #running: RunningTasks;
  #started = false;
  #closing: Closing | undefined;
  #drainTimer: Timer | undefined;
  #sequence = 0;
  #arrival = 0;
  /** Number of tasks that ended while they were in a queue, and are still in it. */
  #leftQueued = 0;

  constructor(options: CoreOptions) {
    checkFields('Core', options, coreOptions);
    this.#clock = options.clock ?? systemClock;
    this.#memoryBytes = checkPositive('Core: memoryBytes', options.memoryBytes ?? Number.MAX_SAFE_INTEGER);
    this.#creditBytes = this.#checkBytes('Core: creditBytes', options.creditBytes);
    this.#partitionBytes = this.#checkBytes('Core: partitionBytes', options.partitionBytes);
    this.#timeoutMs = checkPositive('Core: timeoutMs', options.timeoutMs ?? 300_000);
    this.#running = new RunningTasks(this.#clock, this.#timeoutMs, (task) => this.#endOverdue(task));
    this.#tasksMax = checkPositive('Core: tasksMax', options.tasksMax ?? 2 ** 20);
    this.#linksMax = checkPositive('Core: linksMax', options.linksMax ?? 4096);
    this.#observer = options.observer ?? {};
    this.#arbiter = options.arbiter ?? new Arbiter();
  }

  /** Most bytes in flight of a link without a credit of its own. */
  get creditBytes(): number {
    return this.#creditBytes;
  }

  /** Largest part of a tensor that is posted now, in bytes, on a link without a partition of its own. */
  get partitionBytes(): number {
    return this.#partitionBytes;
  }

  /** Tasks and bytes on their way to a destination. */
  statusOf(name: string): LinkStatus {
    checkArgument('statusOf: link', name, anyText);
    const link = this.#links.get(name);
    if (link === undefined) return { creditBytes: this.#creditBytes, inFlightBytes: 0, inFlight: 0, queued: 0 };
    const { creditBytes, inFlightBytes, inFlight } = link.account;
    return { creditBytes, inFlightBytes, inFlight, queued: link.queue.length };
  }

  // ── life ───────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Starts the queues: before, tasks wait in them; immediate tasks do not. */
  start(): void {
    this.#checkOpen('start');
    this.#begin();
  }

  /** Ends posting. @returns when all posted tasks have ended; tasks that run are waited for in either mode. A drain becomes an
   *  abort when it takes longer than `timeoutMs` after the last task that ran, with `timeout`, which names tasks whose tensors
   *  never became ready. Calling it again with `abort` cuts a drain short. */
  shutdown(mode: ShutdownMode): Promise<void> {
    if (mode !== 'drain' && mode !== 'abort') throw new ShoalError('usage', `shutdown: 'drain' or 'abort', not ${describeValue(mode)}`);
    if (this.#closing === undefined) {
      let end: Closing['end'] = () => undefined;
      const ended = new Promise<void>((resolve, reject) => {
        end = (error) => (error === undefined ? resolve() : reject(error));
      });
      this.#closing = { ended, end };
    }
    if (mode === 'drain') this.#begin();
    else this.#abort(new ShoalError('aborted', 'the scheduler was shut down before the task started'));
    this.#rest();
    return this.#closing.ended;
  }

  #begin(): void {
    this.#started = true;
    for (const link of this.#links.values()) this.#pump(link);
  }

  #abort(error: ShoalError): void {
    // The end of a part is the end of its siblings, so some have ended meanwhile.
    for (const task of this.#waiting.toArray()) if (task.state !== 'ended') this.#end(task, error);
  }

  // ── settings ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** Sets the credit of all links that have none of their own. Tasks in flight stay so: less credit admits nothing until enough
   *  has finished. */
  setCredit(creditBytes: number): void {
    this.#creditBytes = this.#checkBytes('setCredit', creditBytes);
    for (const link of this.#links.values()) this.#pump(link);
  }

  /** Sets the partition of tensors that are posted from now on. */
  setPartition(partitionBytes: number): void {
    this.#partitionBytes = this.#checkBytes('setPartition', partitionBytes);
  }

  /** @throws ShoalError `usage` for an order that differs from the one in which tasks were queued. */
  setLink(name: string, options: LinkOptions): void {
    checkArgument('setLink: link', name, anyText);
    checkFields('setLink', options, linkOptions);
    const { creditBytes, partitionBytes, order, resource } = options;
    if (creditBytes !== undefined) this.#checkBytes('setLink: creditBytes', creditBytes);
    if (partitionBytes !== undefined) this.#checkBytes('setLink: partitionBytes', partitionBytes);
    const known = this.#links.get(name);
    if (known !== undefined && order !== undefined && order !== known.order) {
      throw new ShoalError('usage', `setLink: link '${name}' is in use, in the order of ${known.order}; set it before its first task`);
    }
    const link = known ?? this.#addLink(name, order ?? 'priority');
    link.ownPartitionBytes = partitionBytes ?? link.ownPartitionBytes;
    link.account.resource = resource ?? link.account.resource;
    if (creditBytes === undefined) return;
    link.ownCreditBytes = creditBytes;
    this.#pump(link);
  }

  /** Removes a link to which nothing will be posted any more. Without effect while tasks of the link are queued or run. */
  removeLink(name: string): void {
    checkArgument('removeLink: link', name, anyText);
    const link = this.#links.get(name);
    if (link === undefined || link.account.inFlight > 0 || !this.#isIdle(link)) return;
    link.account[Symbol.dispose]();
    this.#links.delete(name);
  }

  #isIdle(link: SchedulerLink): boolean {
    for (let task = link.queue.peek(); task !== undefined; task = link.queue.peek()) {
      if (task.state !== 'ended') return false;
      link.queue.pop();
      this.#leftQueued--;
    }
    return true;
  }

  // ── tasks ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Cuts the task into parts and prepares them; immediate ones start at once. Its end is reported to its `onEnd`.
   *  @throws ShoalError `usage` for a task that was posted before; `closed` after `shutdown`; `out-of-memory` when `tasksMax`
   *          would be exceeded. Nothing is done then. */
  post(task: Task): void {
    this.#checkOpen('post');
    if (!(task instanceof Task)) throw new ShoalError('usage', `post: a Task, not ${describeValue(task)}`);
    if (task.state !== 'new' || task.parent !== undefined) {
      throw new ShoalError('usage', `post: ${describeTask(task)} was posted before; make a new task`);
    }
    const tasks = this.#waiting.size + this.#running.tasks.size + this.#leftQueued;
    const partitionBytes = this.#links.get(task.link)?.ownPartitionBytes ?? this.#partitionBytes;
    const count = task.countParts(partitionBytes);
    if (tasks + count > this.#tasksMax) {
      const more = `post: ${count} parts of ${describeTask(task)} on top of ${tasks} tasks are more than tasksMax = ${this.#tasksMax}`;
      throw new ShoalError('out-of-memory', `${more}; use larger partitions, or wait for some to end`);
    }
    if (count === 1) {
      this.#linkOf(task.link);
      this.#number(task, this.#sequence++, task.isImmediate);
      this.#launch(task, task.isImmediate);
    } else this.#postParts(task, task.partition(partitionBytes));
  }

  #postParts(task: Task, parts: readonly Task[]): void {
    // All links are made first, so that either all parts are posted or none.
    for (const part of parts) this.#linkOf(part.link);
    const sequence = this.#sequence++;
    for (const part of parts) this.#number(part, sequence, task.isImmediate);
    task.state = 'running';
    let thrown: Thrown | undefined;
    for (const part of parts) {
      try {
        // A failure of one part ends its siblings.
        if (part.state === 'new') this.#launch(part, task.isImmediate);
      } catch (error) {
        thrown ??= { error };
      }
    }
    if (thrown !== undefined) throw thrown.error;
  }

  #number(task: Task, sequence: number, immediate: boolean): void {
    task.sequence = sequence;
    if (!immediate) this.#waiting.add(task);
  }

  #launch(task: Task, immediate: boolean): void {
    try {
      if (immediate) {
        this.#noteStart(task);
        task.immediateDo(this);
      } else task.prepare(this);
    } catch (error) {
      this.#failed(task, error);
    }
  }

  /** Handles an error that was thrown in a task: ends the task with it. If the task has ended, the error is that of a callback of
   *  the program, and is thrown to the caller that caused the end. */
  #failed(task: Task, error: unknown): void {
    if (task.state === 'ended') throw error;
    this.onFinish(task, error ?? new Error('undefined was thrown'));
  }

  /** Called by tasks. */
  onReady(task: Task): void {
    task.state = 'queued';
    task.arrival = this.#arrival++;
    const link = this.#linkOf(task.link);
    link.queue.push(task);
    this.#observer.onQueued?.(task);
    this.#pump(link);
  }

  /** Called by tasks. */
  onFinish(task: Task, error: unknown): void {
    if (task.state === 'ended') return;
    this.#end(task, error === undefined || error === null ? undefined : namedFailure('task', describeTask(task), error));
  }

  /** Starts tasks that the credit admits. */
  #pump(link: SchedulerLink): void {
    if (!this.#started || link.isPumping) return;
    link.isPumping = true;
    let thrown: Thrown | undefined;
    for (let task = link.queue.peek(); task !== undefined; task = link.queue.peek()) {
      if (task.state === 'ended') this.#leftQueued--;
      else if (!link.account.admits(task.bytes, task.priority)) break;
      link.queue.pop();
      try {
        if (task.state !== 'ended') this.#start(link, task);
      } catch (error) {
        thrown ??= { error };
      }
    }
    if (link.queue.length === 0) link.account.withdraw();
    link.isPumping = false;
    if (thrown !== undefined) throw thrown.error;
  }

  #start(link: SchedulerLink, task: Task): void {
    this.#waiting.delete(task);
    link.account.started(task.bytes);
    this.#noteStart(task);
    try {
      task.do();
    } catch (error) {
      this.#failed(task, error);
    }
  }

  #noteStart(task: Task): void {
    this.#running.add(task);
    this.#observer.onStarted?.(task);
  }

  #end(task: Task, error: ShoalError | undefined): void {
    const { state } = task;
    if (state === 'queued') this.#leftQueued++;
    task.state = 'ended';
    task.failure = error;
    this.#waiting.delete(task);
    const hadCredit = this.#running.tasks.delete(task) && !(task.parent ?? task).isImmediate;
    const link = hadCredit ? this.#links.get(task.link) : undefined;
    link?.account.finished(task.bytes);
    try {
      if (error !== undefined) task.abandon(error);
      this.#observer.onEnded?.(task, error);
      if (task.parent === undefined) task.onEnd?.(error);
      else this.#endPart(task.parent, error);
    } finally {
      link?.account.offerRoom();
      this.#rest();
    }
  }

  #endPart(parent: Task, error: ShoalError | undefined): void {
    parent.unended--;
    if (error !== undefined && parent.failure === undefined) {
      parent.failure = error;
      // Siblings that have started are waited for: they use the tensor.
      for (const sibling of parent.children) if (sibling.state !== 'running' && sibling.state !== 'ended') this.#end(sibling, error);
    }
    if (parent.unended > 0 || parent.state === 'ended') return;
    parent.state = 'ended';
    parent.onEnd?.(parent.failure);
  }

  // ── ends that do not come by themselves ────────────────────────────────────────────────────────────────────────

  /** Ends tasks that should have finished, as the timer does: for threads that wait without their event loop. */
  endOverdue(): void {
    this.#running.endOverdue();
  }

  #endOverdue(task: Task): void {
    const message = `${describeTask(task)} did not finish within ${this.#timeoutMs} ms`;
    const next = `${task.link === '' ? '' : `link '${task.link}'; `}its credit is given back; is its peer alive?`;
    const fields = { operation: task.name, bytes: task.bytes, timeoutMs: this.#timeoutMs };
    this.#end(task, new ShoalError('timeout', `${message}: ${next}`, fields));
  }

  /** The rest of a shutdown: resolves when nothing is left, and starts the timer that ends it when nothing moves. */
  #rest(): void {
    if (this.#closing === undefined) return;
    this.#drainTimer?.cancel();
    this.#drainTimer = undefined;
    if (this.#running.tasks.size > 0) return;
    if (this.#waiting.size > 0) {
      this.#drainTimer = this.#clock.setTimer(this.#timeoutMs, this.#onDrainTimer, { keepAlive: true });
      return;
    }
    this.#running.stopTimer();
    this.#closing.end();
  }

  readonly #onDrainTimer = (): void => {
    this.#drainTimer = undefined;
    // A tensor became ready meanwhile, and its task runs.
    if (this.#running.tasks.size > 0) return;
    const names = this.#waiting.toArray().map(describeTask);
    const message = `shutdown: ${names.length} tasks did not become ready within ${this.#timeoutMs} ms: ${listed(names, namedMax)}`;
    const error = new ShoalError('timeout', message, { timeoutMs: this.#timeoutMs });
    this.#closing?.end(error);
    this.#abort(error);
  };

  // ── checks ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #linkOf(name: string): SchedulerLink {
    return this.#links.get(name) ?? this.#addLink(name, 'priority');
  }

  #addLink(name: string, order: LinkOrder): SchedulerLink {
    if (this.#links.size >= this.#linksMax) {
      throw new ShoalError('out-of-memory', `link '${name}' would be one more than linksMax = ${this.#linksMax}`);
    }
    const link = new SchedulerLink(order, (each) =>
      this.#arbiter.open({ creditBytes: () => each.ownCreditBytes ?? this.#creditBytes, onRoom: () => this.#pump(each) }),
    );
    this.#links.set(name, link);
    return link;
  }

  #checkOpen(call: string): void {
    if (this.#closing !== undefined) throw new ShoalError('closed', `${call}: the scheduler has been shut down`);
  }

  #checkBytes(role: string, bytes: number): number {
    return checkBytes(role, bytes, this.#memoryBytes);
  }
}

/** Checks a credit or a partition. @param role names it in the error: `setCredit`, `scheduled: creditBytes`. @throws ShoalError `usage`. */
export function checkBytes(role: string, bytes: number, memoryBytes: number): number {
  checkPositive(role, bytes);
  if (bytes <= memoryBytes) return bytes;
  throw new ShoalError('usage', `${role}: ${bytes} bytes are more than this machine's memory of ${memoryBytes}`);
}
