/** The network path: small collectives between hosts, run by either thread. A rank's contribution travels with its announcement,
 *  over sockets that the running thread itself writes and reads.
 *
 *      begin ─▶ entry · puts into scratch · announce to all     advance ─▶ all there? ─▶ compare ─▶ the other steps ─▶ done
 *                                                                │ not in time: go on later, on this thread or the other
 *
 *  If the plan spreads data from every rank to every rank, announcements travel with its messages, before the first one to
 *  each peer, and no rank waits for the rest: a rank compares all announcements that it has received before it goes on, so that its next
 *  message vouches for them.
 *
 *      begin ─▶ puts into scratch     advance ─▶ compare ─▶ steps ─▶ wait for a peer ─▶ compare ─▶ steps … ─▶ done
 *                                                             │ not in time: announce to the others, too; go on later
 *
 *  Operations of a network path are strictly one after another, so two slots, used in turn, are enough: a rank announces operation
 *  k + 2 only after it has received the announcements of k + 1 from all ranks, which have then finished k. It must not know threads, their
 *  queues or users' objects. */
import { assert, must } from '../base/assert.ts';
import { serialOf } from '../base/serial.ts';
import { beginContractOffset, beginPublishedOffset, contractBytes, type ControlBlock } from '../collectives/control-block.ts';
import type { Lowered, NetworkCall } from '../collectives/lower.ts';
import {
  incomingOf,
  spreadsAnnouncements,
  type Incoming,
  type NetworkPathRates,
  type NetworkPathSpec,
} from '../collectives/network-path.ts';
import { Opcode, type MachineState, type Segments, type StepMachine } from '../memory/step-machine.ts';
import { encodeContract, type CollectiveCall, type Place } from './contract.ts';
import { signalMaxOf } from './group-spec.ts';
import { hasPrivate, type LocalBuffers } from './local-buffers.ts';
import { networkPathPutBytes, networkPathScratchBytes, networkPathSlots, type NetworkPathWire, type RankSet } from './network-path-wire.ts';
import type { PreparedPlan } from './planner.ts';

export interface NetworkPathOptions extends Place {
  readonly own: ControlBlock;
  /** The first of the slots of the own block that the network path uses. */
  readonly firstSlot: number;
  readonly wire: NetworkPathWire;
  readonly machine: StepMachine;
}

/** `ended`: the socket of a rank that is still missing has ended. */
export type NetworkPathStatus = 'done' | 'waiting' | 'mismatch' | 'ended';

/** An operation bound to its buffers; may be run again and again, one run at a time. */
export interface NetworkPathOperation {
  readonly call: CollectiveCall;
  readonly algorithm: string;
  readonly lowered: Lowered;
  /** Puts at the beginning of each channel that go to scratch. */
  readonly eager: readonly number[];
  /** Announcements travel with the plan's messages. */
  readonly spreads: boolean;
  /** Signals that it waits for. */
  readonly incoming: readonly Incoming[];
  buffers: LocalBuffers;
  readonly isPrivate: boolean;
  /** Memory by turn. */
  readonly segments: readonly Segments[];
  /** Its first word is the number of the call. */
  readonly contract: Uint32Array;
  /** The progress of the run that is under way. */
  readonly progress: NetworkPathProgress;
}

/** The progress of an operation: all that a thread must know to go on with it. */
export interface NetworkPathProgress {
  /** The position of each channel. */
  positions: readonly number[];
  /** Ranks that have been told. */
  announced: RankSet;
}

/** The rest of an operation that the calling thread hands over. */
export interface NetworkPathRest {
  readonly path: 'network';
  /** Position among the calls of the network path. */
  readonly ordinal: number;
  /** The progress so far; undefined: this rank has not begun it. */
  readonly progress: NetworkPathProgress | undefined;
}

/** The most ranks of a group with a network path. Every rank sends to every other one: with more ranks other algorithms are faster. */
export const networkPathRanksMax = 16;

/** The network path of a group as plans are chosen for it. */
export function networkPathSpec(ranks: number, bytesMax: number, rates: NetworkPathRates): NetworkPathSpec {
  return {
    bytesMax: Math.min(bytesMax, networkPathScratchBytes),
    scratchBytes: networkPathScratchBytes,
    putBytes: networkPathPutBytes(ranks),
    signalMax: signalMaxOf(ranks),
    rates,
  };
}

const contractWord = (beginContractOffset - beginPublishedOffset) / 4;

export class NetworkPath {
  readonly #options: NetworkPathOptions;
  readonly #state: MachineState;

  constructor(options: NetworkPathOptions) {
    this.#options = options;
    this.#state = options.machine.createState(options.size);
  }

  bind(call: CollectiveCall, { lowered, plan }: Pick<PreparedPlan, 'lowered' | 'plan'>, buffers: LocalBuffers): NetworkPathOperation {
    const { machine, wire, rank } = this.#options;
    const contract = new Uint32Array(contractBytes / 4);
    encodeContract(call, 0, new Uint8Array(contract.buffer), { strict: false });
    const segments = Array.from({ length: networkPathSlots }, (_, turn) => {
      const bound = machine.createSegments(lowered.segments.length);
      lowered.segments.forEach((name, index) => {
        assert(name.kind === 'slot' || name.rank === rank, () => `a network path reaches no ${name.kind} of rank ${name.rank}`);
        if (name.kind !== 'buffer') bound.set(index, wire.slot(name.rank, turn));
        else if (name.buffer === 'scratch') bound.set(index, wire.scratch[turn]);
      });
      return bound;
    });
    const eager = lowered.channels.map((code) => eagerPuts(code, lowered));
    const [spreads, incoming, isPrivate] = [spreadsAnnouncements(plan), incomingOf(plan, rank), hasPrivate(buffers)];
    const fixed = { call, algorithm: plan.algorithm, lowered, eager, spreads, incoming, isPrivate, segments, contract };
    return this.rebind({ ...fixed, progress: { positions: eager.map(() => 0), announced: 0 }, buffers }, buffers);
  }

  /** The same operation on other buffers. */
  rebind(operation: NetworkPathOperation, buffers: LocalBuffers): NetworkPathOperation {
    operation.buffers = buffers;
    operation.lowered.segments.forEach((name, index) => {
      if (name.kind !== 'buffer' || name.buffer === 'scratch') return;
      const view = must(buffers[name.buffer]?.view, () => `${operation.call.kind} has no such buffer`);
      for (const each of operation.segments) each.set(index, view);
    });
    return operation;
  }

  /** Begins the operation as number `sequence` of the group, `ordinal` of the network path. What it writes to scratch alone is sent at
   *  once: a rank that called something else has no use for its scratch any more. */
  begin(operation: NetworkPathOperation, sequence: number, ordinal: number): void {
    const { lowered, segments, contract, eager, spreads, progress } = operation;
    const { own, firstSlot, wire, rank } = this.#options;
    const turn = ordinal % networkPathSlots;
    contract[0] = sequence + 1;
    if (lowered.entry.length > 1) this.#run(lowered.entry, segments[turn]);
    wire.line(rank, turn).set(contract, contractWord);
    own.publish(firstSlot + turn, ordinal + 1);
    wire.bind(turn, operation.buffers);
    progress.announced = 0;
    progress.positions = eager.map((puts) => puts * callLength);
    lowered.channels.forEach((code, channel) => {
      for (let put = 0; put < eager[channel]; put++) this.#perform(operation, lowered.calls[code[put * callLength + 1]], turn);
    });
    if (!spreads) this.announceToAll(operation, ordinal);
  }

  /** Tells those who have not been told yet: they may be waiting for others, and want to know for whom. */
  announceToAll({ lowered, progress }: NetworkPathOperation, ordinal: number): void {
    const { wire, rank, size } = this.#options;
    const untold = ((1 << size) - 1) & ~(1 << rank) & ~progress.announced;
    if (untold === 0) return;
    wire.announce(ordinal % networkPathSlots, lowered.mailboxBytes, untold);
    progress.announced |= untold;
  }

  /** Goes on with an operation that has begun. @param spinNs how long each wait looks. */
  advance(operation: NetworkPathOperation, sequence: number, ordinal: number, spinNs: number): NetworkPathStatus {
    const { wire, own, firstSlot } = this.#options;
    const { lowered, spreads } = operation;
    const turn = ordinal % networkPathSlots;
    // It may have begun on the other thread.
    operation.contract[0] = sequence + 1;
    wire.bind(turn, operation.buffers);
    // The event loop is woken by all that comes, until it is read; and ranks that wait long tell everyone.
    if (spinNs === 0) wire.progress(everyone, 0);
    let there = spreads ? 'there' : wire.poll(turn, serialOf(ordinal + 1), spinNs);
    for (;;) {
      if (this.#differs(operation, ordinal, turn)) return 'mismatch';
      if (there !== 'there') return there === 'ended' ? 'ended' : 'waiting';
      const heard = !spreads || this.#heard(operation, ordinal, turn);
      if (heard && this.#advanceChannels(operation, turn)) break;
      there = wire.progress(this.#awaited(operation, turn), spinNs);
    }
    while (lowered.calls.length > 0 && wire.unsent) if (wire.progress(everyone, spinNs) !== 'there') return 'waiting';
    if (lowered.signalCount > 0) own.clearSignals(firstSlot + turn, lowered.signalCount);
    return 'done';
  }

  /** True when all have come to their ends. */
  #advanceChannels(operation: NetworkPathOperation, turn: number): boolean {
    const { machine } = this.#options;
    const { lowered, segments, progress } = operation;
    const state = this.#state;
    let done = true;
    progress.positions = progress.positions.map((position, channel) => {
      state.pc = position;
      let status = machine.run(lowered.channels[channel], segments[turn], state, 0, false);
      while (status === 'call') {
        this.#perform(operation, lowered.calls[state.argument], turn);
        status = machine.run(lowered.channels[channel], segments[turn], state, 0, false);
      }
      assert(status === 'done' || status === 'waiting', () => `steps of a network path ended with ${status}`);
      if (status !== 'done') done = false;
      return state.pc;
    });
    return done;
  }

  /** Sent data has left its source when the call returns: flushes have nothing to wait for. */
  #perform({ lowered, progress }: NetworkPathOperation, call: NetworkCall, turn: number): void {
    if (call.kind === 'flush') return;
    const told = (progress.announced >>> call.peer) & 1;
    progress.announced |= 1 << call.peer;
    this.#options.wire.put(turn, call, told === 1 ? undefined : { mailboxFilled: lowered.mailboxBytes });
  }

  /** Whether all that has come is of the operation: a rank may be on its way through another call. */
  #heard({ incoming }: NetworkPathOperation, ordinal: number, turn: number): boolean {
    const { wire, own, firstSlot } = this.#options;
    const announced = serialOf(ordinal + 1);
    return incoming.every(({ rank, signal }) => wire.line(rank, turn)[0] === announced || own.raised(firstSlot + turn, signal) === 0);
  }

  /** Ranks from which something is to come. */
  #awaited({ incoming }: NetworkPathOperation, turn: number): RankSet {
    const { own, firstSlot } = this.#options;
    let ranks = 0;
    for (const { rank, signal, raises } of incoming) if (own.raised(firstSlot + turn, signal) < raises) ranks |= 1 << rank;
    return ranks;
  }

  /** Group ranks that have not announced the operation. */
  late(ordinal: number): number[] {
    const ranks = Array.from({ length: this.#options.size }, (_, rank) => rank);
    return ranks.filter((rank) => this.#options.wire.line(rank, ordinal % networkPathSlots)[0] !== serialOf(ordinal + 1));
  }

  /** Someone has announced something else. */
  #differs({ contract }: NetworkPathOperation, ordinal: number, turn: number): boolean {
    const { size, wire } = this.#options;
    const announced = serialOf(ordinal + 1);
    for (let rank = 0; rank < size; rank++) {
      const line = wire.line(rank, turn);
      if (line[0] !== announced) continue;
      for (let word = 0; word < contract.length; word++) if (line[contractWord + word] !== contract[word]) return true;
    }
    return false;
  }

  #run(code: Float64Array, segments: Segments): void {
    const state = this.#state;
    state.pc = 0;
    const status = this.#options.machine.run(code, segments, state, 0, false);
    assert(status === 'done', () => `steps of a network path ended with ${status}`);
  }
}

const everyone: RankSet = -1;

/** Code words of a call. */
const callLength = 2;

/** The number of puts into scratch with which a channel begins. */
function eagerPuts(code: Float64Array, { calls }: Lowered): number {
  for (let puts = 0; ; puts++) {
    const at = puts * callLength;
    const call = code[at] === Opcode.Call ? calls[code[at + 1]] : undefined;
    if (call?.kind !== 'put' || call.targetBuffer !== 'scratch') return puts;
  }
}
