/** Workers that train by themselves against shared parameter servers, in virtual time: every worker and every server does one thing at a
 *  time, ports share 10 Gbit/s.
 *
 *      worker  ──ids──▶ servers ──rows, weights──▶ worker: computes ──gradients──▶ servers: update ──done──▶ worker: the next step
 *
 *  The requests of one arrow between two tasks are done one after the other, at both ends. */
import { seededRandom } from '../../src/base/random.ts';
import { eventOf, EventQueue, kinds } from '../../src/tools/simulate/event-queue.ts';
import { Messages } from '../../src/tools/simulate/messages.ts';
import { Ports } from '../../src/tools/simulate/ports.ts';

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

/** The ports of all tasks in virtual time, whose events are callbacks. */
class Network {
  readonly #queue = new EventQueue();
  readonly #messages = new Messages();
  readonly #ports: Ports;
  /** Callbacks of events by number, and those of messages that are under way. */
  readonly #events = new Map<number, (now: number) => void>();
  readonly #delivered = new Map<number, (now: number) => void>();
  #count = 0;

  constructor(tasks: number) {
    const portOf = Array.from({ length: tasks }, (_, task) => task);
    const model = { networkLatency: rates.latency, networkByte: rates.secondsPerByte, quantumBytes: rates.quantumBytes };
    this.#ports = new Ports(tasks, { model, queue: this.#queue, messages: this.#messages, portOf, left: () => undefined });
  }

  get now(): number {
    return this.#queue.now;
  }

  at(time: number, callback: (now: number) => void): void {
    this.#events.set(this.#count, callback);
    this.#queue.at(time, eventOf('task', this.#count++));
  }

  /** Sends between two tasks, whose messages are one flow. */
  send(now: number, { from, to, bytes }: { from: Task; to: Task; bytes: number }, delivered: (now: number) => void): void {
    const message = this.#messages.make(bytes, [from.number, 0, from.number, to.number, 0]);
    this.#delivered.set(message, delivered);
    this.#ports.send(now, from.number, message);
  }

  run(): void {
    this.#queue.run((event, now) => {
      const subject = event >> 3;
      if ((event & 7) === kinds.quantum) return this.#ports.quantumLeft(now, subject);
      const callbacks = (event & 7) === kinds.take ? this.#delivered : this.#events;
      const callback = callbacks.get(subject);
      callbacks.delete(subject);
      if (callbacks === this.#delivered) this.#messages.free(subject);
      callback?.(now);
    });
  }
}

class Task {
  readonly thread = new Thread();
  /** Also that of its port. */
  readonly number: number;

  constructor(number: number) {
    this.number = number;
  }
}

export interface Simulated {
  /** Time of a worker from one end of a step to the next. */
  readonly stepMs: number;
  readonly busiestServer: number;
}

/** Simulates workers that train by themselves. @param steps of each, at least 2; the first does not count. */
export function simulateWorkers(workers: number, traffic: Traffic, { request, rest }: Costs, steps: number): Simulated {
  const network = new Network(traffic[0].length + workers);
  const random = seededRandom(1);
  const serverTasks = traffic[0].map((_, k) => new Task(k));
  const tensorsOfAll = traffic.flat().reduce((sum, { tensors }) => sum + tensors, 0);
  let [firstEnds, lastEnd] = [0, 0];

  for (let worker = 0; worker < workers; worker++) {
    const own = new Task(serverTasks.length + worker);
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
        if (arrow + 1 < arrows.length) network.at(computed, (next) => cross(next, arrow + 1));
        else network.at(computed, end);
      };
      traffic[arrow].forEach(({ requests, tensors, bytes }, k) => {
        if (tensors === 0) return;
        missing++;
        const server = serverTasks[k];
        const ends = { [isToServer ? 'from' : 'to']: own, [isToServer ? 'to' : 'from']: server };
        const secondsOf = (task: Task): number =>
          requests * (task === own ? request.worker : request.server) + (task === own ? 0 : (rest.server * tensors) / tensorsOfAll);
        const { from, to } = ends;
        const take = (time: number): void => network.at(to.thread.use(time, secondsOf(to)), arrived);
        network.at(from.thread.use(now, secondsOf(from)), (time) => network.send(time, { from, to, bytes }, take));
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
    network.at(random.next() * rest.worker, begin);
  }
  network.run();
  const busiestServer = Math.max(...serverTasks.map(({ thread }) => thread.busySeconds)) / network.now;
  return { stepMs: ((lastEnd - firstEnds) / (steps - 1)) * 1000, busiestServer };
}
