/** The express: small collectives between hosts, on whichever thread calls. What a rank contributes travels with its announcement,
 *  over sockets that the calling thread itself writes and reads.
 *
 *      begin ─▶ entry · announce · send to all       advance ─▶ all there? ─▶ compare ─▶ memory steps ─▶ done
 *                                                                │ not in time: go on later, on this thread or the other
 *
 *  Operations of an express are strictly one after another, so two slots, used in turn, are enough: a rank announces operation
 *  k + 2 only after all have announced k + 1, hence finished k. It must not know threads, their queues or users' objects. */
import { assert } from '../base/assert.ts';
import { beginContractOffset, beginPublishedOffset, contractBytes, type ControlBlock } from '../collectives/control-block.ts';
import type { Lowered } from '../collectives/lower.ts';
import type { MachineState, Segments, StepMachine } from '../memory/step-machine.ts';
import type { BufferName } from '../plan/ir.ts';
import { encodeContract, type CollectiveCall } from './contract.ts';
import { expressSlots, type ExpressPatience, type ExpressWire } from './express-wire.ts';
import type { PreparedPlan } from './plan-runner.ts';

export interface ExpressOptions {
  readonly rank: number;
  readonly size: number;
  readonly own: ControlBlock;
  /** The first of the slots of the own block that the express uses. */
  readonly firstSlot: number;
  readonly wire: ExpressWire;
  readonly machine: StepMachine;
}

/** `ended`: the socket of a rank that is still missing has ended. */
export type ExpressStatus = 'done' | 'waiting' | 'mismatch' | 'ended';

/** An operation bound to its buffers; may be run again and again, one run at a time. */
export interface ExpressOperation {
  readonly call: CollectiveCall;
  readonly lowered: Lowered;
  /** By turn. */
  readonly segments: readonly Segments[];
  /** Its first word is the sequence number. */
  readonly contract: Uint32Array;
}

/** Views of this rank's buffers. */
export type ExpressBuffers = Partial<Record<BufferName, Uint8Array>>;

/** Whether an express can run a plan: the same answer on every rank, hence by what the plan says of all of them. Where nobody
 *  signals anybody, nothing but mailboxes can be between them. */
export function servesExpress({ plan, computeType }: PreparedPlan, call: CollectiveCall): boolean {
  const plain = computeType === call.dtype && call.op !== 'premul';
  return plain && plan.programs.every(({ signalCount, scratchCount }) => signalCount === 0 && scratchCount === 0);
}

const contractWord = (beginContractOffset - beginPublishedOffset) / 4;

export class Express {
  readonly #options: ExpressOptions;
  readonly #state: MachineState;

  constructor(options: ExpressOptions) {
    this.#options = options;
    this.#state = options.machine.createState(options.size);
  }

  bind(call: CollectiveCall, lowered: Lowered, buffers: ExpressBuffers): ExpressOperation {
    const { machine, wire, rank } = this.#options;
    const contract = new Uint32Array(contractBytes / 4);
    encodeContract(call, 0, new Uint8Array(contract.buffer), { strict: false });
    const segments = Array.from({ length: expressSlots }, (_, turn) => {
      const bound = machine.createSegments(lowered.segments.length);
      lowered.segments.forEach((name, index) => {
        const view = name.kind === 'buffer' && name.rank === rank ? buffers[name.buffer] : wire.slot(name.rank, turn);
        assert(view !== undefined, () => `the call has a ${name.kind === 'buffer' ? name.buffer : name.kind} of rank ${name.rank}`);
        bound.set(index, view);
      });
      return bound;
    });
    return { call, lowered, segments, contract };
  }

  /** Announces the operation as number `sequence` of the group, `ordinal` of the express. */
  begin({ lowered, segments, contract }: ExpressOperation, sequence: number, ordinal: number): void {
    const { own, firstSlot, wire } = this.#options;
    const turn = ordinal % expressSlots;
    if (lowered.entry.length > 1) this.#run(lowered.entry, segments[turn]);
    contract[0] = sequence;
    wire.line(this.#options.rank, turn).set(contract, contractWord);
    own.publish(firstSlot + turn, sequence + 1);
    wire.send(turn, lowered.mailboxBytes);
  }

  /** Ends an operation that has begun, once all have announced theirs. */
  advance(operation: ExpressOperation, sequence: number, ordinal: number, patience: ExpressPatience): ExpressStatus {
    const { wire } = this.#options;
    const turn = ordinal % expressSlots;
    // It may have begun on the other thread.
    operation.contract[0] = sequence;
    const there = wire.poll(turn, sequence + 1, patience);
    if (there !== 'there') return this.#differs(operation, sequence, turn) ? 'mismatch' : there === 'ended' ? 'ended' : 'waiting';
    if (this.#differs(operation, sequence, turn)) return 'mismatch';
    const [channel] = operation.lowered.channels;
    if (channel !== undefined && channel.length > 1) this.#run(channel, operation.segments[turn]);
    return 'done';
  }

  /** Group ranks that have not announced the operation. */
  late(sequence: number, ordinal: number): number[] {
    const ranks = Array.from({ length: this.#options.size }, (_, rank) => rank);
    return ranks.filter((rank) => this.#options.wire.line(rank, ordinal % expressSlots)[0] !== (sequence + 1) >>> 0);
  }

  /** Someone has announced something else. */
  #differs({ contract }: ExpressOperation, sequence: number, turn: number): boolean {
    const { size, wire } = this.#options;
    const announced = (sequence + 1) >>> 0;
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
    assert(status === 'done', () => `steps of an express ended with ${status}`);
  }
}
