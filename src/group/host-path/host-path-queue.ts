/** Operations of the host path that the main thread handed over to the comm thread, in the order of their calls. Only the head runs.
 *
 *      main thread: waited long enough ─▶ queue ─▶ adopt (peers' memory as this thread maps it) ─▶ resume … ─▶ done
 *                   is not to wait     ─▶ queue ─▶ start … ─▶ done
 *
 *  It must not know the operations that start in the comm thread, nor how a disagreement is handled. */
import { BoundedCache } from '../../base/bounded-cache.ts';
import type { ShoalError } from '../../base/errors.ts';
import type { CallQueue } from '../comm/engine/call-queue.ts';
import type { CollectiveCall } from '../shared/call/contract.ts';
import {
  HostPath,
  operationKey,
  privateKey,
  type HostPathBuffer,
  type HostPathBuffers,
  type HostPathName,
  type HostPathOperation,
  type HostPathPosition,
} from './host-path.ts';
import type { GroupContext } from '../comm/engine/group-context.ts';
import type { Buffers } from '../comm/engine/operation.ts';
import type { HostPathPlans } from '../shared/call/planner.ts';
import type { Watched } from '../comm/diagnosis/watchdog.ts';
import type { Movement } from '../../trace/traffic.ts';

/** An operation of the host path that the main thread did not finish. */
export interface HostPathCall {
  readonly sequence: number;
  readonly hostPath: HostPathName;
  /** Position among the calls of the host path. */
  readonly ordinal: number;
  /** The position at which the calling thread left it; at 0: not begun. */
  readonly position: HostPathPosition;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  /** Whether the buffers are what stands here for private memory of the main thread, and are announced as that. */
  readonly announced: 'shared' | 'private';
  readonly timeoutMs: number;
  complete(error?: ShoalError): void;
}

export interface HostPathEntry extends HostPathCall, Watched {
  readonly slot: number;
  readonly plans: HostPathPlans;
  readonly path: 'host path';
  /** All ranks have announced it. */
  started: boolean;
  /** The last rank that was seen not to have announced it. */
  waitedFor: number | undefined;
  /** The algorithm of the code that it is in. */
  readonly algorithm: string;
  readonly movements: readonly Movement[];
  /** Undefined until it is the head. */
  operation: HostPathOperation | undefined;
  position: HostPathPosition;
  /** Peers' memory is bound as this thread maps it. */
  adopted: boolean;
  /** It has waited in vain where it stands. */
  sleeps: boolean;
}

/** Operations kept bound to their buffers. */
const boundMax = 64;
/** The length of a patient wait. It is fruitless once, at most: then the head sleeps until it has moved. */
const nsPerPatientByte = 0.05;
const patienceNsMax = 5e6;

export class HostPathQueue implements CallQueue<HostPathEntry> {
  readonly #group: GroupContext;
  readonly #name: HostPathName;
  readonly #entries: HostPathEntry[] = [];
  readonly #bound = new BoundedCache<string, HostPathOperation>(boundMax);
  /** Made on first use: many a group never leaves anything to the comm thread. */
  #made: HostPath | undefined;

  constructor(group: GroupContext, name: HostPathName) {
    this.#group = group;
    this.#name = name;
  }

  get pending(): readonly HostPathEntry[] {
    return this.#entries;
  }

  get size(): number {
    return this.#entries.length;
  }

  add(request: HostPathCall, plans: HostPathPlans, submittedMs: number): HostPathEntry {
    const entry: HostPathEntry = {
      ...request,
      complete: request.complete,
      submittedMs,
      slot: this.#hostPath.slotOf(request.ordinal),
      plans,
      operation: undefined,
      path: 'host path',
      started: false,
      waitedFor: undefined,
      get algorithm() {
        return plans.algorithms[this.position.code];
      },
      get movements() {
        return this.operation?.bound.whole.movements ?? [];
      },
      adopted: request.position.pc === 0,
      sleeps: false,
    };
    this.#entries.push(entry);
    return entry;
  }

  get runnable(): boolean {
    return this.#entries.length > 0;
  }

  /** Continues the head. */
  advance(): boolean {
    if (this.#entries.length === 0) return false;
    const entry = this.#entries[0];
    const { sequence, ordinal } = entry;
    const group = this.#group;
    const hostPath = this.#hostPath;
    entry.operation ??= this.#bind(entry);
    const { operation } = entry;
    this.#noteStart(entry);
    let status;
    try {
      // The other thread bound peers' memory as it maps it; here it is bound anew, once.
      if (!entry.adopted) this.#adopt(entry, operation);
      status = entry.adopted
        ? hostPath.resume(operation, sequence, ordinal, entry.position, this.#patienceNs(entry, operation))
        : 'unmapped';
    } catch (thrown) {
      group.suspect(thrown, sequence);
      return false;
    }
    group.ring(hostPath.doorbells);
    if (status === 'done') {
      this.#start(entry);
      this.#entries.shift();
      entry.complete();
      return true;
    }
    if (status === 'unmapped' && !entry.adopted) return false;
    const position = hostPath.positionOf(operation);
    const moved = position.pc !== entry.position.pc || position.code !== entry.position.code;
    entry.position = position;
    entry.sleeps = !moved;
    if (status === 'mismatch' || this.#someoneWentElsewhere(sequence)) group.disagree(entry);
    return moved;
  }

  #patienceNs(entry: HostPathEntry, { bytes }: HostPathOperation): number {
    const { spinMs, world } = this.#group;
    // Where work is drawn apart from waiting, native code does not wait for the beginning of the work.
    if (world.env.recorder.trace.enabled && !entry.started) return 0;
    // Where ranks outnumber CPUs, waits of native code give the CPU to other ranks: the head waits about as long as the operation takes
    // before the thread sleeps. Every bell costs both sides a cold start of JavaScript. Without the addon, of which wires are a part,
    // waits would keep the CPU.
    const isPatient = spinMs === 0 && world.env.wires !== undefined;
    return isPatient && !entry.sleeps ? Math.min(patienceNsMax, bytes * nsPerPatientByte) : spinMs * 1e6;
  }

  #noteStart(entry: HostPathEntry): void {
    if (entry.started) return;
    const late = this.#group.members.firstLate(entry.slot, entry.sequence);
    if (late === undefined) this.#start(entry);
    else entry.waitedFor = late;
  }

  #start(entry: HostPathEntry): void {
    if (entry.started) return;
    entry.started = true;
    this.#group.started(entry);
  }

  #adopt(entry: HostPathEntry, operation: HostPathOperation): void {
    const position = this.#hostPath.adopt(operation, entry.ordinal, entry.position);
    if (!position) return;
    entry.position = position;
    entry.adopted = true;
  }

  late({ slot, sequence }: HostPathEntry): number[] {
    return this.#group.members.late(slot, sequence);
  }

  abandon(error: ShoalError): void {
    for (const entry of this.#entries.splice(0)) entry.complete(error);
  }

  /** Done for the head alone, so that an operation called twice in a row can be one. */
  #bind(entry: HostPathEntry): HostPathOperation {
    const { call, plans, announced, position } = entry;
    const buffers = hostPathBuffers(entry);
    if (announced === 'private' || position.code === 'private') return this.#hostPath.bind(call, plans, buffers, position.code);
    const key = operationKey(call, buffers);
    const known = this.#bound.get(key);
    if (known?.bound.name === position.code) return known;
    return this.#bound.put(key, this.#hostPath.bind(call, plans, buffers, position.code));
  }

  get #hostPath(): HostPath {
    this.#made ??= this.#make();
    return this.#made;
  }

  #make(): HostPath {
    const { rank, size, blocks, members, spinMs, world } = this.#group;
    const { machine, settings } = world.env;
    return new HostPath({
      name: this.#name,
      rank,
      size,
      blocks,
      slotCount: settings.inFlightMax,
      machine,
      yields: spinMs === 0,
      peerRegion: (peer, key) => members.memory(peer, key),
    });
  }

  /** Some rank made its call `sequence` through its comm thread, or left before it, while this rank's is of the host path. */
  #someoneWentElsewhere(sequence: number): boolean {
    const { blocks, rank: own, members } = this.#group;
    return blocks.some((_, rank) => rank !== own && (members.leftBefore(rank, sequence) || members.tookOther(rank, sequence, this.#name)));
  }
}

function hostPathBuffers({ buffers, announced }: Pick<HostPathCall, 'buffers' | 'announced'>): HostPathBuffers {
  const viewed: { -readonly [K in keyof HostPathBuffers]: HostPathBuffer } = {};
  for (const name of ['data', 'input', 'output'] as const) {
    const buffer = buffers[name];
    if (!buffer) continue;
    const { key, region, offset, bytes } = buffer;
    const view = new Uint8Array(region.buffer, offset, bytes);
    viewed[name] = announced === 'private' ? { key: privateKey, offset: 0, view } : { key, offset, view };
  }
  return viewed;
}
