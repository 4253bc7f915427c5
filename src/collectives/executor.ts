/** The executor: runs one rank's lowered program over bound memory. It advances every channel as far as it goes, hands network
 *  steps to the links, and stops when all channels wait; its owner calls again when something has arrived.
 *
 *      run() ─▶ channel 0: machine ─▶ call → link.write … ─▶ machine ─▶ waiting
 *               channel 1: machine ─▶ done                                         ─▶ 'waiting' | 'done' | throws
 *
 *  It must not know algorithms, collectives, groups or which provider a link uses. */
import { assert } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import type { RemoteSpan, Span } from '../fabric/fabric.ts';
import type { MachineState, Segments, StepMachine } from '../memory/step-machine.ts';
import type { BufferName } from '../plan/ir.ts';
import type { Lowered, NetworkCall, SegmentName } from './lower.ts';

/** The memory and links that one operation's program runs on. Implemented by the group. */
export interface ExecutionContext {
  /** Memory behind a segment. Views stay valid until the operation is done. */
  view(segment: SegmentName): Uint8Array;
  /** This rank's buffer, for network puts. */
  local(buffer: BufferName): Span;
  /** The buffer of another rank, for puts over the network. */
  remote(rank: number, buffer: BufferName): RemoteSpan;
  /** One-sided write to a rank, raising its signal on arrival. Resolves when the source may change. */
  put(rank: number, source: Span | undefined, target: RemoteSpan | undefined, signal: number): Promise<void>;
  /** Wakes ranks whose bit is set; clears the set. */
  ring(doorbells: Uint32Array): void;
  /** Called when something that the program waits for may have happened: `run` is to be called again soon. */
  progress(): void;
}

type ChannelStatus = 'running' | 'flushing' | 'done';

interface Channel {
  readonly code: Float64Array;
  readonly state: MachineState;
  status: ChannelStatus;
  /** Number of puts that have not left their source. */
  inFlight: number;
}

/** One instance of a lowered program, reusable for operation after operation. */
export class Execution {
  readonly lowered: Lowered;
  readonly #machine: StepMachine;
  readonly #segments: Segments;
  readonly #channels: Channel[];
  readonly #entryState: MachineState;
  #context: ExecutionContext | undefined;
  #failure: ShoalError | undefined;

  constructor(lowered: Lowered, machine: StepMachine, ranks: number) {
    this.lowered = lowered;
    this.#machine = machine;
    this.#segments = machine.createSegments(lowered.segments.length);
    this.#entryState = machine.createState(ranks);
    this.#channels = lowered.channels.map((code) => ({ code, state: machine.createState(ranks), status: 'done', inFlight: 0 }));
  }

  /** Runs the entry steps, before the operation is announced. */
  enter(context: ExecutionContext, rank: number): void {
    const { entry, segments } = this.lowered;
    if (entry.length <= 1) return;
    segments.forEach((name, index) => {
      if (name.rank === rank) this.#segments.set(index, context.view(name));
    });
    this.#entryState.pc = 0;
    const status = this.#machine.run(entry, this.#segments, this.#entryState, 0, false);
    assert(status === 'done', () => `entry steps ended with ${status}`);
  }

  /** Binds the memory of an operation and rewinds. */
  bind(context: ExecutionContext): void {
    assert(this.idle, () => 'an execution is bound only when the previous operation has ended');
    this.#context = context;
    this.#failure = undefined;
    this.lowered.segments.forEach((name, index) => this.#segments.set(index, context.view(name)));
    for (const channel of this.#channels) {
      channel.state.pc = 0;
      channel.status = 'running';
    }
  }

  /** True when nothing is running and no put is in flight: the memory may be reused. */
  get idle(): boolean {
    return this.#channels.every((channel) => channel.inFlight === 0 && channel.status === 'done');
  }

  /** Stops all channels, for an operation that failed. */
  abandon(): void {
    for (const channel of this.#channels) channel.status = 'done';
  }

  /** Advances all channels. A wait that is not satisfied spins at most `spinNs` (per channel).
   *  @throws ShoalError when a put failed or the program left its memory. */
  run(spinNs: number, options: { yields: boolean }): 'done' | 'waiting' {
    if (this.#failure) throw this.#failure;
    let done = true;
    for (const channel of this.#channels) {
      this.#advance(channel, spinNs, options.yields);
      if (channel.status !== 'done' || channel.inFlight > 0) done = false;
    }
    return done ? 'done' : 'waiting';
  }

  #advance(channel: Channel, spinNs: number, yields: boolean): void {
    const context = this.#context;
    assert(context !== undefined, () => 'run needs a bound execution');
    if (channel.status === 'flushing' && channel.inFlight === 0) channel.status = 'running';
    while (channel.status === 'running') {
      const status = this.#machine.run(channel.code, this.#segments, channel.state, spinNs, yields);
      context.ring(channel.state.doorbells);
      if (status === 'waiting') return;
      if (status === 'done') channel.status = 'done';
      else if (status === 'call') this.#perform(channel, context, this.lowered.calls[channel.state.argument]);
      else {
        const message = `a plan reached outside its memory (machine status ${status} at ${channel.state.pc}); please report this`;
        throw new ShoalError('protocol', message);
      }
    }
  }

  #perform(channel: Channel, context: ExecutionContext, call: NetworkCall): void {
    if (call.kind === 'flush') {
      if (channel.inFlight > 0) channel.status = 'flushing';
      return;
    }
    channel.inFlight += 1;
    const promise = call.kind === 'signal' ? context.put(call.peer, undefined, undefined, call.signal) : this.#put(context, call);
    promise.then(
      () => this.#landed(channel, context),
      (thrown: unknown) => {
        this.#failure ??= ShoalError.from(thrown, 'peer-lost');
        this.#landed(channel, context);
      },
    );
  }

  #put(context: ExecutionContext, call: Extract<NetworkCall, { kind: 'put' }>): Promise<void> {
    const local = context.local(call.buffer);
    const remote = context.remote(call.peer, call.targetBuffer);
    const source = { region: local.region, offset: local.offset + call.offset, bytes: call.bytes };
    const target = { region: remote.region, offset: remote.offset + call.targetOffset };
    return context.put(call.peer, source, target, call.signal);
  }

  #landed(channel: Channel, context: ExecutionContext): void {
    channel.inFlight -= 1;
    if (channel.inFlight === 0) context.progress();
  }
}
