/** A world in virtual time that executes plans without their payload: every rank's channels, ports with fair sharing, a rank's
 *  time for messages and reductions, several operations in flight. Thousands of ranks in one process.
 *
 *  Differences from the cost model (plan/cost.ts), with which it agrees on a single message: ports are shared fairly instead of
 *  first come first served, a rank's channels compete for its time, and operations overlap. */
import { assert } from '../../base/assert.ts';
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
  readonly ranks: readonly SimulatedRank[];
  readonly ports: readonly Port[];
  /** Number of ranks that enter something into their mailboxes: of all, and by host. */
  #entering = 0;
  readonly #enteringOn = new Map<number, number>();
  messages = 0;
  networkBytes = 0;
  /** Hosts by rank. */
  readonly hostOf: readonly number[];
  /** Number of times that the simulated ranks are in the world. */
  readonly #tiles: number;

  constructor(workload: Workload, model: SimulationModel) {
    this.workload = workload;
    this.model = model;
    const { hosts } = workload.plan.request.topology;
    const rates = { latency: model.networkLatency, secondsPerByte: model.networkByte, quantumBytes: model.quantumBytes };
    const { portsPerHost } = model;
    this.ports = hosts.flatMap(() => Array.from({ length: portsPerHost }, () => new Port(this.queue, rates)));
    const hostOf = hostOfRanks(workload.plan.request.topology);
    this.hostOf = hostOf;
    this.#tiles = hostOf.length / workload.plan.programs.length;
    this.ranks = workload.plan.programs.map((program) => {
      const host = hostOf[program.rank];
      const indexOnHost = hosts[host].indexOf(program.rank);
      const port = this.ports[host * portsPerHost + (indexOnHost % portsPerHost)];
      return new SimulatedRank(this, program, { host, indexOnHost, port });
    });
    for (const { host, program } of this.ranks) {
      if (program.entry.length === 0) continue;
      this.#entering += 1;
      this.#enteringOn.set(host, (this.#enteringOn.get(host) ?? 0) + 1);
    }
  }

  /** Number of mailboxes that come to a rank from other hosts. */
  mailboxesFrom({ host }: SimulatedRank): number {
    return this.#entering - (this.#enteringOn.get(host) ?? 0);
  }

  run(): SimulationResult {
    for (const rank of this.ranks) rank.begin(0);
    this.queue.run();
    for (const rank of this.ranks) {
      assert(rank.ended === this.workload.operations, () => `${this.workload.plan.algorithm}: rank ${rank.program.rank} never ends`);
    }
    return {
      seconds: this.queue.now,
      events: this.queue.scheduled,
      messages: this.messages * this.#tiles,
      networkBytes: this.networkBytes * this.#tiles,
      busiestThread: this.ranks.reduce((most, rank) => Math.max(most, rank.thread.busySeconds), 0),
      busiestPort: this.ports.reduce((most, port) => Math.max(most, port.busySeconds), 0),
    };
  }
}

/** A worker that does one thing at a time, in the order of requests. */
class Worker {
  busySeconds = 0;
  #free = 0;

  /** Time at which `seconds` of work that is requested now are done. */
  use(now: number, seconds: number): number {
    this.#free = Math.max(this.#free, now) + seconds;
    this.busySeconds += seconds;
    return this.#free;
  }
}

class SimulatedRank {
  readonly simulation: Simulation;
  readonly program: Program;
  readonly host: number;
  readonly indexOnHost: number;
  readonly port: Port;
  readonly thread = new Worker();
  readonly engine: Worker;
  /** Operations that have begun, or that peers have sent to before, by number; those that have ended are undefined. */
  readonly #operations: (SimulatedOperation | undefined)[] = [];
  #begun = 0;
  ended = 0;

  constructor(simulation: Simulation, program: Program, { host, indexOnHost, port }: Pick<SimulatedRank, 'host' | 'indexOnHost' | 'port'>) {
    this.simulation = simulation;
    this.program = program;
    this.host = host;
    this.indexOnHost = indexOnHost;
    this.port = port;
    this.engine = simulation.model.engine === 'thread' ? this.thread : new Worker();
  }

  begin(now: number): void {
    const { operations, inFlight } = this.simulation.workload;
    while (this.#begun < operations && this.#begun - this.ended < inFlight) this.operation(this.#begun++).begin(now);
  }

  operation(number: number): SimulatedOperation {
    return (this.#operations[number] ??= new SimulatedOperation(this, number));
  }

  end(number: number, now: number): void {
    this.#operations[number] = undefined;
    this.ended += 1;
    this.begin(now);
  }
}

/** One operation on one rank. */
class SimulatedOperation {
  readonly rank: SimulatedRank;
  readonly number: number;
  readonly #raised: Int32Array;
  readonly #parked: { readonly channel: Actor; readonly signal: number; readonly value: number }[] = [];
  #running: number;
  /** The signal that mailboxes from other hosts raise; it comes after the program's own. */
  readonly #mailboxSignal: number;

  constructor(rank: SimulatedRank, number: number) {
    this.rank = rank;
    this.number = number;
    this.#mailboxSignal = rank.program.signalCount;
    this.#raised = new Int32Array(rank.program.signalCount + 1);
    this.#running = rank.program.channels.length;
  }

  begin(now: number): void {
    const { entry, channels } = this.rank.program;
    const { model, workload } = this.rank.simulation;
    const bytes = entry.reduce((sum, { source }) => sum + source.count, 0) * workload.elementBytes;
    const start = this.rank.engine.use(now, bytes * model.selfByte);
    if (bytes > 0) this.#sendMailbox(start, bytes);
    const awaited = this.rank.simulation.mailboxesFrom(this.rank);
    const { queue } = this.rank.simulation;
    const starter: Actor = {
      act: (time) => {
        if (!this.reached(starter, this.#mailboxSignal, awaited)) return;
        for (const [index, steps] of channels.entries()) queue.at(time, new SimulatedChannel(this, steps, index));
      },
    };
    queue.at(start, starter);
  }

  /** Sends the mailbox, which travels with the announcement to every rank of another host. */
  #sendMailbox(start: number, bytes: number): void {
    const { rank, number } = this;
    const { simulation } = rank;
    const { ranks, queue, model } = simulation;
    for (let k = 1; k < ranks.length; k++) {
      const to = ranks[(rank.program.rank + k) % ranks.length];
      if (to.host === rank.host) continue;
      simulation.messages += 1;
      simulation.networkBytes += bytes;
      const started = rank.thread.use(start, model.networkOverhead);
      const signal = to.program.signalCount;
      queue.at(started, new NetworkMessage({ sender: noSender, from: rank, to, operation: number, signal }, bytes));
    }
  }

  /** True if the signal was raised that often; if not, the channel acts again when it is. */
  reached(channel: Actor, signal: number, value: number): boolean {
    if (this.#raised[signal] >= value) return true;
    this.#parked.push({ channel, signal, value });
    return false;
  }

  raise(signal: number, now: number): void {
    const count = ++this.#raised[signal];
    for (let index = this.#parked.length - 1; index >= 0; index--) {
      const parked = this.#parked[index];
      if (parked.signal !== signal || parked.value > count) continue;
      this.#parked.splice(index, 1);
      this.rank.simulation.queue.at(now, parked.channel);
    }
  }

  channelEnded(now: number): void {
    this.#running -= 1;
    if (this.#running === 0) this.rank.end(this.number, now);
  }
}

class SimulatedChannel implements Actor, Sender {
  readonly channel: number;
  readonly #operation: SimulatedOperation;
  readonly #steps: readonly Step[];
  #pc = 0;
  #unsent = 0;
  #flushing = false;
  /** A message that the rank's thread is setting up. */
  #handing: NetworkMessage | undefined;

  constructor(operation: SimulatedOperation, steps: readonly Step[], channel: number) {
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
      if (step.kind === 'wait' && !this.#operation.reached(this, step.signal, step.value)) return;
      if (step.kind === 'flush' && this.#unsent > 0) {
        this.#flushing = true;
        return;
      }
      this.#pc += 1;
      const until = this.#perform(now, step);
      if (until > now) {
        this.#operation.rank.simulation.queue.at(until, this);
        return;
      }
    }
  }

  messageLeft(now: number): void {
    this.#unsent -= 1;
    if (this.#unsent > 0 || !this.#flushing) return;
    this.#flushing = false;
    this.#operation.rank.simulation.queue.at(now, this);
  }

  /** Time at which the next step may begin. */
  #perform(now: number, step: Step): number {
    const { rank } = this.#operation;
    const { model, workload } = rank.simulation;
    const bytes = workload.elementBytes;
    switch (step.kind) {
      case 'put':
        return this.#send(now, step.peer, { signal: step.signal, bytes: step.source.count * bytes });
      case 'signal':
        return this.#send(now, step.peer, { signal: step.signal, bytes: 0 });
      case 'copy': {
        const crosses = this.#isRemote(step.source) || this.#isRemote(step.target);
        return rank.engine.use(now, step.source.count * bytes * (crosses ? model.hostByte : model.selfByte));
      }
      case 'reduce': {
        let remote = 0;
        for (const location of step.sources) if (this.#isRemote(location)) remote += 1;
        for (const location of step.targets) if (this.#isRemote(location)) remote += 1;
        const each = step.targets[0].count * bytes;
        return rank.engine.use(now, each * (step.sources.length * model.reduceByte + remote * model.hostByte));
      }
      case 'wait':
      case 'flush':
        return now;
    }
  }

  #send(now: number, peer: number, { signal, bytes }: { readonly signal: number; readonly bytes: number }): number {
    const { rank, number } = this.#operation;
    const { simulation } = rank;
    const { model, queue } = simulation;
    const target = simulation.ranks[peer % simulation.ranks.length];
    if (simulation.hostOf[peer] === rank.host) {
      const stored = rank.engine.use(now, bytes * model.hostByte);
      queue.at(stored + model.hostLatency, { act: (time) => target.operation(number).raise(signal, time) });
      return stored;
    }
    simulation.messages += 1;
    simulation.networkBytes += bytes;
    this.#unsent += 1;
    const started = rank.thread.use(now, model.networkOverhead);
    const message = new NetworkMessage({ sender: this, from: rank, to: target, operation: number, signal }, bytes);
    // One event hands the message over and lets the channel go on.
    if (started > now) this.#handing = message;
    else queue.at(now, message);
    return started;
  }

  #isRemote({ rank }: Location): boolean {
    const { rank: own } = this.#operation;
    // Mailboxes of other hosts have come to this one, so they are not remote.
    return rank !== undefined && rank !== own.program.rank && own.simulation.hostOf[rank] === own.host;
  }
}

/** A sender that has to know when its message has left. */
interface Sender {
  /** Number of the channel in its program; 0 for announcements. */
  readonly channel: number;
  messageLeft(now: number): void;
}

/** Factor for numbers of flows: no plan has as many channels per rank. */
const channelsMax = 64;

const noSender: Sender = { channel: 0, messageLeft: () => undefined };

/** The way of a message, and the signal that it raises. */
interface Route {
  readonly sender: Sender;
  readonly from: SimulatedRank;
  readonly to: SimulatedRank;
  readonly operation: number;
  readonly signal: number;
}

/** A message: handed to the port; arrives; is taken in by the receiver's thread; raises its signal. It acts once per stage. */
class NetworkMessage implements Actor, Message {
  readonly bytes: number;
  readonly target: Port;
  next: Message | undefined;
  readonly #route: Route;
  #stage: 'send' | 'take' | 'raise' = 'send';

  constructor(route: Route, bytes: number) {
    this.bytes = bytes;
    this.target = route.to.port;
    this.#route = route;
  }

  act(now: number): void {
    const { from, to, operation, signal } = this.#route;
    const { queue, model } = to.simulation;
    switch (this.#stage) {
      case 'send':
        from.port.send(now, this.#flow(model), this);
        return;
      case 'take':
        this.#stage = 'raise';
        queue.at(to.thread.use(now, model.networkOverhead), this);
        return;
      case 'raise':
        to.operation(operation).raise(signal, now);
    }
  }

  /** Key of the message's flow; messages of one flow stay in order. */
  #flow({ flows }: SimulationModel): number {
    const { sender, from, to } = this.#route;
    const pair = from.indexOnHost * to.simulation.ranks.length + to.program.rank;
    return flows === 'pair' ? pair : pair * channelsMax + sender.channel;
  }

  left(now: number): void {
    this.#route.sender.messageLeft(now);
  }

  delivered(time: number): void {
    this.#stage = 'take';
    this.#route.to.simulation.queue.at(time, this);
  }
}
