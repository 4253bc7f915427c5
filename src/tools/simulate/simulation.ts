/** A world in virtual time that executes plans without their payload: every rank's channels, ports with fair sharing, a rank's
 *  time for messages and reductions, several operations in flight. Thousands of ranks in one process, as numbers in typed arrays: what an
 *  event needs has to come from memory, so it must be little.
 *
 *  Differences from the cost model (plan/cost.ts), with which it agrees on a single message: ports are shared fairly instead of
 *  first come first served, a rank's channels compete for its time, and operations overlap. */
import { assert, must } from '../../base/assert.ts';
import { sum } from '../../base/numbers.ts';
import type { Plan, Program } from '../../plan/ir.ts';
import { hostOfRanks } from '../../plan/topology.ts';
import { eventOf, EventQueue, kinds } from './event-queue.ts';
import * as message from './messages.ts';
import { checkModel, type SimulationModel } from './model.ts';
import { Ports } from './ports.ts';
import { none, Records } from './records.ts';
import { channelsMax, StepLog, stepKinds } from './step-log.ts';

export interface Workload {
  /** The plan that is executed `operations` times, one after the other or overlapping. */
  readonly plan: Plan;
  /** Its steps. Default: those of its programs. */
  readonly steps?: StepLog;
  readonly elementBytes: number;
  readonly operations: number;
  /** Most operations that a rank has begun and not ended. */
  readonly inFlight: number;
}

export interface SimulationResult {
  /** Time until the last rank has ended its last operation, all having begun at 0. */
  readonly seconds: number;
  readonly events: number;
  /** Number of messages between hosts. */
  readonly messages: number;
  readonly networkBytes: number;
  /** Busy seconds of the busiest rank's thread. */
  readonly busiestThread: number;
  /** Busy seconds of the busiest port going out. */
  readonly busiestPort: number;
}

/** @throws ShoalError `usage` for an impossible model. */
export function simulate(workload: Workload, model: SimulationModel): SimulationResult {
  checkModel(model);
  assert(workload.plan.onlyRank === undefined, () => 'a simulation needs the programs of all ranks');
  assert(workload.operations >= 1 && workload.inFlight >= 1, () => 'a workload has operations, and one at a time may run');
  return new Simulation({ ...workload, inFlight: Math.min(workload.inFlight, workload.operations) }, model).run();
}

/** The fields of a task, by number. A task is a channel of an operation on a rank, or the operation there, whose channels start when all
 *  mailboxes have come.
 *  - `operation`: the one that it is of; `rank`; `origin`: that of its messages.
 *  - `step`: the place of the one that it is at; `end`: that after its last, or `none` for an operation.
 *  - `handing`: a message that the rank's thread sets up for it, or `none`; `unsent`: number of those that have not left; `isFlushing`: 1
 *    while it waits for them.
 *  - `place`, `value`: the signal that it waits for, and how often that has to have been raised; `below`: the task of its rank that began
 *    to wait before.
 *  - `running`: channels of an operation that have not ended. */
const [operation, rank, origin, step, end, handing, unsent, isFlushing, place, value, below, running] = new Array(12).keys();

class Simulation {
  readonly #queue = new EventQueue();
  readonly #messages = new message.Messages();
  readonly #model: SimulationModel;
  readonly #workload: Workload;
  readonly #programs: readonly Program[];
  /** Four numbers for each step, those of a channel one after the other; and where those of each channel begin. */
  readonly #steps: Float64Array;
  readonly #starts = [0];
  /** Number of channels of each rank. */
  readonly #channels: readonly number[];
  /** The first task of each rank among those of an operation, and at the end their number. */
  readonly #firsts = [0];
  /** The host of each rank, and its port. */
  readonly #hostOf: readonly number[];
  readonly #portOf: number[] = [];
  readonly #ports: Ports;
  /** The place of each rank's first signal among the signals of all ranks; the last entry is their number. */
  readonly #signalsOf = [0];
  /** Number of mailboxes that come from other hosts, by host. */
  readonly #mailboxesTo: readonly number[];
  /** The ranks' threads for messages, as workers of `use`. */
  readonly #threads: Float64Array;
  /** The ranks' engines for copies and reductions, as workers of `use`: their threads again, or workers of their own. */
  readonly #engines: Float64Array;
  /** Number of operations that have ended, by rank. */
  readonly #ended: number[];
  /** Tasks by operation in flight and by rank: the operation there, then its channels. */
  readonly #tasks = new Records(12);
  /** Signals by operation; those of operations that have ended everywhere are undefined. */
  readonly #signals: (Signals | undefined)[] = [];
  #messageCount = 0;
  #networkBytes = 0;

  constructor(workload: Workload, model: SimulationModel) {
    this.#workload = workload;
    this.#model = model;
    const { plan, inFlight, steps = logOf(workload, model) } = workload;
    const { programs, request } = plan;
    const { hosts } = request.topology;
    this.#programs = programs;
    this.#hostOf = hostOfRanks(request.topology);
    for (const program of programs) this.#signalsOf.push(this.#signalsOf[program.rank] + program.signalCount + 1);
    this.#channels = steps.channels;
    for (const [at, { length }] of steps.steps.entries()) this.#starts.push(this.#starts[at] + length);
    this.#steps = new Float64Array(this.#starts[steps.steps.length]);
    for (const [at, list] of steps.steps.entries()) this.#steps.set(list, this.#starts[at]);
    for (const [each, count] of steps.channels.entries()) this.#firsts.push(this.#firsts[each] + 1 + count);
    this.#threads = new Float64Array(2 * programs.length);
    this.#engines = model.engine === 'thread' ? this.#threads : new Float64Array(2 * programs.length);
    this.#ended = programs.map(() => 0);
    for (let task = inFlight * this.#firsts[programs.length]; task > 0; task--) this.#tasks.add();
    const entering = hosts.map((ranks) => ranks.filter((each) => (programs.at(each)?.entry.length ?? 0) > 0).length);
    this.#mailboxesTo = entering.map((count) => sum(entering) - count);
    for (const [host, ranks] of hosts.entries())
      for (const [index, each] of ranks.entries()) this.#portOf[each] = host * model.portsPerHost + (index % model.portsPerHost);
    const world = { model, queue: this.#queue, messages: this.#messages, portOf: this.#portOf };
    this.#ports = new Ports(hosts.length * model.portsPerHost, { ...world, left: (sent, now) => this.#left(sent, now) });
  }

  run(): SimulationResult {
    const { plan, operations, inFlight } = this.#workload;
    const taskCount = this.#firsts[this.#programs.length];
    for (const program of this.#programs)
      for (let number = 0; number < inFlight; number++)
        this.#begin(number * taskCount + this.#firsts[program.rank], number, program.rank, 0);
    this.#queue.run((event, now) => this.#happen(event, now));
    for (const [each, ended] of this.#ended.entries()) assert(ended === operations, () => `${plan.algorithm}: rank ${each} never ends`);
    /** Number of times that the simulated ranks are in the world. */
    const tiles = this.#hostOf.length / this.#programs.length;
    return {
      seconds: this.#queue.now,
      events: this.#queue.scheduled,
      messages: this.#messageCount * tiles,
      networkBytes: this.#networkBytes * tiles,
      busiestThread: this.#threads.reduce((most, seconds, index) => (index % 2 === 1 ? Math.max(most, seconds) : most), 0),
      busiestPort: this.#ports.busiestSeconds,
    };
  }

  #happen(event: number, now: number): void {
    const subject = event >> 3;
    switch (event & 7) {
      case kinds.task:
        if (this.#tasks.get(subject, end) === none) this.#startChannels(subject, now);
        else this.#runChannel(subject, now);
        return;
      case kinds.send:
        this.#hand(subject, now);
        return;
      case kinds.take: {
        const taken = use(this.#threads, this.#messages.get(subject, message.target), now, this.#model.networkOverhead);
        this.#queue.at(taken, eventOf('raise', subject));
        return;
      }
      case kinds.raise:
        this.#raise(subject, now);
        this.#messages.free(subject);
        return;
      default:
        this.#ports.quantumLeft(now, subject);
    }
  }

  // ── operations ──────────────────────────────────────────────────────────────────────────────────────────────────

  /** Begins an operation on a rank. @param own its task there. */
  #begin(own: number, number: number, of: number, now: number): void {
    const { entry } = this.#programs[of];
    this.#signals[number] ??= new Signals(this.#signalsOf, this.#programs.length);
    this.#tasks.fill(own, [number, of, of * channelsMax, 0, none, none], 0);
    for (let channel = 0; channel < this.#channels[of]; channel++) {
      const at = of * channelsMax + channel;
      const from = this.#model.flows === 'pair' ? of * channelsMax : at;
      this.#tasks.fill(own + 1 + channel, [number, of, from, this.#starts[at], this.#starts[at + 1], none], 0);
    }
    const bytes = entry.reduce((all, { source }) => all + source.count, 0) * this.#workload.elementBytes;
    const start = use(this.#engines, of, now, bytes * this.#model.selfByte);
    if (bytes > 0) this.#sendMailbox(own, start, bytes);
    this.#queue.at(start, eventOf('task', own));
  }

  /** Sends the mailbox, which travels with the announcement to every rank of another host. */
  #sendMailbox(own: number, start: number, bytes: number): void {
    const [programs, from] = [this.#programs, this.#tasks.get(own, rank)];
    for (let k = 1; k < programs.length; k++) {
      const to = programs[(from + k) % programs.length];
      if (this.#hostOf[to.rank] === this.#hostOf[from]) continue;
      const sent = this.#message(own, to.rank, this.#signalsOf[to.rank] + to.signalCount, bytes);
      this.#queue.at(this.#setUp(from, bytes, start), eventOf('send', sent));
    }
  }

  /** Starts the operation's channels when all mailboxes have come. */
  #startChannels(own: number, now: number): void {
    const of = this.#tasks.get(own, rank);
    // The signal that mailboxes from other hosts raise comes after the program's own.
    const mailboxes = this.#signalsOf[of] + this.#programs[of].signalCount;
    if (!this.#isReached(own, mailboxes, this.#mailboxesTo[this.#hostOf[of]])) return;
    this.#tasks.set(own, running, this.#channels[of]);
    for (let channel = 1; channel <= this.#channels[of]; channel++) this.#queue.at(now, eventOf('task', own + channel));
  }

  #channelEnded(channel: number, now: number): void {
    const { operations, inFlight } = this.#workload;
    const [number, of] = [this.#tasks.get(channel, operation), this.#tasks.get(channel, rank)];
    const own = channel - (channel % this.#firsts[this.#programs.length]) + this.#firsts[of];
    this.#tasks.set(own, running, this.#tasks.get(own, running) - 1);
    if (this.#tasks.get(own, running) > 0) return;
    const signals = this.#signalsFor(number);
    signals.ranks -= 1;
    if (signals.ranks === 0) this.#signals[number] = undefined;
    const next = this.#ended[of]++ + inFlight;
    if (next < operations) this.#begin(own, next, of, now);
  }

  // ── channels ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Runs until a step takes time or has to wait. */
  #runChannel(channel: number, now: number): void {
    const tasks = this.#tasks;
    const handed = tasks.get(channel, handing);
    tasks.set(channel, handing, none);
    if (handed !== none) this.#hand(handed, now);
    for (let at = tasks.get(channel, step); at < tasks.get(channel, end); at += 4) {
      const until = this.#perform(channel, at, now);
      tasks.set(channel, step, until === undefined ? at : at + 4);
      if (until === undefined) return;
      if (until > now) {
        this.#queue.at(until, eventOf('task', channel));
        return;
      }
    }
    this.#channelEnded(channel, now);
  }

  /** Time at which the next step may begin; undefined: not yet, the channel goes on later. */
  #perform(channel: number, at: number, now: number): number | undefined {
    const of = this.#tasks.get(channel, rank);
    const steps = this.#steps;
    const [kind, to, amount] = [steps[at], steps[at + 1], steps[at + 3]];
    const signal = this.#signalsOf[to] + steps[at + 2];
    switch (kind) {
      case stepKinds.send:
        return this.#send(channel, this.#message(channel, to, signal, amount), now);
      case stepKinds.store: {
        const stored = use(this.#engines, of, now, amount);
        this.#queue.at(stored + this.#model.hostLatency, eventOf('raise', this.#message(channel, to, signal, 0)));
        return stored;
      }
      case stepKinds.work:
        return use(this.#engines, of, now, amount);
      case stepKinds.wait:
        return this.#isReached(channel, signal, amount) ? now : undefined;
      default:
        this.#tasks.set(channel, isFlushing, this.#tasks.get(channel, unsent) > 0 ? 1 : 0);
        return this.#tasks.get(channel, isFlushing) === 1 ? undefined : now;
    }
  }

  #send(channel: number, sent: number, now: number): number {
    this.#tasks.set(channel, unsent, this.#tasks.get(channel, unsent) + 1);
    const started = this.#setUp(this.#tasks.get(channel, rank), this.#messages.bytes[sent], now);
    // One event hands the message over and lets the channel go on.
    if (started > now) this.#tasks.set(channel, handing, sent);
    else this.#queue.at(now, eventOf('send', sent));
    return started;
  }

  // ── messages and signals ────────────────────────────────────────────────────────────────────────────────────────

  /** @param at the place of the signal that it raises. */
  #message(from: number, target: number, at: number, bytes: number): number {
    return this.#messages.make(bytes, [from, this.#tasks.get(from, operation), this.#tasks.get(from, origin), target, at]);
  }

  /** @returns the time at which the source's thread has set up a message to another host. */
  #setUp(source: number, bytes: number, now: number): number {
    this.#messageCount += 1;
    this.#networkBytes += bytes;
    return use(this.#threads, source, now, this.#model.networkOverhead);
  }

  #hand(sent: number, now: number): void {
    this.#ports.send(now, this.#portOf[this.#tasks.get(this.#messages.get(sent, message.task), rank)], sent);
  }

  #left(sent: number, now: number): void {
    const tasks = this.#tasks;
    const from = this.#messages.get(sent, message.task);
    // Another operation may have begun there.
    if (tasks.get(from, operation) !== this.#messages.get(sent, message.operation)) return;
    tasks.set(from, unsent, tasks.get(from, unsent) - 1);
    if (tasks.get(from, unsent) > 0 || tasks.get(from, isFlushing) === 0) return;
    tasks.set(from, isFlushing, 0);
    this.#queue.at(now, eventOf('task', from));
  }

  /** True if the signal at the place was raised that often; if not, the task goes on when it is. */
  #isReached(waiting: number, at: number, times: number): boolean {
    const tasks = this.#tasks;
    const { counts, waiters } = this.#signalsFor(tasks.get(waiting, operation));
    if (counts[2 * at] >= times) return true;
    const of = tasks.get(waiting, rank);
    counts[2 * at + 1] += 1;
    tasks.set(waiting, place, at);
    tasks.set(waiting, value, times);
    tasks.set(waiting, below, waiters[of]);
    waiters[of] = waiting;
    return false;
  }

  /** Raises the signal of a message that has come. */
  #raise(come: number, now: number): void {
    const tasks = this.#tasks;
    const [of, at] = [this.#messages.get(come, message.target), this.#messages.get(come, message.place)];
    const { counts, waiters } = this.#signalsFor(this.#messages.get(come, message.operation));
    const count = ++counts[2 * at];
    if (counts[2 * at + 1] === 0) return;
    let above = none;
    for (let waiting = waiters[of]; waiting !== none; waiting = tasks.get(waiting, below)) {
      if (tasks.get(waiting, place) !== at || tasks.get(waiting, value) > count) {
        above = waiting;
        continue;
      }
      counts[2 * at + 1] -= 1;
      if (above === none) waiters[of] = tasks.get(waiting, below);
      else tasks.set(above, below, tasks.get(waiting, below));
      this.#queue.at(now, eventOf('task', waiting));
    }
  }

  #signalsFor(number: number): Signals {
    return must(this.#signals[number], () => `operation ${number} has not ended`);
  }
}

/** The signals of one operation, of all ranks. Every raise is waited for before the operation ends. */
class Signals {
  /** Two numbers for each signal, by its place: how often it was raised, and how many wait for it. */
  readonly counts: Int32Array;
  /** The list of each rank's waiting tasks: the last one that began to wait, which knows the one before. */
  readonly waiters: Int32Array;
  /** Number of ranks on which the operation has not ended. */
  ranks: number;

  constructor(signalsOf: readonly number[], ranks: number) {
    this.counts = new Int32Array(2 * signalsOf[ranks]);
    this.waiters = new Int32Array(ranks).fill(none);
    this.ranks = ranks;
  }
}

/** The steps of the plan's programs. */
function logOf({ plan, elementBytes }: Workload, model: SimulationModel): StepLog {
  const log = new StepLog(plan.request.topology, plan.programs.length, model, elementBytes);
  for (const { rank, channels } of plan.programs)
    for (const [channel, steps] of channels.entries()) for (const each of steps) log.add(rank, channel, each);
  return log;
}

/** Lets one of the workers do `seconds` of work that is requested now. They do one thing at a time, in the order of requests.
 *  @param workers two numbers for each worker: the time at which it is free, and its busy seconds.
 *  @returns the time at which the work is done. */
function use(workers: Float64Array, worker: number, now: number, seconds: number): number {
  workers[2 * worker + 1] += seconds;
  return (workers[2 * worker] = Math.max(workers[2 * worker], now) + seconds);
}
