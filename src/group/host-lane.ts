/** The synchronous path: collectives of ranks that share memory, up to a size, run on the calling thread and come back
 *  complete. Which calls take it follows from what all ranks agree on (kind, dtype, size, group), never from local facts;
 *  on which thread it ends is a local matter: when peers are late, the comm thread takes over.
 *
 *      call ─▶ lane.start ──── done ──▶ completed work                        0.2–1 µs for small operations
 *                   └─ waiting ─▶ comm thread: lane.resume … ─▶ work        a later call queues behind it there */
import { ControlBlock } from '../collectives/control-block.ts';
import type { LoweredWhole } from '../collectives/lower.ts';
import { dtypeInfo } from '../memory/dtype.ts';
import type { StepMachine } from '../memory/step-machine.ts';
import type { BufferName } from '../plan/ir.ts';
import type { NameId, TraceRecorder } from '../trace/recorder.ts';
import type { CommClient } from './comm-client.ts';
import type { SharedBuffer } from './comm-protocol.ts';
import type { CollectiveCall } from './contract.ts';
import type { GroupSpec } from './group-engine.ts';
import { Lane, laneSlots, type LaneBuffer, type LaneOperation } from './lane.ts';
import type { PlanRunner } from './plan-runner.ts';
import type { Work } from './types.ts';
import { CompletedWork } from './work.ts';

/** Operations kept bound to their buffers, least recently bound dropped first. */
const boundMax = 512;

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
  /** This rank's memory: key of a region. */
  readonly keyOf: (regionId: string) => number;
  readonly view: (buffer: SharedBuffer) => Uint8Array;
}

/** What a call needs to continue on the comm thread; made only when it must. */
export interface LaneRequest {
  readonly call: CollectiveCall;
  readonly buffers: Partial<Record<BufferName, SharedBuffer>>;
  readonly timeoutMs: number;
  /** Where the call was made. */
  readonly site: () => string | undefined;
  readonly hooks: { onSuccess?: () => void };
}

const completedWork = new CompletedWork();

export class HostLane {
  readonly #options: HostLaneOptions;
  readonly #lane: Lane;
  readonly #own: ControlBlock;
  readonly #bound = new Map<string, LaneOperation>();
  readonly #traceNames = new Map<string, NameId>();
  #ordinal = 0;
  /** Operations that the comm thread has taken over and not finished. */
  #handedOver = 0;

  constructor(options: HostLaneOptions) {
    this.#options = options;
    const { spec, blocks, slotCount, machine, yields, client } = options;
    this.#own = blocks[spec.rank];
    this.#lane = new Lane({
      rank: spec.rank,
      size: spec.globalRanks.length,
      blocks,
      firstSlot: slotCount,
      machine,
      yields,
      peerRegion: (rank, key) => client.peerRegions?.view(spec.globalRanks[rank], key),
    });
  }

  /** The operation for a call, bound to its buffers; undefined when calls like this go through the comm thread. */
  bind(call: CollectiveCall, buffers: Partial<Record<BufferName, SharedBuffer>>): LaneOperation | undefined {
    if (call.count * dtypeInfo(call.dtype).bytes > this.#options.bytesMax) return undefined;
    const { whole } = this.#options.plans.prepare(call);
    if (!whole) return undefined;
    const key = keyOf(call, buffers);
    const known = this.#bound.get(key);
    if (known) return known;
    const bound = this.#bind(call, whole, buffers);
    this.#bound.set(key, bound);
    if (this.#bound.size > boundMax) for (const oldest of this.#bound.keys()) return this.#drop(oldest, bound);
    return bound;
  }

  /** Notes in the control block how many calls this rank has made: what others are told when they wait in vain. */
  announce(calls: number): void {
    this.#own.called = calls;
  }

  /** Runs the operation as call number `sequence`. `request` is asked for only when the comm thread must take over. */
  run(operation: LaneOperation, sequence: number, request: () => LaneRequest): Work {
    const ordinal = this.#ordinal++;
    if (this.#handedOver > 0 || this.#own.failed) return this.#handOver(sequence, ordinal, 0, request());
    const { spinNs, trace, client } = this.#options;
    const startMs = trace.enabled ? trace.now() : 0;
    const lane = this.#lane;
    let status = lane.start(operation, sequence, ordinal, spinNs);
    if (status === 'unmapped') {
      client.drain();
      status = lane.resume(operation, sequence, ordinal, lane.position, spinNs);
    }
    this.#ring();
    if (status !== 'done') return this.#handOver(sequence, ordinal, lane.position, request());
    if (trace.enabled) trace.complete(this.#traceName(operation.call.kind), startMs, 0, operation.call.count);
    return completedWork;
  }

  #handOver(sequence: number, ordinal: number, position: number, request: LaneRequest): Work {
    const { spec, client } = this.#options;
    const { buffers, timeoutMs, site, hooks } = request;
    const call = { ...request.call, site: site() };
    this.#handedOver += 1;
    return client.start(
      { type: 'lane', group: spec.id, sequence, ordinal, position, call, buffers, timeoutMs },
      `${call.kind} of group '${spec.name}'`,
      { ...hooks, onSettled: () => (this.#handedOver -= 1) },
    );
  }

  #ring(): void {
    const { doorbells } = this.#lane;
    for (let word = 0; word < doorbells.length; word++) {
      if (doorbells[word] === 0) continue;
      this.#options.client.post({ type: 'ring', group: this.#options.spec.id, doorbells: doorbells.slice() });
      doorbells.fill(0);
      return;
    }
  }

  #bind(call: CollectiveCall, whole: LoweredWhole, shared: Partial<Record<BufferName, SharedBuffer>>): LaneOperation {
    const { keyOf: regionKey, view } = this.#options;
    const buffers: Partial<Record<BufferName, LaneBuffer>> = {};
    for (const name of Object.keys(shared) as BufferName[]) {
      const buffer = shared[name];
      if (buffer) buffers[name] = { key: regionKey(buffer.regionId), offset: buffer.offset, view: view(buffer) };
    }
    return this.#lane.bind(call, whole, buffers);
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

/** Control blocks with the lane's slots behind those of the comm threads. */
export function laneBlock(view: Uint8Array, slotCount: number, signalMax: number): ControlBlock {
  return new ControlBlock(view.buffer, view.byteOffset, slotCount + laneSlots, signalMax);
}

function keyOf(call: CollectiveCall, buffers: Partial<Record<BufferName, SharedBuffer>>): string {
  const { kind, dtype, op, count, root, counts, splits, name } = call;
  let key = `${kind} ${dtype} ${op ?? ''} ${count} ${root ?? ''} ${name ?? ''}`;
  if (counts || splits) key += JSON.stringify([counts, splits]);
  for (const buffer of Object.values(buffers)) key += ` ${buffer.regionId} ${buffer.offset} ${buffer.bytes}`;
  return key;
}
