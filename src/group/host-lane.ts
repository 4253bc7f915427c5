/** The synchronous path: collectives of ranks that share memory, up to a size or on private buffers, run on the calling thread
 *  and come back complete. Which calls take it follows from what all ranks agree on (kind, dtype, size, group), never from local facts;
 *  on which thread it ends is a local matter: when peers are late, the comm thread takes over.
 *
 *      call ─▶ lane.start ──── done ──▶ completed work                        0.2–1 µs for small operations
 *                   └─ waiting ─▶ comm thread: lane.resume … ─▶ work        a later call queues behind it there
 *      large call on shared buffers ─▶ comm thread, at once
 *
 *  Private arrays are used where they are, and only copied to memory that the comm thread reaches when it must take over. */
import { must } from '../base/assert.ts';
import { ControlBlock } from '../collectives/control-block.ts';
import { dtypeInfo } from '../memory/dtype.ts';
import type { StepMachine } from '../memory/step-machine.ts';
import type { BufferName } from '../plan/ir.ts';
import type { CallBuffers } from './call-buffers.ts';
import type { NameId, TraceRecorder } from '../trace/recorder.ts';
import type { CommClient } from './comm-client.ts';
import type { SharedBuffer } from './comm-protocol.ts';
import type { CollectiveCall } from './contract.ts';
import type { GroupSpec } from './group-engine.ts';
import {
  blockShape,
  hasPrivate,
  Lane,
  type LaneBuffers,
  type LaneName,
  type LaneOperation,
  type LaneOptions,
  type LanePosition,
} from './lane.ts';
import type { LanePlans, PlanRunner } from './plan-runner.ts';
import type { Work } from './types.ts';
import { CompletedWork } from './work.ts';

/** Operations kept bound to their buffers, least recently bound dropped first. */
const boundMax = 512;
/** A private array that is larger is let go when its call has ended; a smaller one stays bound for the next such call. */
const keptBytesMax = 64 * 1024;
/** Of letting the comm thread take over a call on a private array: two copies. To wait as long for late peers costs at most as
 *  much again. */
const nsPerPrivateByte = 0.4;

export interface HostLaneOptions {
  readonly spec: GroupSpec;
  readonly client: CommClient;
  readonly plans: PlanRunner;
  readonly machine: StepMachine;
  readonly trace: TraceRecorder;
  /** By group rank. */
  readonly blocks: readonly ControlBlock[];
  readonly slotCount: number;
  readonly bytesMax: number;
  readonly spinNs: number;
  readonly yields: boolean;
}

/** A call's place among the group's calls and among the lane's. */
interface Place {
  readonly sequence: number;
  readonly ordinal: number;
}

/** What a call needs to continue on the comm thread; made only when it must. */
export interface LaneRequest {
  readonly call: CollectiveCall;
  /** Where the comm thread reaches them. */
  readonly buffers: Partial<Record<BufferName, SharedBuffer>>;
  readonly timeoutMs: number;
  /** Where the call was made. */
  readonly site: () => string | undefined;
  readonly hooks: { onSuccess?: () => void };
}

const completedWork = new CompletedWork();

/** One of the lanes, as far as this thread has come. */
interface Track {
  readonly lane: Lane;
  ordinal: number;
  /** Operations that the comm thread has taken over and not finished. */
  handedOver: number;
}

export class HostLane {
  readonly #options: HostLaneOptions;
  readonly #tracks: Readonly<Record<LaneName, Track>>;
  readonly #own: ControlBlock;
  /** By call and buffers; those on private arrays by call alone. */
  readonly #bound = new Map<string, LaneOperation>();
  readonly #traceNames = new Map<string, NameId>();

  constructor(options: HostLaneOptions) {
    this.#options = options;
    const { spec, blocks, slotCount, machine, yields, client } = options;
    this.#own = blocks[spec.rank];
    const place = { rank: spec.rank, size: spec.globalRanks.length, blocks, slotCount, machine, yields };
    const peerRegion: LaneOptions['peerRegion'] = (rank, key) => client.peerRegions?.view(spec.globalRanks[rank], key);
    const track = (name: LaneName): Track => ({ lane: new Lane({ ...place, name, peerRegion }), ordinal: 0, handedOver: 0 });
    this.#tracks = { small: track('small'), large: track('large') };
  }

  /** The operation for a call, bound to its buffers; undefined when calls like this go through the comm thread. Stages private
   *  buffers that their plan has peers touch. */
  bind(call: CollectiveCall, reach: CallBuffers): LaneOperation | undefined {
    const { lane: plans } = this.#options.plans.prepare(call);
    if (!plans) return undefined;
    const isSmall = call.count * dtypeInfo(call.dtype).bytes <= this.#options.bytesMax;
    if (!isSmall && !plans.hasPrivate) return undefined;
    const { lane } = this.#tracks[isSmall ? 'small' : 'large'];
    const buffers = localBuffers(plans, reach);
    const isPrivate = hasPrivate(buffers);
    const key = isPrivate ? callKey(call) : callKey(call) + buffersKey(buffers);
    const known = this.#bound.get(key);
    if (known) {
      if (isPrivate) lane.rebindOwn(known, buffers);
      return known;
    }
    const bound = lane.bind(call, plans, buffers);
    this.#bound.set(key, bound);
    if (this.#bound.size > boundMax) for (const oldest of this.#bound.keys()) return this.#drop(oldest, bound);
    return bound;
  }

  /** Notes in the control block how many calls this rank has made: what others are told when they wait in vain. */
  announce(calls: number): void {
    this.#own.called = calls;
  }

  /** Runs the operation as call number `sequence`. `request` is asked for only when the comm thread must take over.
   *  @param buffers what the operation runs on, when that may not be what it was last bound to. */
  run(operation: LaneOperation, sequence: number, request: () => LaneRequest, buffers = operation.buffers): Work {
    const track = this.#tracks[operation.lane];
    const ordinal = track.ordinal++;
    const { lane } = track;
    if (buffers !== operation.buffers) lane.rebindOwn(operation, buffers);
    const work = this.#run(track, operation, { sequence, ordinal }, request);
    if (operation.privateBytes > keptBytesMax) lane.rebindOwn(operation, {});
    return work;
  }

  #run(track: Track, operation: LaneOperation, at: Place, request: () => LaneRequest): Work {
    const { lane } = track;
    const { sequence, ordinal } = at;
    const isPrivate = hasPrivate(operation.buffers);
    if (track.handedOver > 0 || this.#own.failed || (operation.lane === 'large' && !isPrivate)) {
      const position: LanePosition = { code: isPrivate ? 'private' : 'shared', pc: 0 };
      return this.#handOver(track, operation, { ...at, position }, request);
    }
    const { spinNs, trace, client } = this.#options;
    const startMs = trace.enabled ? trace.now() : 0;
    const patienceNs = spinNs + operation.privateBytes * nsPerPrivateByte;
    let status = lane.start(operation, sequence, ordinal, patienceNs);
    if (status === 'unmapped') {
      client.drain();
      status = lane.resume(operation, sequence, ordinal, lane.positionOf(operation), patienceNs);
    }
    this.#ring(lane);
    if (status !== 'done') return this.#handOver(track, operation, { ...at, position: lane.positionOf(operation) }, request);
    if (trace.enabled) trace.complete(this.#traceName(operation.call.kind), startMs, 0, operation.call.count);
    return completedWork;
  }

  #handOver(track: Track, operation: LaneOperation, at: Place & { readonly position: LanePosition }, request: () => LaneRequest): Work {
    const { spec, client } = this.#options;
    const announced = hasPrivate(operation.buffers) ? 'private' : 'shared';
    const { call: asked, buffers, timeoutMs, site, hooks } = request();
    const call = { ...asked, site: site() };
    track.handedOver += 1;
    return client.start(
      { type: 'lane', group: spec.id, lane: operation.lane, ...at, call, buffers, announced, timeoutMs },
      `${call.kind} of group '${spec.name}'`,
      { ...hooks, onSettled: () => (track.handedOver -= 1) },
    );
  }

  #ring({ doorbells }: Lane): void {
    for (let word = 0; word < doorbells.length; word++) {
      if (doorbells[word] === 0) continue;
      this.#options.client.post({ type: 'ring', group: this.#options.spec.id, doorbells: doorbells.slice() });
      doorbells.fill(0);
      return;
    }
  }

  #drop(key: string, bound: LaneOperation): LaneOperation {
    this.#bound.delete(key);
    return bound;
  }

  #traceName(kind: string): NameId {
    let id = this.#traceNames.get(kind);
    if (id === undefined) {
      id = this.#options.trace.name(`${kind} (synchronous)`, { category: 'collective', argument: 'count' });
      this.#traceNames.set(kind, id);
    }
    return id;
  }
}

/** A rank's control block as this thread maps it. */
export function laneBlock(spec: GroupSpec, view: Uint8Array, shape: { slotCount: number; signalMax: number }): ControlBlock {
  return new ControlBlock(view.buffer, view.byteOffset, blockShape(spec, shape));
}

/** The arguments where they are, if the call has a plan for that; else staged. */
function localBuffers(plans: LanePlans, reach: CallBuffers): LaneBuffers {
  const buffers = reach.local;
  if (buffers && (plans.hasPrivate || !hasPrivate(buffers))) return buffers;
  reach.share();
  return must(reach.local, () => 'what is staged is apart');
}

function callKey(call: CollectiveCall): string {
  const { kind, dtype, op, count, root, counts, splits, name } = call;
  let key = `${kind} ${dtype} ${op ?? ''} ${count} ${root ?? ''} ${name ?? ''}`;
  if (counts || splits) key += JSON.stringify([counts, splits]);
  return key;
}

function buffersKey(buffers: LaneBuffers): string {
  return Object.values(buffers)
    .map(({ key, offset, view }) => ` ${key} ${offset} ${view.length}`)
    .join('');
}
