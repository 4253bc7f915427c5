/** The network path of a group in the comm thread, from the group's opening to its end. Every group has one of these; it stays empty if
 *  the ranks do not agree on a network path.
 *
 *      the group opens ─▶ ranks agree (network-path-opening.ts) ─▶ none
 *                                     └─▶ memory, wire ─▶ share: the calling thread's wire (network-path-caller.ts)
 *      calling thread: waited long enough ─▶ queue ─▶ begin, if that is still to be done ─▶ advance … ─▶ done
 *
 *  Calls that the calling thread handed over run in their order, only the head. While there are some, the event loop watches the sockets.
 *  It must not know how a group opens, nor how a disagreement is handled. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { exhaustion, isExhaustion } from '../../base/exhaustion.ts';
import type { TakeDescriptor } from '../../fabric/fabric.ts';
import type { Region } from '../../memory/region.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { Movement } from '../../trace/traffic.ts';
import type { Watched } from '../comm/diagnosis/watchdog.ts';
import type { CallQueue } from '../comm/engine/call-queue.ts';
import type { GroupContext } from '../comm/engine/group-context.ts';
import type { Buffers } from '../comm/engine/operation.ts';
import type { ControlMessage } from '../comm/links/control-message.ts';
import type { CollectiveCall } from '../shared/call/contract.ts';
import { Planner } from '../shared/call/planner.ts';
import { NetworkPathOpening, type AgreedNetworkPath } from './network-path-opening.ts';
import {
  NetworkPath,
  networkPathMemoryBytes,
  networkPathSpec,
  NetworkPathWire,
  type NetworkPathBuffers,
  type NetworkPathOperation,
  type NetworkPathProgress,
} from './network-path.ts';

/** An operation of the network path that the calling thread did not finish. */
export interface NetworkPathCommand {
  readonly sequence: number;
  /** Position among the calls of the network path. */
  readonly ordinal: number;
  /** The progress so far; undefined: this rank has not begun it. */
  readonly progress: NetworkPathProgress | undefined;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  readonly timeoutMs: number;
  complete(error?: ShoalError): void;
}

export interface NetworkPathEntry extends NetworkPathCommand, Watched {
  readonly operation: NetworkPathOperation;
  readonly path: 'network path';
  readonly algorithm: string;
  readonly movements: readonly Movement[];
  begun: boolean;
  /** All ranks have announced it. */
  started: boolean;
  /** The last rank that was seen not to have announced it. */
  waitedFor: number | undefined;
}

const noPatience = { spinNs: 0, sleepMs: 0 };

export class NetworkPathQueue implements CallQueue<NetworkPathEntry> {
  readonly #group: GroupContext;
  readonly #opening: NetworkPathOpening;
  readonly #entries: NetworkPathEntry[] = [];
  /** Memory of the wires. */
  #memory: Region | undefined;
  /** Made once all ranks have agreed on a network path. */
  #open: { readonly path: NetworkPath; readonly wire: NetworkPathWire; readonly planner: Planner } | undefined;
  #settling = false;

  constructor(group: GroupContext) {
    this.#group = group;
    this.#opening = this.#createOpening();
  }

  // ── how ranks agree on one ──────────────────────────────────────────────────────────────────────────────────────

  /** Addresses at which this rank can be reached for one; empty: it cannot. */
  get candidates(): readonly string[] {
    return this.#opening.candidates;
  }

  /** Another rank joins the group. */
  onJoined(rank: number, candidates: readonly string[]): void {
    this.#opening.note(rank, candidates);
  }

  onControl(rank: number, message: Extract<ControlMessage, { type: 'network-path-ready' | 'network-path-timed' }>): void {
    if (message.type === 'network-path-ready') this.#opening.onReady(rank, message);
    else this.#opening.onTimed(rank, message.timings);
  }

  /** Another rank of the world has opened a socket for this group. */
  onSocket(worldRank: number, accept: (take: TakeDescriptor) => number): void {
    const rank = this.#group.spec.globalRanks.indexOf(worldRank);
    if (rank >= 0) this.#opening.onSocket(rank, accept);
  }

  /** All ranks have joined. Tells once, however often it is called, that there is a network path or none; not after `abandon`. */
  settle(onSettled: () => void): void {
    if (this.#settling) return;
    this.#settling = true;
    this.#opening.agree((agreed) => {
      try {
        if (agreed) this.#openFor(agreed);
        else this.#memory?.close();
      } catch (thrown) {
        this.#group.suspect(thrown);
        return;
      }
      onSettled();
    });
  }

  /** Ranks without which it cannot be agreed on. */
  get awaited(): readonly number[] {
    return this.#opening.awaited;
  }

  /** A network path is for groups over several hosts whose calls are made on another thread. */
  #createOpening(): NetworkPathOpening {
    const { spec: group, world, members, plans } = this.#group;
    const { wires: native, allocator, clock, settings, fabrics, name, log, rank, size } = world.env;
    const sockets = fabrics.find((fabric) => fabric.sockets)?.sockets;
    const { syncBytesMax, contract, commThread, calibration, connectTimeoutMs } = settings;
    const hasPlans = plans instanceof Planner && group.scheduling === undefined && members.networkPeers.length > 0;
    const wanted = hasPlans && syncBytesMax > 0 && contract === 'standard' && commThread === 'worker';
    return new NetworkPathOpening({
      group,
      world: name,
      means: wanted && native && sockets && allocator.kind === 'shared' ? { native, sockets } : undefined,
      measure: calibration === 'measure' ? { allocator, clock } : undefined,
      known: group.globalRanks.length === size ? world.networkPathRates : undefined,
      connectTimeoutMs,
      reserve: () => this.#reserve(),
      tellOthers: (message) => members.tellOthers(message),
      onProblem: (thrown) => {
        const error = exhaustion(`rank ${rank}`, thrown, 'opening its network path') ?? ShoalError.from(thrown);
        log[isExhaustion(error) ? 'warn' : 'debug'](`group '${group.name}' has no network path: ${error.message}`);
      },
    });
  }

  /** Reserves all that this rank needs beside its sockets. @throws ShoalError `out-of-memory`. */
  #reserve(): void {
    const { spec, size, world } = this.#group;
    const { checkDescriptors, wires, allocator } = world.env;
    // Its sockets, and the calling thread's of the same; a few more to watch them, and while they are dialled.
    checkDescriptors?.(2 * (size - 1) + 6, `opening the network path of group '${spec.name}'`);
    const native = must(wires, () => 'a rank with sockets has the addon');
    this.#memory = allocator.create(networkPathMemoryBytes(native, size));
  }

  #openFor({ descriptors, rates }: AgreedNetworkPath): void {
    const { spec, rank, size, world, members, plans } = this.#group;
    const { wires, settings, machine, log } = world.env;
    const planner = must(plans instanceof Planner ? plans : undefined, () => 'a rank that agrees on a network path has plans');
    const native = must(wires, () => 'a rank with sockets has the addon');
    const region = must(this.#memory, () => 'it was reserved before ranks agreed');
    const { own, signalMax: signalCount } = members;
    const firstSlot = settings.inFlightMax;
    const memory = new Uint8Array(region.buffer, 0, region.bytes);
    const wire = new NetworkPathWire({ native, rank, own, firstSlot, signalCount, memory, descriptors });
    planner.openNetworkPath(networkPathSpec(size, settings.syncBytesMax, rates));
    this.#open = { path: new NetworkPath({ rank, size, own, firstSlot, wire, machine }), wire, planner };
    // Further groups of all ranks find the same.
    if (size === world.env.size) world.networkPathRates ??= rates;
    log.debug(`group '${spec.name}' has a network path: ${JSON.stringify(rates)}`);
    const share = { own: members.nothing.region.share, memory: region.share, rates, descriptors };
    world.env.tell({ type: 'network-path', group: spec.id, share });
  }

  // ── calls that the calling thread left to this one ──────────────────────────────────────────────────────────────

  get pending(): readonly NetworkPathEntry[] {
    return this.#entries;
  }

  get size(): number {
    return this.#entries.length;
  }

  get runnable(): boolean {
    return this.#entries.length > 0;
  }

  add(request: NetworkPathCommand, submittedMs: number): NetworkPathEntry {
    const { path, planner } = must(this.#open, () => 'the calling thread knows the network path from here');
    const operation = path.bind(request.call, planner.prepare(request.call, 'network'), viewsOf(request.buffers));
    Object.assign(operation.progress, request.progress);
    const entry: NetworkPathEntry = {
      ...request,
      complete: request.complete,
      submittedMs,
      operation,
      begun: request.progress !== undefined,
      path: 'network path',
      started: false,
      waitedFor: undefined,
      algorithm: operation.algorithm,
      movements: operation.lowered.movements,
    };
    this.#entries.push(entry);
    return entry;
  }

  /** Continues the head. */
  advance(): boolean {
    const entry = this.#entries.at(0);
    if (entry === undefined || this.#open === undefined) return false;
    const { path, wire } = this.#open;
    const group = this.#group;
    const { operation, sequence, ordinal } = entry;
    this.#noteStart(path, entry);
    try {
      wire.watch(this.#onReadable, { on: true });
      if (!entry.begun) path.begin(operation, sequence, ordinal);
      entry.begun = true;
      path.announceToAll(operation, ordinal);
      const status = path.advance(operation, sequence, ordinal, noPatience);
      if (status === 'done') {
        this.#start(entry);
        this.#entries.shift();
        // Before the calling thread hears of it: the sockets are its again then.
        if (this.#entries.length === 0) this.rest();
        entry.complete();
        return true;
      }
      if (status === 'mismatch' || this.#someoneWentElsewhere(sequence)) group.disagree(entry);
      else if (status === 'ended') this.#lost(entry);
    } catch (thrown) {
      group.suspect(thrown, sequence);
    }
    return false;
  }

  readonly #onReadable = (): void => this.#group.onReadable();

  #noteStart(path: NetworkPath, entry: NetworkPathEntry): void {
    if (entry.started) return;
    const late = path.late(entry.ordinal).find((rank) => rank !== this.#group.rank);
    if (late === undefined) this.#start(entry);
    else entry.waitedFor = late;
  }

  #start(entry: NetworkPathEntry): void {
    if (entry.started) return;
    entry.started = true;
    this.#group.started(entry);
  }

  /** World ranks that have not announced the entry's operation. */
  late({ ordinal }: NetworkPathEntry): number[] {
    return this.#open ? this.#group.members.worldRanks(this.#open.path.late(ordinal)) : [];
  }

  /** Stops watching until the head advances again. Nobody reads what comes now, and the loop would call without end. */
  rest(): void {
    this.#open?.wire.watch(this.#onReadable, { on: false });
  }

  abandon(error: ShoalError): void {
    this.#opening.abandon();
    this.rest();
    for (const entry of this.#entries.splice(0)) entry.complete(error);
  }

  close(): void {
    this.#open?.wire.close();
    this.#memory?.close();
  }

  #lost(entry: NetworkPathEntry): void {
    const late = this.late(entry);
    this.rest();
    const error = new ShoalError('peer-lost', `the network path sockets of rank ${late.join(', ')} have ended`, { peer: late.at(0) });
    this.#group.suspect(error, entry.sequence);
  }

  /** Some rank made its call `sequence` another way, or left before it. */
  #someoneWentElsewhere(sequence: number): boolean {
    const { members, rank: own } = this.#group;
    return members.links.some((_, rank) => rank !== own && (members.leftBefore(rank, sequence) || members.tookCommThread(rank, sequence)));
  }
}

function viewsOf(buffers: Buffers): NetworkPathBuffers {
  const views: NetworkPathBuffers = {};
  for (const name of Object.keys(buffers) as BufferName[]) {
    const buffer = buffers[name];
    if (buffer) views[name] = new Uint8Array(buffer.region.buffer, buffer.offset, buffer.bytes);
  }
  return views;
}
