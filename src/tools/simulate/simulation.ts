/** A world in virtual time that executes plans without their payload: every rank's channels, ports with fair sharing, a rank's
 *  time for messages and reductions, several operations in flight. Thousands of ranks in one process.
 *
 *  Differences from the cost model (plan/cost.ts), with which it agrees on a single message: ports are shared fairly instead of
 *  first come first served, a rank's channels compete for its time, and operations overlap. */
import { assert } from '../../base/assert.ts';
import { sum } from '../../base/numbers.ts';
import type { Location, Plan, Program, Step } from '../../plan/ir.ts';
import { hostOfRanks } from '../../plan/topology.ts';
import { EventQueue, type Actor } from './event-queue.ts';
import { checkModel, type SimulationModel } from './model.ts';
import { Port, type Message } from './port.ts';

export interface Workload {
  /** The plan that is executed `operations` times, one after the other or overlapping. */
  readonly plan: Plan;
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
  return new Simulation(workload, model).run();
}

class Simulation {
  readonly queue = new EventQueue();
  readonly model: SimulationModel;
  readonly workload: Workload;
  readonly programs: readonly Program[];
  /** The host of each rank. */
  readonly hostOf: readonly number[];
  /** The port of each rank. */
  readonly portOf: Port[] = [];
  /** The place of each rank's first signal among the signals of all ranks; the last entry is their number. */
  readonly signalsOf = [0];
  /** Number of mailboxes that come from other hosts, by host. */
  readonly mailboxesTo: readonly number[];
  readonly #ports: readonly Port[];
  /** The ranks' threads for messages, as workers of `use`. */
  readonly threads: Float64Array;
  /** The ranks' engines for copies and reductions, as workers of `use`: their threads again, or workers of their own. */
  readonly engines: Float64Array;
  /** Number of operations that have ended, by rank. */
  readonly #ended: number[];
  /** Signals by operation; those of operations that have ended everywhere are undefined. */
  readonly #signals: (Signals | undefined)[] = [];
  /** Messages that serve again, linked by `next`: a large world has too many under way for caches. */
  spare: NetworkMessage | undefined;
  messages = 0;
  networkBytes = 0;

  constructor(workload: Workload, model: SimulationModel) {
    this.workload = workload;
    this.model = model;
    const { programs, request } = workload.plan;
    const { hosts } = request.topology;
    const rates = { latency: model.networkLatency, secondsPerByte: model.networkByte, quantumBytes: model.quantumBytes };
    this.#ports = Array.from({ length: hosts.length * model.portsPerHost }, () => new Port(this.queue, rates));
    for (const [host, ranks] of hosts.entries())
      for (const [index, rank] of ranks.entries())
        this.portOf[rank] = this.#ports[host * model.portsPerHost + (index % model.portsPerHost)];
    this.hostOf = hostOfRanks(request.topology);
    this.programs = programs;
    this.threads = new Float64Array(2 * programs.length);
    this.engines = model.engine === 'thread' ? this.threads : new Float64Array(2 * programs.length);
    this.#ended = programs.map(() => 0);
    for (const { rank, signalCount } of programs) this.signalsOf.push(this.signalsOf[rank] + signalCount + 1);
    const entering = hosts.map((ranks) => ranks.filter((rank) => (programs.at(rank)?.entry.length ?? 0) > 0).length);
    this.mailboxesTo = entering.map((count) => sum(entering) - count);
  }

  /** A message that raises a signal of a rank. */
  message(signals: Signals, rank: number, signal: number): NetworkMessage {
    const message = this.spare ?? new NetworkMessage(this, signals);
    this.spare = message.next;
    message.next = undefined;
    message.signals = signals;
    message.rank = rank;
    message.place = this.signalsOf[rank] + signal;
    return message;
  }

  run(): SimulationResult {
    const { plan, operations, inFlight } = this.workload;
    for (const { rank } of this.programs)
      for (let operation = 0; operation < Math.min(inFlight, operations); operation++) this.#begin(rank, operation, 0);
    this.queue.run();
    for (const [rank, ended] of this.#ended.entries()) assert(ended === operations, () => `${plan.algorithm}: rank ${rank} never ends`);
    /** Number of times that the simulated ranks are in the world. */
    const tiles = this.hostOf.length / this.programs.length;
    return {
      seconds: this.queue.now,
      events: this.queue.scheduled,
      messages: this.messages * tiles,
      networkBytes: this.networkBytes * tiles,
      busiestThread: busiest(this.threads),
      busiestPort: this.#ports.reduce((most, port) => Math.max(most, port.busySeconds), 0),
    };
  }

  #begin(rank: number, operation: number, now: number): void {
    new SimulatedOperation(this, rank, (this.#signals[operation] ??= new Signals(this, operation))).begin(now);
  }

  end(rank: number, signals: Signals, now: number): void {
    const { operations, inFlight } = this.workload;
    signals.running -= 1;
    if (signals.running === 0) this.#signals[signals.operation] = undefined;
    const next = this.#ended[rank]++ + inFlight;
    if (next < operations) this.#begin(rank, next, now);
  }
}

/** Lets one of the workers do `seconds` of work that is requested now. They do one thing at a time, in the order of requests.
 *  @param workers two numbers for each worker: the time at which it is free, and its busy seconds.
 *  @returns the time at which the work is done. */
function use(workers: Float64Array, worker: number, now: number, seconds: number): number {
  workers[2 * worker + 1] += seconds;
  return (workers[2 * worker] = Math.max(workers[2 * worker], now) + seconds);
}

/** Busy seconds of the busiest worker. */
function busiest(workers: Float64Array): number {
  return workers.reduce((most, seconds, place) => (place % 2 === 1 ? Math.max(most, seconds) : most), 0);
}

/** Something of a rank that waits for a signal, and acts again when it has the value. */
abstract class Waiter implements Actor {
  readonly simulation: Simulation;
  readonly rank: number;
  readonly signals: Signals;
  place = 0;
  value = 0;
  /** The one of its rank that began to wait before. */
  below: Waiter | undefined;

  constructor(simulation: Simulation, rank: number, signals: Signals) {
    this.simulation = simulation;
    this.rank = rank;
    this.signals = signals;
  }

  abstract act(now: number): void;
}

/** The signals of one operation, of all ranks. Every raise is waited for before the operation ends. */
class Signals {
  readonly operation: number;
  /** Two numbers for each signal, by its place: how often it was raised, and how many wait for it. */
  readonly #counts: Int32Array;
  /** The list of each rank's waiters: the last one that began to wait, which knows the one before. */
  readonly #waiters: (Waiter | undefined)[];
  /** Number of ranks on which the operation has not ended. */
  running: number;

  constructor({ programs, signalsOf }: Simulation, operation: number) {
    this.operation = operation;
    this.#counts = new Int32Array(2 * signalsOf[programs.length]);
    this.#waiters = programs.map(() => undefined);
    this.running = programs.length;
  }

  /** True if the signal was raised that often; if not, the waiter acts again when it is. */
  reached(waiter: Waiter, signal: number, value: number): boolean {
    const place = waiter.simulation.signalsOf[waiter.rank] + signal;
    if (this.#counts[2 * place] >= value) return true;
    this.#counts[2 * place + 1] += 1;
    waiter.place = place;
    waiter.value = value;
    waiter.below = this.#waiters[waiter.rank];
    this.#waiters[waiter.rank] = waiter;
    return false;
  }

  raise(rank: number, place: number, now: number): void {
    const count = ++this.#counts[2 * place];
    if (this.#counts[2 * place + 1] === 0) return;
    let above: Waiter | undefined;
    for (let waiter = this.#waiters[rank]; waiter !== undefined; waiter = waiter.below) {
      if (waiter.place !== place || waiter.value > count) {
        above = waiter;
        continue;
      }
      this.#counts[2 * place + 1] -= 1;
      if (above === undefined) this.#waiters[rank] = waiter.below;
      else above.below = waiter.below;
      waiter.simulation.queue.at(now, waiter);
    }
  }
}

/** One operation on one rank. It starts its channels when all mailboxes have come. */
class SimulatedOperation extends Waiter {
  #running = 0;

  begin(now: number): void {
    const { model, workload, programs, engines, queue } = this.simulation;
    const bytes = programs[this.rank].entry.reduce((sum, { source }) => sum + source.count, 0) * workload.elementBytes;
    const start = use(engines, this.rank, now, bytes * model.selfByte);
    if (bytes > 0) this.#sendMailbox(start, bytes);
    queue.at(start, this);
  }

  act(now: number): void {
    const { programs, queue, hostOf, mailboxesTo } = this.simulation;
    const { channels, signalCount } = programs[this.rank];
    // The signal that mailboxes from other hosts raise comes after the program's own.
    if (!this.signals.reached(this, signalCount, mailboxesTo[hostOf[this.rank]])) return;
    this.#running = channels.length;
    for (const [index, steps] of channels.entries()) queue.at(now, new SimulatedChannel(this, steps, index));
  }

  /** Sends the mailbox, which travels with the announcement to every rank of another host. */
  #sendMailbox(start: number, bytes: number): void {
    const { simulation, rank } = this;
    const { programs, queue, hostOf } = simulation;
    for (let k = 1; k < programs.length; k++) {
      const to = programs[(rank + k) % programs.length];
      if (hostOf[to.rank] === hostOf[rank]) continue;
      const message = simulation.message(this.signals, to.rank, to.signalCount);
      queue.at(message.address(rank, bytes, start), message);
    }
  }

  channelEnded(now: number): void {
    this.#running -= 1;
    if (this.#running === 0) this.simulation.end(this.rank, this.signals, now);
  }
}

class SimulatedChannel extends Waiter {
  /** Number of the channel in its program. */
  readonly channel: number;
  readonly #operation: SimulatedOperation;
  readonly #steps: readonly Step[];
  #pc = 0;
  #unsent = 0;
  #flushing = false;
  /** A message that the rank's thread is setting up. */
  #handing: NetworkMessage | undefined;

  constructor(operation: SimulatedOperation, steps: readonly Step[], channel: number) {
    super(operation.simulation, operation.rank, operation.signals);
    this.channel = channel;
    this.#operation = operation;
    this.#steps = steps;
  }

  /** Runs until a step takes time or has to wait. */
  act(now: number): void {
    const handed = this.#handing;
    this.#handing = undefined;
    handed?.act(now);
    for (;;) {
      if (this.#pc === this.#steps.length) {
        this.#pc += 1;
        this.#operation.channelEnded(now);
        return;
      }
      const step = this.#steps[this.#pc];
      if (step.kind === 'wait' && !this.signals.reached(this, step.signal, step.value)) return;
      if (step.kind === 'flush' && this.#unsent > 0) {
        this.#flushing = true;
        return;
      }
      this.#pc += 1;
      const until = this.#perform(now, step);
      if (until > now) {
        this.simulation.queue.at(until, this);
        return;
      }
    }
  }

  messageLeft(now: number): void {
    this.#unsent -= 1;
    if (this.#unsent > 0 || !this.#flushing) return;
    this.#flushing = false;
    this.simulation.queue.at(now, this);
  }

  /** Time at which the next step may begin. */
  #perform(now: number, step: Step): number {
    const { model, workload, engines } = this.simulation;
    const bytes = workload.elementBytes;
    switch (step.kind) {
      case 'put':
        return this.#send(now, step, step.source.count * bytes);
      case 'signal':
        return this.#send(now, step, 0);
      case 'copy': {
        const crosses = this.#isRemote(step.source) || this.#isRemote(step.target);
        return use(engines, this.rank, now, step.source.count * bytes * (crosses ? model.hostByte : model.selfByte));
      }
      case 'reduce': {
        let remote = 0;
        for (const location of step.sources) if (this.#isRemote(location)) remote += 1;
        for (const location of step.targets) if (this.#isRemote(location)) remote += 1;
        const each = step.targets[0].count * bytes;
        return use(engines, this.rank, now, each * (step.sources.length * model.reduceByte + remote * model.hostByte));
      }
      case 'wait':
      case 'flush':
        return now;
    }
  }

  #send(now: number, { peer, signal }: { readonly peer: number; readonly signal: number }, bytes: number): number {
    const { model, queue, hostOf, engines, programs } = this.simulation;
    const message = this.simulation.message(this.signals, peer % programs.length, signal);
    if (hostOf[peer] === hostOf[this.rank]) {
      const stored = use(engines, this.rank, now, bytes * model.hostByte);
      message.stage = 'raise';
      queue.at(stored + model.hostLatency, message);
      return stored;
    }
    this.#unsent += 1;
    const started = message.address(this.rank, bytes, now, this);
    // One event hands the message over and lets the channel go on.
    if (started > now) this.#handing = message;
    else queue.at(now, message);
    return started;
  }

  #isRemote({ rank }: Location): boolean {
    const { hostOf } = this.simulation;
    // Mailboxes of other hosts have come to this one, so they are not remote.
    return rank !== undefined && rank !== this.rank && hostOf[rank] === hostOf[this.rank];
  }
}

/** Factor for numbers of flows: no plan has as many channels per rank. */
const channelsMax = 64;

/** A message: handed to the port; arrives; is taken in by the receiver's thread; raises its signal. It acts once per stage. On the same
 *  host there is only the last one. */
class NetworkMessage implements Actor, Message {
  readonly #simulation: Simulation;
  stage: 'send' | 'take' | 'raise' = 'send';
  signals: Signals;
  /** Rank whose signal it raises, and that signal's place. */
  rank = 0;
  place = 0;
  /** Channel that has to know when the message has left. */
  #sender: SimulatedChannel | undefined;
  #source: Port;
  target: Port;
  flow = 0;
  remaining = 0;
  next: NetworkMessage | undefined;
  last: Message | undefined;
  nextFlow: Message | undefined;

  constructor(simulation: Simulation, signals: Signals) {
    this.#simulation = simulation;
    this.signals = signals;
    this.#source = this.target = simulation.portOf[0];
  }

  /** Gives the message its way to another host. @returns the time at which the source's thread has set it up. */
  address(source: number, bytes: number, now: number, sender?: SimulatedChannel): number {
    const { portOf, threads, model } = this.#simulation;
    this.#simulation.messages += 1;
    this.#simulation.networkBytes += bytes;
    this.stage = 'send';
    this.#sender = sender;
    this.#source = portOf[source];
    this.target = portOf[this.rank];
    this.remaining = bytes;
    const pair = source * portOf.length + this.rank;
    this.flow = model.flows === 'pair' ? pair : pair * channelsMax + (sender?.channel ?? 0);
    return use(threads, source, now, model.networkOverhead);
  }

  act(now: number): void {
    const { queue, threads, model } = this.#simulation;
    switch (this.stage) {
      case 'send':
        this.#source.send(now, this);
        return;
      case 'take':
        this.stage = 'raise';
        queue.at(use(threads, this.rank, now, model.networkOverhead), this);
        return;
      case 'raise':
        this.signals.raise(this.rank, this.place, now);
        // Nothing knows the message any more.
        this.next = this.#simulation.spare;
        this.#simulation.spare = this;
    }
  }

  left(now: number): void {
    this.#sender?.messageLeft(now);
  }

  delivered(time: number): void {
    this.stage = 'take';
    this.#simulation.queue.at(time, this);
  }
}
