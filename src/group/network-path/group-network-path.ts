/** The network path of a group in the comm thread, from the group's opening to its end. Every group has one of these; it stays empty if
 *  the ranks do not agree on a network path.
 *
 *      the group opens ─▶ ranks agree (network-path-opening.ts) ─▶ none
 *                                     └─▶ memory, wire, queue (network-path-queue.ts) ─▶ share: the main thread's wire (open-network-path.ts)
 *
 *  It must not know how a group opens, nor how its events are used. */
import { must } from '../../base/assert.ts';
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { exhaustion, isExhaustion, type CheckDescriptors } from '../../base/exhaustion.ts';
import type { Logger } from '../../base/log.ts';
import type { Settings } from '../../base/settings/settings.ts';
import type { NetworkPathRates } from '../../collectives/network-path.ts';
import type { Fabric, TakeDescriptor } from '../../fabric/fabric.ts';
import type { NativeWire } from '../../memory/native-wire.ts';
import type { Region, RegionAllocator } from '../../memory/region.ts';
import type { CallQueue } from '../comm/engine/call-queue.ts';
import type { NetworkPathShare } from '../shared/comm-protocol.ts';
import { networkPathSpec } from './network-path.ts';
import { NetworkPathOpening, type AgreedNetworkPath } from './network-path-opening.ts';
import { NetworkPathQueue, type NetworkPathCommand, type NetworkPathEntry, type NetworkPathQueueOptions } from './network-path-queue.ts';
import { networkPathMemoryBytes, NetworkPathWire } from './network-path-wire.ts';
import type { GroupSpec } from '../shared/call/group-spec.ts';
import type { Members } from '../comm/engine/members.ts';
import type { Planner, WorldPlanning } from '../shared/call/planner.ts';
import type { ControlMessage } from '../comm/links/control-message.ts';

/** What a network path asks of the world of its group. */
export interface NetworkPathWorld extends WorldPlanning {
  readonly rank: number;
  readonly name: string;
  readonly size: number;
  readonly settings: Settings;
  readonly clock: Clock;
  readonly log: Logger;
  readonly allocator: RegionAllocator;
  readonly fabrics: readonly Fabric[];
  readonly wires: NativeWire | undefined;
  readonly checkDescriptors: CheckDescriptors | undefined;
  /** Of groups of all ranks, once one of them has been timed; the same on all ranks. */
  networkPathRates: NetworkPathRates | undefined;
  /** The main thread can use the network path of a group. */
  onNetworkPath(group: number, share: NetworkPathShare): void;
}

export interface GroupNetworkPathOptions extends Pick<
  NetworkPathQueueOptions,
  'members' | 'onReadable' | 'onStarted' | 'onMismatch' | 'onThrown'
> {
  readonly group: GroupSpec;
  readonly world: NetworkPathWorld;
  readonly members: Members;
  /** Of the group; undefined: its collectives are not for a network path. */
  readonly planner: Planner | undefined;
  /** What all ranks have agreed on cannot be had here after all. */
  readonly onUnopened: (thrown: unknown) => void;
}

export class GroupNetworkPath implements CallQueue<NetworkPathEntry> {
  readonly #options: GroupNetworkPathOptions;
  readonly #opening: NetworkPathOpening;
  /** Once all ranks have agreed on a network path. */
  #queue: NetworkPathQueue | undefined;
  /** Of the wires. */
  #memory: Region | undefined;
  #settling = false;

  constructor(options: GroupNetworkPathOptions) {
    this.#options = options;
    this.#opening = this.#createOpening();
  }

  // ── how ranks agree on one ──────────────────────────────────────────────────────────────────────────────────────

  /** Where this rank can be reached for one; empty: it cannot. */
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
    const rank = this.#options.group.globalRanks.indexOf(worldRank);
    if (rank >= 0) this.#opening.onSocket(rank, accept);
  }

  /** All ranks have joined. Tells once, whoever asks again, that there is a network path or none; not after `abandon`. */
  settle(onSettled: () => void): void {
    if (this.#settling) return;
    this.#settling = true;
    this.#opening.agree((agreed) => {
      try {
        if (agreed) this.#open(agreed);
        else this.#memory?.close();
      } catch (thrown) {
        this.#options.onUnopened(thrown);
        return;
      }
      onSettled();
    });
  }

  /** Ranks without which it cannot be agreed on. */
  get awaited(): readonly number[] {
    return this.#opening.awaited;
  }

  // ── calls that the main thread left to this one ─────────────────────────────────────────────────────────────────

  get pending(): readonly NetworkPathEntry[] {
    return this.#queue?.pending ?? [];
  }

  get size(): number {
    return this.#queue?.size ?? 0;
  }

  get runnable(): boolean {
    return this.#queue?.runnable ?? false;
  }

  add(request: NetworkPathCommand, submittedMs: number): NetworkPathEntry {
    return must(this.#queue, () => 'the main thread knows the network path from here').add(request, submittedMs);
  }

  advance(): boolean {
    return this.#queue?.advance() ?? false;
  }

  /** World ranks that have not announced the entry's operation. */
  late(entry: NetworkPathEntry): number[] {
    return this.#queue?.late(entry) ?? [];
  }

  rest(): void {
    this.#queue?.rest();
  }

  abandon(error: ShoalError): void {
    this.#opening.abandon();
    this.#queue?.abandon(error);
  }

  close(): void {
    this.#queue?.close();
    this.#memory?.close();
  }

  // ── its parts ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** A network path is for groups over several hosts whose calls are made on another thread. */
  #createOpening(): NetworkPathOpening {
    const { group, world, members, planner } = this.#options;
    const { wires: native, allocator, clock, settings, fabrics, name, log } = world;
    const sockets = fabrics.find((fabric) => fabric.sockets)?.sockets;
    const { syncBytesMax, contract, commThread, calibration, connectTimeoutMs } = settings;
    const onWires = planner !== undefined && members.networkPeers.length > 0;
    const wanted = onWires && syncBytesMax > 0 && contract === 'standard' && commThread === 'worker';
    return new NetworkPathOpening({
      group,
      world: name,
      means: wanted && native && sockets && allocator.kind === 'shared' ? { native, sockets } : undefined,
      measure: calibration === 'measure' ? { allocator, clock } : undefined,
      known: group.globalRanks.length === world.size ? world.networkPathRates : undefined,
      connectTimeoutMs,
      reserve: () => this.#reserve(),
      tellOthers: (message) => members.tellOthers(message),
      onProblem: (thrown) => {
        const error = exhaustion(`rank ${world.rank}`, thrown, 'opening its network path') ?? ShoalError.from(thrown);
        log[isExhaustion(error) ? 'warn' : 'debug'](`group '${group.name}' has no network path: ${error.message}`);
      },
    });
  }

  /** All that this rank needs beside its sockets. @throws ShoalError `out-of-memory`. */
  #reserve(): void {
    const { group, world } = this.#options;
    const size = group.globalRanks.length;
    // Its sockets, and the main thread's of the same; a few more to watch them, and while they are dialled.
    world.checkDescriptors?.(2 * (size - 1) + 6, `opening the network path of group '${group.name}'`);
    const native = must(world.wires, () => 'who has sockets has the addon');
    this.#memory = world.allocator.create(networkPathMemoryBytes(native, size));
  }

  #open({ descriptors, rates }: AgreedNetworkPath): void {
    const { group, world, members, onReadable, onStarted, onMismatch, onThrown } = this.#options;
    const planner = must(this.#options.planner, () => 'who agrees on a network path has plans');
    const { wires, settings, machine } = world;
    const native = must(wires, () => 'who has sockets has the addon');
    const { rank } = group;
    const { own, signalMax: signalCount } = members;
    const [size, firstSlot] = [group.globalRanks.length, settings.inFlightMax];
    const region = must(this.#memory, () => 'it was reserved before ranks agreed');
    const memory = new Uint8Array(region.buffer, 0, region.bytes);
    const wire = new NetworkPathWire({ native, rank, own, firstSlot, signalCount, memory, descriptors });
    planner.openNetworkPath(networkPathSpec(size, settings.syncBytesMax, rates));
    this.#queue = new NetworkPathQueue({
      networkPath: { rank, size, own, firstSlot, wire, machine },
      planner,
      members,
      onReadable,
      onStarted,
      onMismatch,
      onThrown,
    });
    // Of all ranks there may be further groups, which find the same.
    if (size === world.size) world.networkPathRates ??= rates;
    world.log.debug(`group '${group.name}' has a network path: ${JSON.stringify(rates)}`);
    world.onNetworkPath(group.id, { own: members.nothing.region.share, memory: region.share, rates, descriptors });
  }
}
