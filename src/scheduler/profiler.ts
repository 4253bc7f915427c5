/** Draws a core's tasks on the timeline, with ByteScheduler's names:
 *
 *      queue    │ all-reduce QUEUE │                                    from ready until its turn and the credit have come
 *      tasks                       │ all-reduce COMMUNICATION │         from before its start until its end
 *      curves   credit in flight (bytes), queue depth (tasks), of each link
 *
 *  A span is of one part; the tensor, its priority and link are details of its name. It must not know what a task does. */
import type { ShoalError } from '../base/errors.ts';
import type { LaneId, NameId, TraceRecorder } from '../trace/recorder.ts';
import type { CoreObserver } from './core.ts';
import type { Task } from './task.ts';

const category = 'schedule';

interface LinkCurves {
  readonly credit: NameId;
  readonly depth: NameId;
  inFlightBytes: number;
  queued: number;
}

interface Traced {
  queuedMs: number | undefined;
  startedMs: number | undefined;
}

export class TaskProfiler implements CoreObserver {
  readonly #trace: TraceRecorder;
  /** Lanes that are made for the first task: a process that schedules nothing has none. */
  #lanes: { readonly queue: LaneId; readonly tasks: LaneId } | undefined;
  /** Tasks that are queued or running. */
  readonly #tasks = new Map<Task, Traced>();
  readonly #links = new Map<string, LinkCurves>();

  constructor(trace: TraceRecorder) {
    this.#trace = trace;
  }

  onQueued(task: Task): void {
    this.#tasks.set(task, { queuedMs: this.#trace.now(), startedMs: undefined });
    const curves = this.#curvesOf(task);
    this.#trace.counter(curves.depth, ++curves.queued);
  }

  onStarted(task: Task): void {
    const startedMs = this.#trace.now();
    const traced = this.#tasks.get(task);
    if (traced === undefined) {
      // An immediate task was in no queue, and has no credit.
      this.#tasks.set(task, { queuedMs: undefined, startedMs });
      return;
    }
    this.#endQueue(task, traced.queuedMs);
    traced.startedMs = startedMs;
    const curves = this.#curvesOf(task);
    curves.inFlightBytes += task.bytes;
    this.#trace.counter(curves.credit, curves.inFlightBytes);
  }

  onEnded(task: Task, error: ShoalError | undefined): void {
    const traced = this.#tasks.get(task);
    if (traced === undefined) return;
    this.#tasks.delete(task);
    const { queuedMs, startedMs } = traced;
    if (startedMs === undefined) {
      this.#endQueue(task, queuedMs);
      return;
    }
    const phase = error === undefined ? 'COMMUNICATION' : `COMMUNICATION ${error.code}`;
    this.#span(task, phase, startedMs, this.#laneIds.tasks);
    if (queuedMs === undefined) return;
    const curves = this.#curvesOf(task);
    curves.inFlightBytes -= task.bytes;
    this.#trace.counter(curves.credit, curves.inFlightBytes);
  }

  #endQueue(task: Task, queuedMs = 0): void {
    this.#span(task, 'QUEUE', queuedMs, this.#laneIds.queue);
    const curves = this.#curvesOf(task);
    this.#trace.counter(curves.depth, --curves.queued);
  }

  #span({ operation, name, priority, link, parent, index, bytes }: Task, phase: string, startMs: number, lane: LaneId): void {
    const details = { tensor: parent?.name ?? name, parts: parent?.children.length ?? 1, priority, link };
    const id = this.#trace.name(`${operation} ${phase}`, { category, argument: 'part', second: 'bytes', details });
    this.#trace.complete(id, startMs, lane, index, bytes);
  }

  get #laneIds(): { readonly queue: LaneId; readonly tasks: LaneId } {
    this.#lanes ??= { queue: this.#trace.lane('scheduler queue'), tasks: this.#trace.lane('scheduler tasks') };
    return this.#lanes;
  }

  #curvesOf({ link }: Task): LinkCurves {
    const known = this.#links.get(link);
    if (known !== undefined) return known;
    const curves = {
      credit: this.#trace.name(`credit in flight (${link})`, { category, argument: 'bytes' }),
      depth: this.#trace.name(`queue depth (${link})`, { category, argument: 'tasks' }),
      inFlightBytes: 0,
      queued: 0,
    };
    this.#links.set(link, curves);
    return curves;
  }
}

/** An observer that tells all of them; undefined when there is none. */
export function observeAll(observers: readonly (CoreObserver | undefined)[]): CoreObserver | undefined {
  const told = observers.filter((observer) => observer !== undefined);
  if (told.length <= 1) return told[0];
  return {
    onQueued: (task) => told.forEach((observer) => observer.onQueued?.(task)),
    onStarted: (task) => told.forEach((observer) => observer.onStarted?.(task)),
    onEnded: (task, error) => told.forEach((observer) => observer.onEnded?.(task, error)),
  };
}
