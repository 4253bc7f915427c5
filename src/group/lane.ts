/** The lane: collectives of ranks that all share memory, run whole by the step machine, on whichever thread calls.
 *
 *      run ─▶ entry · announce · wait for all · compare · memory steps ─▶ done        nothing leaves native code
 *                                  │ not all there in time ─▶ waiting: continue later, on this thread or the other
 *
 *  Operations of a lane are strictly one after another, so two slots of the control block, used in turn, are enough: a rank
 *  announces operation k + 2 only after all have announced k + 1, hence finished k.
 *  It must not know threads, threads' queues or users' objects. */
import { must } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import type { ControlBlock } from '../collectives/control-block.ts';
import {
  addressesBytes,
  cardAddressesOffset,
  cardBytes,
  cardExpectedOffset,
  type LoweredWhole,
  type SegmentName,
} from '../collectives/lower.ts';
import type { MachineState, Segments, StepMachine } from '../memory/step-machine.ts';
import type { BufferName } from '../plan/ir.ts';
import { encodeContract, type CollectiveCall } from './contract.ts';

/** Slots of a control block that belong to the lane. */
export const laneSlots = 2;

/** Part of this rank's memory, as this thread maps it, and as it is announced. */
export interface LaneBuffer {
  readonly key: number;
  readonly offset: number;
  readonly view: Uint8Array;
}

export interface LaneOptions {
  readonly rank: number;
  readonly size: number;
  /** By group rank, as this thread maps them. */
  readonly blocks: readonly ControlBlock[];
  /** The first of the lane's slots. */
  readonly firstSlot: number;
  readonly machine: StepMachine;
  /** A rank's region as this thread maps it; undefined while it is not known here. */
  readonly peerRegion: (rank: number, key: number) => Uint8Array | undefined;
  /** Waiting gives the CPU away at once: ranks outnumber CPUs. */
  readonly yields: boolean;
}

/** `mismatch`: a rank's contract differs. `unmapped`: a rank's memory is not known here yet. */
export type LaneStatus = 'done' | 'waiting' | 'mismatch' | 'unmapped';

/** An operation bound to its buffers; may be run again and again, one run at a time. */
export interface LaneOperation {
  readonly call: CollectiveCall;
  readonly whole: LoweredWhole;
  readonly code: Float64Array;
  /** By slot. */
  readonly segments: readonly Segments[];
  readonly card: Uint8Array;
  readonly sequenceWord: Uint32Array;
}

const bufferNames = ['data', 'input', 'output'] as const;

export class Lane {
  readonly #options: LaneOptions;
  readonly #state: MachineState;

  constructor(options: LaneOptions) {
    this.#options = options;
    this.#state = options.machine.createState(options.size);
  }

  /** Ranks whose doorbell must be rung after a run; the caller clears. */
  get doorbells(): Uint32Array {
    return this.#state.doorbells;
  }

  bind(call: CollectiveCall, whole: LoweredWhole, buffers: Partial<Record<BufferName, LaneBuffer>>): LaneOperation {
    const { machine, size, firstSlot } = this.#options;
    const card = new Uint8Array(cardBytes(size));
    encodeContract(call, 0, card.subarray(0, 16), { strict: false });
    this.#writeAddresses(card, buffers);
    const segments = Array.from({ length: laneSlots }, (_, turn) => {
      const bound = machine.createSegments(whole.segments.length + 1);
      whole.segments.forEach((name, index) => {
        const view = this.#view(name, firstSlot + turn, buffers);
        if (view) bound.set(index, view);
      });
      bound.set(whole.cardSegment, card);
      return bound;
    });
    return { call, whole, code: whole.code.slice(), segments, card, sequenceWord: new Uint32Array(card.buffer, 0, 1) };
  }

  /** Starts the operation as number `sequence` of the group, `ordinal` of the lane. */
  start(operation: LaneOperation, sequence: number, ordinal: number, spinNs: number): LaneStatus {
    this.#state.pc = 0;
    operation.sequenceWord[0] = sequence;
    const { code } = operation;
    const { sequenceOperands } = operation.whole;
    for (let i = 0; i < sequenceOperands.length; i++) code[sequenceOperands[i]] = sequence + 1;
    return this.#run(operation, ordinal, spinNs);
  }

  /** Where the operation stands, to continue it elsewhere. */
  get position(): number {
    return this.#state.pc;
  }

  /** Continues an operation that was waiting or unmapped, from `position`. */
  resume(operation: LaneOperation, sequence: number, ordinal: number, position: number, spinNs: number): LaneStatus {
    operation.sequenceWord[0] = sequence;
    for (const operand of operation.whole.sequenceOperands) operation.code[operand] = sequence + 1;
    this.#state.pc = position;
    return this.#run(operation, ordinal, spinNs);
  }

  /** Binds the memory of all peers that have announced the operation, for one that began on the other thread.
   *  False when some of it is not known here yet. */
  adopt(operation: LaneOperation, sequence: number, ordinal: number): boolean {
    if (!operation.whole.touchesPeers) return true;
    const { blocks, rank, firstSlot } = this.#options;
    const slot = firstSlot + (ordinal % laneSlots);
    return blocks.every((block, peer) => peer === rank || block.published(slot) !== sequence + 1 || this.#rebind(operation, peer, slot));
  }

  #run(operation: LaneOperation, ordinal: number, spinNs: number): LaneStatus {
    const { machine, size, rank, blocks, firstSlot, yields } = this.#options;
    const turn = ordinal % laneSlots;
    for (;;) {
      const status = machine.run(operation.code, operation.segments[turn], this.#state, spinNs, yields);
      if (status === 'done') {
        const { signalCount } = operation.whole;
        if (signalCount > 0) blocks[rank].clearSignals(firstSlot + turn, signalCount);
        return 'done';
      }
      if (status === 'waiting') return 'waiting';
      if (status !== 'differs')
        throw new ShoalError('protocol', `a plan reached outside its memory (${status} at ${this.#state.pc}); please report this`);
      const differing = this.#state.argument;
      if (differing < size) return 'mismatch';
      if (!this.#rebind(operation, differing - size, firstSlot + turn)) return 'unmapped';
    }
  }

  /** A peer's buffers lie elsewhere than last time. False when its memory is not known here. */
  #rebind(operation: LaneOperation, peer: number, slot: number): boolean {
    const { blocks, peerRegion } = this.#options;
    const block = blocks[peer];
    for (const [index, name] of operation.whole.segments.entries()) {
      if (name.kind !== 'buffer' || name.rank !== peer) continue;
      const { rkey, offset } = block.bufferAddress(slot, name.buffer);
      const region = peerRegion(peer, rkey);
      if (!region) return false;
      const view = region.subarray(offset);
      for (const segments of operation.segments) segments.set(index, view);
    }
    operation.card.set(block.slots[slot].subarray(0, addressesBytes), cardExpectedOffset(peer));
    return true;
  }

  #view(name: SegmentName, slot: number, buffers: Partial<Record<BufferName, LaneBuffer>>): Uint8Array | undefined {
    const { blocks, rank } = this.#options;
    if (name.kind === 'slot') return blocks[name.rank].slots[slot];
    if (name.kind === 'header') return blocks[name.rank].header;
    if (name.rank !== rank) return undefined;
    return must(buffers[name.buffer], () => `the call has a ${name.buffer} buffer`).view;
  }

  #writeAddresses(card: Uint8Array, buffers: Partial<Record<BufferName, LaneBuffer>>): void {
    const addresses = new Float64Array(card.buffer, cardAddressesOffset, addressesBytes / 8);
    for (const name of bufferNames) {
      const buffer = buffers[name];
      if (!buffer) continue;
      const at = name === 'output' ? 2 : 0;
      addresses[at] = buffer.key;
      addresses[at + 1] = buffer.offset;
    }
  }
}
