/** Operations of the lane that the main thread left to the comm thread, in the order of their calls. Only the head runs.
 *
 *      main thread: waited long enough ─▶ queue ─▶ adopt (peers' memory as this thread maps it) ─▶ resume … ─▶ done
 *
 *  It must not know the operations that go through the comm thread from the start, nor what becomes of a disagreement. */
import type { ShoalError } from '../base/errors.ts';
import type { CollectiveCall } from './contract.ts';
import {
  Lane,
  privateKey,
  type LaneBuffer,
  type LaneBuffers,
  type LaneName,
  type LaneOperation,
  type LaneOptions,
  type LanePosition,
} from './lane.ts';
import type { Members } from './members.ts';
import type { Buffers } from './operation.ts';
import type { LanePlans } from './plan-runner.ts';
import type { Watched } from './watchdog.ts';

/** An operation of the lane that the main thread did not finish. */
export interface LaneCall {
  readonly sequence: number;
  readonly lane: LaneName;
  /** Position among the calls of the lane. */
  readonly ordinal: number;
  /** Where the main thread left it; at 0: not begun. */
  readonly position: LanePosition;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  /** Whether the buffers are what stands here for private memory of the main thread, and are announced as that. */
  readonly announced: 'shared' | 'private';
  readonly timeoutMs: number;
  complete(error?: ShoalError): void;
}

export interface LaneEntry extends LaneCall, Watched {
  readonly slot: number;
  readonly operation: LaneOperation;
  position: LanePosition;
  /** Peers' memory is bound as this thread maps it. */
  adopted: boolean;
}

export interface LaneQueueOptions {
  readonly lane: LaneOptions;
  readonly members: Members;
  /** Rings the ranks named, one bit each, and clears them. */
  readonly ring: (doorbells: Uint32Array) => void;
  /** Ranks called different things, or this one's call went the lane's way and another's did not. */
  readonly onMismatch: (entry: LaneEntry) => void;
  /** Running the head threw. */
  readonly onThrown: (thrown: unknown, sequence: number) => void;
}

export class LaneQueue {
  readonly #options: LaneQueueOptions;
  readonly #entries: LaneEntry[] = [];
  /** Made on first use: many a group never leaves anything to the comm thread. */
  #made: Lane | undefined;

  constructor(options: LaneQueueOptions) {
    this.#options = options;
  }

  get entries(): readonly LaneEntry[] {
    return this.#entries;
  }

  add(request: LaneCall, plans: LanePlans, submittedMs: number): LaneEntry {
    const entry: LaneEntry = {
      ...request,
      complete: request.complete,
      submittedMs,
      slot: this.#lane.slotOf(request.ordinal),
      operation: this.#lane.bind(request.call, plans, laneBuffers(request), request.position.code),
      warned: false,
      adopted: request.position.pc === 0,
    };
    this.#entries.push(entry);
    return entry;
  }

  /** Continues the head. True when something moved. */
  advance(): boolean {
    if (this.#entries.length === 0) return false;
    const entry = this.#entries[0];
    const { operation, sequence, ordinal } = entry;
    const { ring, onMismatch, onThrown } = this.#options;
    const lane = this.#lane;
    let status;
    try {
      // The other thread bound peers' memory as it maps it; here it is bound anew, once.
      if (!entry.adopted) this.#adopt(entry);
      status = entry.adopted ? lane.resume(operation, sequence, ordinal, entry.position, 0) : 'unmapped';
    } catch (thrown) {
      onThrown(thrown, sequence);
      return false;
    }
    ring(lane.doorbells);
    if (status === 'done') {
      this.#entries.shift();
      entry.complete();
      return true;
    }
    if (status === 'unmapped' && !entry.adopted) return false;
    const position = lane.positionOf(operation);
    const moved = position.pc !== entry.position.pc || position.code !== entry.position.code;
    entry.position = position;
    if (status === 'mismatch' || this.#someoneWentElsewhere(sequence)) onMismatch(entry);
    return moved;
  }

  #adopt(entry: LaneEntry): void {
    const position = this.#lane.adopt(entry.operation, entry.sequence, entry.ordinal, entry.position);
    if (!position) return;
    entry.position = position;
    entry.adopted = true;
  }

  /** Ends all with `error`. */
  abandon(error: ShoalError): void {
    for (const entry of this.#entries.splice(0)) entry.complete(error);
  }

  get #lane(): Lane {
    this.#made ??= new Lane(this.#options.lane);
    return this.#made;
  }

  /** Some rank made its call `sequence` through its comm thread, or left before it, while this rank's is of the lane. */
  #someoneWentElsewhere(sequence: number): boolean {
    const { lane, members } = this.#options;
    return lane.blocks.some(
      (_, rank) => rank !== lane.rank && (members.leftBefore(rank, sequence) || members.tookOther(rank, sequence, lane.name)),
    );
  }
}

function laneBuffers({ buffers, announced }: LaneCall): LaneBuffers {
  const viewed: { -readonly [K in keyof LaneBuffers]: LaneBuffer } = {};
  for (const name of ['data', 'input', 'output'] as const) {
    const buffer = buffers[name];
    if (!buffer) continue;
    const { key, region, offset, bytes } = buffer;
    const view = new Uint8Array(region.buffer, offset, bytes);
    viewed[name] = announced === 'private' ? { key: privateKey, offset: 0, view } : { key, offset, view };
  }
  return viewed;
}
