/** The host path: collectives of ranks that all share memory, run whole by the step machine, on whichever thread calls.
 *
 *      run ─▶ entry · announce · wait for all · compare · memory steps ─▶ done        nothing leaves native code
 *                                  │ not all there in time ─▶ waiting: continue later, on this thread or the other
 *                                  │ someone's buffers lie elsewhere ─▶ bound anew; are private ─▶ the other code, from the start
 *
 *  A call has two codes: one for buffers that all ranks reach, one for the case that some rank has announced private ones. All
 *  ranks see the same announcements, hence take the same. The announcement is alike in both, so it may be made twice.
 *
 *  A group has two host paths. Calls of the small one run on the calling thread. Calls of the large one would keep it for long: they
 *  are the comm thread's, except those on private buffers, which that thread cannot reach.
 *
 *  Operations of a host path are strictly one after another, so two slots of the control block, used in turn, are enough: a rank
 *  announces operation k + 2 only after all have announced k + 1, hence finished k.
 *  It must not know threads, threads' queues or users' objects. */
import { assert, must } from '../base/assert.ts';
import { ShoalError } from '../base/errors.ts';
import { serialOf } from '../base/serial.ts';
import { stagingBlockBytes } from '../collectives/algorithms/host-staged.ts';
import { beginBufferOffset, contractBytes, ControlBlock, type ControlBlockShape } from '../collectives/control-block.ts';
import {
  addressesBytes,
  cardAddressesOffset,
  cardBytes,
  cardExpectedOffset,
  type LoweredWhole,
  type SegmentName,
} from '../collectives/lower.ts';
import { dtypeInfo } from '../memory/dtype.ts';
import type { MachineState, MachineStatus, Repetition, Segments, StepMachine } from '../memory/step-machine.ts';
import type { CallTally } from '../metrics/board.ts';
import type { BufferName } from '../plan/ir.ts';
import { encodeContract, type CollectiveCall } from './contract.ts';
import type { GroupSpec } from './group-spec.ts';
import { bufferNames, hasPrivate, privateKey, type LocalBuffers } from './local-buffers.ts';
import type { HostPathPlans } from './planner.ts';
import type { Place } from './contract.ts';

export const hostPathNames = ['small', 'large'] as const;
export type HostPathName = (typeof hostPathNames)[number];

/** Slots of a control block that belong to a host path. */
const hostPathSlots = 2;

/** The slot of a host path's operation. Host paths' slots are behind the `slotCount` of the comm threads. */
function hostPathSlot(name: HostPathName, { slotCount, ordinal }: { slotCount: number; ordinal: number }): number {
  return slotCount + hostPathNames.indexOf(name) * hostPathSlots + (ordinal % hostPathSlots);
}

/** Control blocks with slots for the host paths, and with staging where there can be host paths. */
export function blockShape({ topology }: GroupSpec, shape: { slotCount: number; signalMax: number }): ControlBlockShape {
  const oneHost = topology.hosts.length === 1 && topology.hosts[0].length > 1;
  const slotCount = shape.slotCount + hostPathNames.length * hostPathSlots;
  return { ...shape, slotCount, staging: { bytes: stagingBlockBytes, count: oneHost ? hostPathNames.length : 0 } };
}

/** A rank's control block as this thread maps it. */
export function hostPathBlock(spec: GroupSpec, view: Uint8Array, shape: { slotCount: number; signalMax: number }): ControlBlock {
  return new ControlBlock(view.buffer, view.byteOffset, blockShape(spec, shape));
}

/** The host path in which a rank with this control block made its call `sequence`, if it did so lately. */
export function hostPathOf(block: ControlBlock, slotCount: number, sequence: number): HostPathName | undefined {
  return hostPathNames.find((name) => {
    for (let ordinal = 0; ordinal < hostPathSlots; ordinal++)
      if (block.holds(hostPathSlot(name, { slotCount, ordinal }), sequence)) return true;
    return false;
  });
}

export interface HostPathOptions extends Place {
  readonly name: HostPathName;
  /** Control blocks by group rank, as this thread maps them. */
  readonly blocks: readonly ControlBlock[];
  /** Slots of the comm threads. */
  readonly slotCount: number;
  readonly machine: StepMachine;
  /** A rank's region as this thread maps it; undefined while it is not known here. */
  readonly peerRegion: (rank: number, key: number) => Uint8Array | undefined;
  /** Waiting gives the CPU away at once: ranks outnumber CPUs. */
  readonly yields: boolean;
}

/** `mismatch`: a rank's contract differs. `unmapped`: a rank's memory is not known here yet. */
export type HostPathStatus = 'done' | 'waiting' | 'mismatch' | 'unmapped';

/** The name of one of a call's codes. */
export type HostPathCodeName = 'shared' | 'private';

/** The position of an operation. */
export interface HostPathPosition {
  readonly code: HostPathCodeName;
  readonly pc: number;
}

/** The rest of an operation that the calling thread hands over. */
export interface HostPathRest {
  readonly path: 'host';
  readonly hostPath: HostPathName;
  /** Position among the calls of the host path. */
  readonly ordinal: number;
  /** The position at which the calling thread left it; at 0: not begun. */
  readonly position: HostPathPosition;
  /** `private`: the call's buffers are copies of memory that only the calling thread reaches, which the call has announced. */
  readonly announced: 'shared' | 'private';
}

/** Code with the memory that it runs on. */
interface BoundCode {
  readonly name: HostPathCodeName;
  readonly whole: LoweredWhole;
  readonly code: Float64Array;
  /** The memory that the code addresses, for each slot of the control block. */
  readonly segments: readonly [Segments, Segments];
}

/** An operation bound to its buffers; may be run again and again, one run at a time. */
export interface HostPathOperation {
  readonly hostPath: HostPathName;
  readonly call: CollectiveCall;
  readonly plans: HostPathPlans;
  readonly card: Uint8Array;
  /** This rank's, in the card; its first word is the number of the call. */
  readonly contract: Uint32Array;
  /** The code that the last run took, and the next one tries first. */
  bound: BoundCode;
  /** It has been run by this thread: most operations are run once, and a repetition costs more to make than a run. */
  hasRun: boolean;
  /** Nanoseconds that making it has taken; 0: it has been run. */
  boundNs: number;
  /** Starts the code that is bound once more; undefined: not made since the code was bound. */
  start: Repetition | undefined;
  /** `start`, where nothing is left to do when the code has come to its end. */
  repetition: Repetition | undefined;
  /** The other one, once it has been needed. */
  spare: BoundCode | undefined;
  /** Buffers of this rank. */
  buffers: LocalBuffers;
  /** Peers cannot reach them. */
  readonly isPrivate: boolean;
  /** Bytes of them that peers cannot reach. */
  readonly privateBytes: number;
  /** Bytes of the call, as its contract has them. */
  readonly bytes: number;
  /** Counts its runs; undefined: nobody does. */
  tally?: CallTally | undefined;
}

/** Bytes of a card that stand for addresses which nobody announces. */
const unknownByte = 0xff;
const nothing = new Uint8Array(0);

export class HostPath {
  readonly #options: HostPathOptions;
  readonly state: MachineState;

  constructor(options: HostPathOptions) {
    this.#options = options;
    this.state = options.machine.createState(options.size);
  }

  /** The slot of a control block for the operation `ordinal` of the host path. */
  slotOf(ordinal: number): number {
    return hostPathSlot(this.#options.name, { slotCount: this.#options.slotCount, ordinal });
  }

  /** Ranks whose doorbell must be rung after a run; the caller clears. */
  get doorbells(): Uint32Array {
    return this.state.doorbells;
  }

  /** @param code what to try first; with private buffers of one's own there is no choice. */
  bind(call: CollectiveCall, plans: HostPathPlans, buffers: LocalBuffers, code: HostPathCodeName = 'shared'): HostPathOperation {
    const { size, rank } = this.#options;
    const card = new Uint8Array(cardBytes(size));
    encodeContract(call, 0, card.subarray(0, contractBytes), { strict: false });
    for (let peer = 0; peer < size; peer++) if (peer !== rank) this.#expected(card, peer).fill(unknownByte);
    writeAddresses(card, buffers);
    const isPrivate = hasPrivate(buffers);
    const bound = this.#bindCode(plans, isPrivate ? 'private' : code, card, buffers);
    const privateBytes = isPrivate ? Object.values(buffers).reduce((sum, { view }) => sum + view.length, 0) : 0;
    const { name: hostPath } = this.#options;
    const contract = new Uint32Array(card.buffer, 0, contractBytes / 4);
    return {
      hostPath,
      call,
      plans,
      card,
      contract,
      bound,
      hasRun: false,
      boundNs: 0,
      start: undefined,
      repetition: undefined,
      spare: undefined,
      buffers,
      isPrivate,
      privateBytes,
      bytes: call.count * dtypeInfo(call.dtype).bytes,
    };
  }

  /** The same operation on other buffers of this rank, announced alike; on none: it holds no caller's memory any more. */
  rebindOwn(operation: HostPathOperation, buffers: LocalBuffers): void {
    operation.buffers = buffers;
    writeAddresses(operation.card, buffers);
    for (const { whole, segments } of [operation.bound, ...(operation.spare ? [operation.spare] : [])]) {
      whole.segments.forEach((name, index) => {
        if (name.kind !== 'buffer' || name.rank !== this.#options.rank || name.buffer === 'scratch') return;
        for (const each of segments) each.set(index, buffers[name.buffer]?.view ?? nothing);
      });
    }
  }

  /** Where an operation stands, to continue it elsewhere. */
  positionOf(operation: HostPathOperation): HostPathPosition {
    return { code: operation.bound.name, pc: this.state.pc };
  }

  /** Runs number `sequence` of the group, `ordinal` of the host path, from `position`: where it was waiting or unmapped, or the start. */
  resume(operation: HostPathOperation, sequence: number, ordinal: number, position: HostPathPosition, spinNs: number): HostPathStatus {
    assert(operation.bound.name === position.code, () => `an operation goes on in the code it was left in`);
    operation.contract[0] = sequence + 1;
    number(operation.bound, ordinal);
    this.state.pc = position.pc;
    return this.goOn(operation, ordinal, this.#runMachine(operation, ordinal, spinNs), spinNs);
  }

  /** Binds the memory of all peers that have announced the operation, for one that began on the other thread and came to
   *  `position` there. What they announce may ask for the other code, which then begins: past its comparisons an operation is
   *  only when all have announced, and in the right code. Undefined when some memory is not known here yet. */
  adopt(operation: HostPathOperation, ordinal: number, position: HostPathPosition): HostPathPosition | undefined {
    if (!operation.bound.whole.touchesPeers) return position;
    const { blocks, rank, size } = this.#options;
    const slot = this.slotOf(ordinal);
    for (let peer = 0; peer < size; peer++) {
      if (peer !== rank && blocks[peer].published(slot) === serialOf(ordinal + 1)) this.#note(operation, peer, slot);
    }
    const wanted = this.#codeFor(operation);
    if (wanted !== operation.bound.name) this.#take(operation, wanted, ordinal);
    if (!this.#bindPeers(operation)) return undefined;
    return wanted === position.code ? position : { code: wanted, pc: 0 };
  }

  #runMachine({ bound }: HostPathOperation, ordinal: number, spinNs: number): MachineStatus {
    const { machine, yields } = this.#options;
    return machine.run(bound.code, bound.segments[ordinal % hostPathSlots], this.state, spinNs, yields);
  }

  /** Goes on with an operation whose machine has come to `status`. */
  goOn(operation: HostPathOperation, ordinal: number, status: MachineStatus, spinNs: number): HostPathStatus {
    const { size, rank, blocks } = this.#options;
    for (;;) {
      const { bound } = operation;
      if (status === 'done') {
        const { signalCount } = bound.whole;
        if (signalCount > 0) blocks[rank].clearSignals(this.slotOf(ordinal), signalCount);
        return 'done';
      }
      if (status === 'waiting') return 'waiting';
      if (status !== 'differs')
        throw new ShoalError('protocol', `a plan reached outside its memory (${status} at ${this.state.pc}); please report this`);
      const differing = this.state.argument;
      if (differing < size) return 'mismatch';
      if (!this.#meet(operation, differing - size, ordinal)) return 'unmapped';
      status = this.#runMachine(operation, ordinal, spinNs);
    }
  }

  /** A peer's buffers lie elsewhere than last time. False when memory is not known here. */
  #meet(operation: HostPathOperation, peer: number, ordinal: number): boolean {
    this.#note(operation, peer, this.slotOf(ordinal));
    const wanted = this.#codeFor(operation);
    if (wanted === operation.bound.name) return this.#bindPeer(operation, peer);
    this.#take(operation, wanted, ordinal);
    this.state.pc = 0;
    return this.#bindPeers(operation);
  }

  /** The other code from now on. */
  #take(operation: HostPathOperation, name: HostPathCodeName, ordinal: number): void {
    const { plans, card, buffers, bound, spare } = operation;
    operation.bound = spare ?? this.#bindCode(plans, name, card, buffers);
    operation.start = undefined;
    operation.repetition = undefined;
    operation.spare = bound;
    number(operation.bound, ordinal);
  }

  #bindPeers(operation: HostPathOperation): boolean {
    let known = true;
    for (let peer = 0; peer < this.#options.size; peer++) if (!this.#bindPeer(operation, peer)) known = false;
    return known;
  }

  /** A peer's addresses, as announced, go to the card. */
  #note({ card }: HostPathOperation, peer: number, slot: number): void {
    this.#expected(card, peer).set(this.#options.blocks[peer].slot(slot).subarray(0, addressesBytes));
  }

  /** The code for what is known of all ranks. */
  #codeFor({ call, card, buffers, plans }: HostPathOperation): HostPathCodeName {
    if (hasPrivate(buffers)) return 'private';
    const { size, rank } = this.#options;
    for (let peer = 0; peer < size; peer++) {
      if (peer !== rank && announcesPrivate(call, this.#expected(card, peer)) && plans.hasPrivate) return 'private';
    }
    return 'shared';
  }

  /** Binds a peer's buffers as the card has them. False when they are not mapped here: the card then forgets them, so that the
   *  machine stops there again. */
  #bindPeer({ bound, card }: HostPathOperation, peer: number): boolean {
    const { rank, peerRegion } = this.#options;
    const expected = this.#expected(card, peer);
    if (peer === rank || expected[0] === unknownByte) return true;
    const addresses = new Float64Array(expected.buffer, expected.byteOffset, addressesBytes / 8);
    for (const [index, name] of bound.whole.segments.entries()) {
      if (name.kind !== 'buffer' || name.rank !== peer || name.buffer === 'scratch') continue;
      const at = beginBufferOffset(name.buffer) / 8;
      const region = peerRegion(peer, addresses[at]);
      if (!region) {
        expected.fill(unknownByte);
        return false;
      }
      const view = region.subarray(addresses[at + 1]);
      for (const segments of bound.segments) segments.set(index, view);
    }
    return true;
  }

  #bindCode(plans: HostPathPlans, name: HostPathCodeName, card: Uint8Array, buffers: LocalBuffers): BoundCode {
    const whole = must(plans[name], () => `a call with ${name} buffers has a plan for them`);
    const { machine } = this.#options;
    const segmentsOf = (turn: number): Segments => {
      const bound = machine.createSegments(whole.segments.length + 1);
      whole.segments.forEach((segment, index) => {
        const view = this.#view(segment, this.slotOf(turn), buffers);
        if (view) bound.set(index, view);
      });
      bound.set(whole.cardSegment, card);
      return bound;
    };
    return { name, whole, code: whole.code.slice(), segments: [segmentsOf(0), segmentsOf(1)] };
  }

  #view(name: SegmentName, slot: number, buffers: LocalBuffers): Uint8Array | undefined {
    const { blocks, rank, name: hostPath } = this.#options;
    if (name.kind === 'slot') return blocks[name.rank].slot(slot);
    if (name.kind === 'header') return blocks[name.rank].header;
    if (name.buffer === 'scratch') return blocks[name.rank].staging(hostPathNames.indexOf(hostPath));
    if (name.rank !== rank) return undefined;
    return must(buffers[name.buffer], () => `the call has a ${name.buffer} buffer`).view;
  }

  /** The part of a card that has the addresses that a peer is expected to announce. */
  #expected(card: Uint8Array, peer: number): Uint8Array {
    const offset = cardExpectedOffset(peer);
    return card.subarray(offset, offset + addressesBytes);
  }
}

/** The machine looks for these numbers. */
function number({ code, whole }: BoundCode, ordinal: number): void {
  const { ordinalOperands } = whole;
  for (let i = 0; i < ordinalOperands.length; i++) code[ordinalOperands[i]] = ordinal + 1;
}

/** Whether the addresses that a rank announces for a call say so. */
function announcesPrivate({ kind }: CollectiveCall, expected: Uint8Array): boolean {
  const addresses = new Float64Array(expected.buffer, expected.byteOffset, addressesBytes / 8);
  const buffer: BufferName = kind === 'gather' ? 'input' : kind === 'scatter' ? 'output' : 'data';
  return addresses[beginBufferOffset(buffer) / 8] === privateKey;
}

function writeAddresses(card: Uint8Array, buffers: LocalBuffers): void {
  const addresses = new Float64Array(card.buffer, cardAddressesOffset, addressesBytes / 8);
  for (const name of bufferNames) {
    const buffer = buffers[name];
    if (!buffer) continue;
    const at = beginBufferOffset(name) / 8;
    addresses[at] = buffer.key;
    addresses[at + 1] = buffer.offset;
  }
}
