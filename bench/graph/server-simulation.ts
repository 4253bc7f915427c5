/** Workers that train by themselves against shared parameter servers, in virtual time: every worker and every server does one thing at a
 *  time, ports share 10 Gbit/s.
 *
 *      worker  ──ids──▶ servers ──rows, weights──▶ worker: computes ──gradients──▶ servers: update ──done──▶ worker: the next step
 *
 *  The requests of one arrow between two tasks are done one after the other, at both ends. */
import { seededRandom } from '../../src/base/random.ts';
import { EventQueue } from '../../src/tools/simulate/event-queue.ts';
import { Port } from './port.ts';

/** Traffic between the worker and one server in one arrow. */
export interface Crossing {
  requests: number;
  tensors: number;
  bytes: number;
}

/** Traffic by arrow, then by server. */
export type Traffic = readonly (readonly Crossing[])[];

export interface Costs {
  /** CPU seconds of a request, at each end. */
  readonly request: { readonly worker: number; readonly server: number };
  /** CPU seconds of everything else in a step. */
  readonly rest: { readonly worker: number; readonly server: number };
}

export const arrows = ['ids', 'rows', 'gradients', 'done'] as const;
export const rates = { latency: 50e-6, secondsPerByte: 8 / 10e9, quantumBytes: 64 * 1024 };

/** A thread that does one thing at a time, in the order of requests. */
class Thread {
  busySeconds = 0;
  #free = 0;

  use(now: number, seconds: number): number {
    this.#free = Math.max(this.#free, now) + seconds;
    this.busySeconds += seconds;
    return this.#free;
  }
}

/** Events are callbacks. */
export class Callbacks {
  readonly #queue = new EventQueue();
  readonly #callbacks = new Map<number, (now: number) => void>();
  #count = 0;

  get now(): number {
    return this.#queue.now;
  }

  at(time: number, callback: (now: number) => void): void {
    this.#callbacks.set(this.#count, callback);
    this.#queue.at(time, this.#count++);
  }

  run(): void {
    this.#queue.run((event, now) => {
      const callback = this.#callbacks.get(event);
      this.#callbacks.delete(event);
      callback?.(now);
    });
  }
}

class Task {
  readonly thread = new Thread();
  readonly port: Port;

  constructor(queue: Callbacks) {
    this.port = new Port(queue, rates);
  }
}

export interface Simulated {
  /** Time of a worker from one end of a step to the next. */
  readonly stepMs: number;
  readonly busiestServer: number;
}

/** Simulates workers that train by themselves. @param steps of each, at least 2; the first does not count. */
export function simulateWorkers(workers: number, traffic: Traffic, { request, rest }: Costs, steps: number): Simulated {
  const queue = new Callbacks();
  const random = seededRandom(1);
  const serverTasks = traffic[0].map(() => new Task(queue));
  const tensorsOfAll = traffic.flat().reduce((sum, { tensors }) => sum + tensors, 0);
  let [firstEnds, lastEnd] = [0, 0];

  for (let worker = 0; worker < workers; worker++) {
    const own = new Task(queue);
    let step = 0;
    const begin = (now: number): void => {
      if (step++ < steps) cross(now, 0);
    };
    const cross = (now: number, arrow: number): void => {
      const isToServer = arrows[arrow] === 'ids' || arrows[arrow] === 'gradients';
      let missing = 0;
      const arrived = (time: number): void => {
        if (--missing > 0) return;
        const computed = arrows[arrow] === 'rows' ? own.thread.use(time, rest.worker) : time;
        if (arrow + 1 < arrows.length) queue.at(computed, (next) => cross(next, arrow + 1));
        else queue.at(computed, end);
      };
      traffic[arrow].forEach(({ requests, tensors, bytes }, k) => {
        if (tensors === 0) return;
        missing++;
        const server = serverTasks[k];
        const ends = { [isToServer ? 'from' : 'to']: own, [isToServer ? 'to' : 'from']: server };
        const secondsOf = (task: Task): number =>
          requests * (task === own ? request.worker : request.server) + (task === own ? 0 : (rest.server * tensors) / tensorsOfAll);
        const { from, to } = ends;
        const take = (time: number): void => queue.at(time, (at) => queue.at(to.thread.use(at, secondsOf(to)), arrived));
        // A flow is all traffic between the two.
        const message = { flow: isToServer ? k : worker, remaining: bytes, target: to.port, left: () => undefined, delivered: take };
        queue.at(from.thread.use(now, secondsOf(from)), (time) => from.port.send(time, message));
      });
      if (missing === 0) {
        missing = 1;
        arrived(now);
      }
    };
    const end = (now: number): void => {
      if (step === 1) firstEnds += now / workers;
      lastEnd += step === steps ? now / workers : 0;
      begin(now);
    };
    // Workers do not begin all at once.
    queue.at(random.next() * rest.worker, begin);
  }
  queue.run();
  const busiestServer = Math.max(...serverTasks.map(({ thread }) => thread.busySeconds)) / queue.now;
  return { stepMs: ((lastEnd - firstEnds) / (steps - 1)) * 1000, busiestServer };
}
