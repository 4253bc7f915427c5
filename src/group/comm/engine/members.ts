/** The members of a group as one rank sees them: their links, their control blocks, and their departures.
 *
 *      this rank        its own block, in a region that is announced to all
 *      rank of the host its block, mapped: what it stores is seen at once; it is woken by a doorbell when it sleeps
 *      any other rank   a mirror of its block, kept up by its messages
 *
 *      slots of a block   │ 0 … slotCount − 1: calls through comm threads │ then: calls of the host paths │
 *
 *  It must not know operations, nor the purpose of a query. */
import { must } from '../../../base/assert.ts';
import { ShoalError } from '../../../base/errors.ts';
import { beginPublishedOffset, ControlBlock, controlBlockBytes, type ControlBlockShape } from '../../../collectives/control-block.ts';
import type { RemoteSpan, Span } from '../../../fabric/fabric.ts';
import { decodeHandle } from '../../../fabric/region-handle.ts';
import type { Region, RegionShare } from '../../../memory/region.ts';
import { type GroupSpec, signalMaxOf } from '../../../call/group-spec.ts';
import { blockShape, hostPathOf, type HostPathName } from '../../../call/host-path.ts';
import type { PeerLink } from '../links/peer-link.ts';
import type { SharedRegions } from '../links/shared-regions.ts';
import { encodeControl, type ControlMessage } from '../links/control-message.ts';
import { type BeginHeader } from '../links/wire.ts';

export interface MembersOptions {
  readonly group: GroupSpec;
  /** Links by group rank; undefined for this rank. */
  readonly links: readonly (PeerLink | undefined)[];
  /** Slots for calls that go through comm threads. */
  readonly slotCount: number;
  /** The regions in which this rank's own block is made. */
  readonly regions: SharedRegions;
}

export class Members {
  readonly links: readonly (PeerLink | undefined)[];
  /** Ranks whose control blocks are mirrors. */
  readonly networkPeers: readonly PeerLink[];
  /** Group ranks whose control blocks are mapped. */
  readonly hostPeers: readonly number[];
  /** The region and key of this rank's own block. */
  readonly ownKey: number;
  readonly own: ControlBlock;
  /** Source of writes that carry only their immediate. */
  readonly nothing: Span;
  /** Signals of a slot. */
  readonly signalMax: number;
  readonly #group: GroupSpec;
  readonly #regions: SharedRegions;
  readonly #slotCount: number;
  readonly #blocks: ControlBlock[] = [];
  readonly #blockKeys: number[] = [];
  /** Ranks of this host whose control blocks could not be mapped, and why. */
  readonly #unmapped = new Map<number, ShoalError>();
  readonly #callsAtLeave: (number | undefined)[];
  /** Ranks that have joined, this one included. */
  #joined = 1;
  #rung = 0;

  constructor(options: MembersOptions) {
    const { group, links, slotCount, regions } = options;
    this.#group = group;
    this.#regions = regions;
    this.#slotCount = slotCount;
    this.links = links;
    this.networkPeers = links.filter((link) => link !== undefined && !link.loadStore) as PeerLink[];
    this.hostPeers = links.flatMap((link, rank) => (link?.loadStore ? [rank] : []));
    this.signalMax = signalMaxOf(links.length);
    this.#callsAtLeave = links.map(() => undefined);
    const { key, region } = regions.create(this.#blockBytes);
    this.ownKey = key;
    this.nothing = { region, offset: 0, bytes: 0 };
    this.own = this.#beginAt(this.#block(region.buffer));
    this.#blocks[group.rank] = this.own;
  }

  /** Control blocks by group rank; ranks that have not opened yet are missing. */
  get blocks(): readonly ControlBlock[] {
    return this.#blocks;
  }

  // ── who is there ────────────────────────────────────────────────────────────────────────────────────────────────

  /** A rank says in which region its control block lies. @throws ShoalError `protocol` the second time, or when it does not fit. */
  join(rank: number, key: number): void {
    const link = must(this.links[rank], () => 'another rank opens');
    if (this.#blocks[rank]) throw new ShoalError('protocol', `rank ${rank} opened group '${this.#group.name}' twice`);
    this.#blockKeys[rank] = key;
    const mapped = link.loadStore ? this.#mapBlock(rank, key) : undefined;
    this.#blocks[rank] = mapped ?? this.#beginAt(this.#block(new ArrayBuffer(this.#blockBytes)));
    this.#joined += 1;
  }

  /** Maps the control block of a rank; undefined where its memory is gone: the rank has left or died, which its link tells later. */
  #mapBlock(rank: number, key: number): ControlBlock | undefined {
    const link = must(this.links[rank], () => 'another rank opens');
    let region: Region;
    try {
      region = link.map(key);
    } catch (thrown) {
      const peer = this.#group.globalRanks[rank];
      const error = ShoalError.from(thrown);
      const message = `memory of rank ${peer} cannot be used by group '${this.#group.name}': ${error.message}`;
      this.#unmapped.set(rank, new ShoalError(error.code, message, { peer, cause: error }));
      return undefined;
    }
    if (this.#blockBytes > region.bytes) throw new ShoalError('protocol', `control block of rank ${rank} does not fit its region`);
    return this.#block(region.buffer);
  }

  /** The reason for which some rank that is still there cannot take part; undefined: all can. */
  get unusable(): ShoalError | undefined {
    for (const [rank, error] of this.#unmapped) if (this.#callsAtLeave[rank] === undefined) return error;
    return undefined;
  }

  /** All ranks have joined. */
  get complete(): boolean {
    return this.#joined === this.links.length;
  }

  /** World ranks that have not joined. */
  get missing(): number[] {
    return this.#group.globalRanks.filter((_, rank) => !this.#blocks[rank]);
  }

  /** A rank has made `calls` calls on the group and will make no more. */
  leave(rank: number, calls: number): void {
    this.#callsAtLeave[rank] = calls;
  }

  /** Calls each rank made before it left; undefined while it stays. */
  get callsAtLeave(): readonly (number | undefined)[] {
    return this.#callsAtLeave;
  }

  /** World ranks that have left. */
  get left(): ReadonlySet<number> {
    return new Set(this.#group.globalRanks.filter((_, rank) => this.#callsAtLeave[rank] !== undefined));
  }

  /** The reason for which this group rank (undefined: any) takes part in no further transfer; undefined while it may. */
  departed(rank: number | undefined): ShoalError | undefined {
    if (rank !== undefined) return this.#callsAtLeave[rank] === undefined ? undefined : this.leftError(rank);
    for (let other = 0; other < this.links.length; other++)
      if (this.links[other] !== undefined && this.#callsAtLeave[other] === undefined) return undefined;
    return new ShoalError('peer-lost', `all other ranks left group '${this.#group.name}' before they took part in a transfer`);
  }

  leftError(rank: number): ShoalError {
    const { [rank]: peer } = this.#group.globalRanks;
    return new ShoalError('peer-lost', `rank ${peer} left group '${this.#group.name}' before it took part in a transfer`, { peer });
  }

  /** Every other rank has left, or is gone. */
  get deserted(): boolean {
    return this.links.every((link, rank) => link === undefined || link.closed || this.#callsAtLeave[rank] !== undefined);
  }

  /** Gives this rank's block back, at which nobody looks any more. */
  end(): void {
    this.#regions.remove(this.ownKey);
  }

  // ── which way a call went ───────────────────────────────────────────────────────────────────────────────────────

  /** The rank made its call `sequence` otherwise than on this path, or left without making it. A group has a host path or a network path,
   *  whose slots are the same: on the network path, what another rank has announced there is its call on that path. */
  wentElsewhere(rank: number, sequence: number, path: HostPathName | 'network' | 'engine'): boolean {
    const calls = this.#callsAtLeave[rank];
    if (calls !== undefined && calls <= sequence) return true;
    const block = this.#blocks[rank];
    if (path !== 'engine') for (let slot = 0; slot < this.#slotCount; slot++) if (block.holds(slot, sequence)) return true;
    const taken = path === 'network' ? undefined : hostPathOf(block, this.#slotCount, sequence);
    return taken !== undefined && taken !== path;
  }

  /** The first other rank that has not announced its call `sequence` in `slot`; undefined: all have. */
  firstLate(slot: number, sequence: number): number | undefined {
    for (let rank = 0; rank < this.#blocks.length; rank++)
      if (rank !== this.#group.rank && !this.#blocks[rank].holds(slot, sequence)) return rank;
    return undefined;
  }

  /** World ranks that have not announced their call `sequence` in `slot`. */
  late(slot: number, sequence: number): number[] {
    return this.#group.globalRanks.filter((_, rank) => !this.#blocks[rank].holds(slot, sequence));
  }

  /** World ranks that may not have finished an operation which all have announced. @param ordinal of the engine's; undefined: another
   *  path's, of which only this is known. */
  unfinished(ordinal: number | undefined): number[] {
    return this.#group.globalRanks.filter((_, rank) => {
      if (rank === this.#group.rank || this.#callsAtLeave[rank] !== undefined) return false;
      return ordinal === undefined || !this.#blocks[rank].hasCompleted(ordinal + 1);
    });
  }

  worldRanks(ranks: readonly number[]): number[] {
    return ranks.map((rank) => this.#group.globalRanks[rank]);
  }

  // ── what they are told, and where their memory is ───────────────────────────────────────────────────────────────

  tellOthers(message: ControlMessage): void {
    const bytes = encodeControl(message);
    for (const link of this.links) link?.post(bytes);
  }

  ring(rank: number): void {
    this.#rung += 1;
    this.links[rank]?.ring();
  }

  /** Rings the ranks whose bits are set, and clears the bits. @returns whether this rank's was set. */
  ringAll(doorbells: Uint32Array): boolean {
    let isOwn = false;
    for (let word = 0; word < doorbells.length; word++) {
      for (let bits = doorbells[word]; bits !== 0; bits &= bits - 1) {
        const rank = word * 32 + 31 - Math.clz32(bits & -bits);
        if (rank === this.#group.rank) isOwn = true;
        else this.ring(rank);
      }
      doorbells[word] = 0;
    }
    return isOwn;
  }

  /** Bells rung so far. They leave when the turn of the event loop ends. */
  get rung(): number {
    return this.#rung;
  }

  /** Rings the ranks of this host that sleep: something in this rank's block has changed. */
  wakeSleeping(): void {
    for (const rank of this.hostPeers) if (this.#blocks[rank].sleeping) this.ring(rank);
  }

  /** The target of writes to a rank that carry only their immediate. */
  blockSpan(rank: number): RemoteSpan {
    const link = must(this.links[rank], () => 'another rank is written to');
    return { region: link.remote(this.#blockKeys[rank]), offset: 0 };
  }

  /** A region of a rank of this host, as PeerLink has it. */
  memory(rank: number, key: number): Uint8Array | undefined {
    const link = must(this.links[rank], () => 'memory of another rank is asked for');
    return link.memory(key);
  }

  /** The shares by which another thread of this process maps the blocks; undefined unless all ranks are there and share memory. */
  shares(): RegionShare[] | undefined {
    if (this.networkPeers.length > 0 || this.#unmapped.size > 0) return undefined;
    return this.links.map((link, rank) => {
      if (link === undefined) return this.nothing.region.share;
      return decodeHandle(link.remote(this.#blockKeys[rank]).handle);
    });
  }

  // ── what they say: bytes from outside, checked ──────────────────────────────────────────────────────────────────

  /** A signal for this rank's own block. */
  raise(slot: number, signal: number): void {
    if (slot >= this.#slotCount || signal >= this.signalMax)
      throw new ShoalError('protocol', `signal ${signal} of slot ${slot} does not exist`);
    this.own.raise(slot, signal);
  }

  /** A call, for the mirror of the caller's block. */
  mirrorBegin(rank: number, { slot, completed }: BeginHeader, announced: Uint8Array): void {
    const block = this.#blocks[rank];
    if (!block || this.links[rank]?.loadStore) throw new ShoalError('protocol', 'unexpected begin message');
    const published = new DataView(announced.buffer, announced.byteOffset, announced.byteLength).getUint32(beginPublishedOffset, true);
    if (slot >= this.#slotCount) throw new ShoalError('protocol', `begin message for slot ${slot}, which does not exist`);
    block.completed = completed;
    // The announcement itself is stored last, by publish; nobody but this thread reads the mirror.
    block.slot(slot).set(announced);
    block.publish(slot, published);
  }

  /** Finished calls, for the mirror of a rank's block. */
  mirrorCompleted(rank: number, completed: number): void {
    if (!this.#blocks[rank]) throw new ShoalError('protocol', 'unexpected completed message');
    this.#blocks[rank].completed = completed;
  }

  get #shape(): ControlBlockShape {
    return blockShape(this.#group, { slotCount: this.#slotCount, signalMax: this.signalMax });
  }

  get #blockBytes(): number {
    return controlBlockBytes(this.#shape);
  }

  /** Begins a block as if so many calls had been made and ended. */
  #beginAt(block: ControlBlock): ControlBlock {
    const { callsBefore = 0 } = this.#group;
    // All of a new block is zero.
    if (callsBefore === 0) return block;
    block.completed = callsBefore;
    block.called = callsBefore;
    for (let slot = 0; slot < this.#slotCount; slot++) block.publish(slot, callsBefore);
    return block;
  }

  #block(buffer: ArrayBufferLike): ControlBlock {
    return new ControlBlock(buffer, 0, this.#shape);
  }
}
