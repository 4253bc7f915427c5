/** Synchronises the copies of server groups (distributed Hogwild). For every slot, one group's copy is
 *  the master. Another group sends the sum of its contributions so far, the master replies with its values.
 *
 *    requester   value = base + own                own: the sum of the changes its workers made
 *       │   own ──────────────▶  master   value += own − included;  included := own
 *       │   ◀────────────────── value M
 *    base := M − own as sent;  value := base + own      (changes made meanwhile stay in `own`)
 *
 *  A group sends a slot after `syncEvery` updates of its own, and fewer when `syncMs` have passed. A master
 *  notifies the groups with an older copy, which then ask: twice `syncMs` after the last update all groups
 *  have the sum of all updates.
 *
 *  Loading a state begins a new *generation*: its values are the base of all groups, without contributions. Messages
 *  of another generation are ignored.
 *
 *  SINGA sends differences since the last exchange and forgets changes made while one is in flight. Totals cannot be lost
 *  or counted twice: a request that is repeated, that belongs to a server which died, or that is overtaken by a restart
 *  from an older snapshot is put right by the next. */
import type { Timer } from '../../../base/clock.ts';
import { ShoalError } from '../../../base/errors.ts';
import { dtypeInfo, type DType } from '../../../memory/dtype.ts';
import type { Msg } from '../../../messaging/msg.ts';
import type { ServerParts } from './server-options.ts';
import { decodeSlotTable, encodeSlotTable, type SlotCount } from './slot-table.ts';
import { masterGroupOf } from '../../protocol/topology.ts';
import { elements } from '../../protocol/value-space.ts';
import { KVMessage, malformed } from '../../protocol/wire.ts';

/** Values of one request. The rest waits for the next. */
const requestBytesMax = 64 * 2 ** 20;
/** (target + plus) − minus would lose more bits than target + (plus − minus). */
const differenceTree = [0, 1, 2, -1, -1];

export interface Exchange {
  readonly number: number;
  /** The incarnation of the server that began it. */
  readonly incarnation: number;
  readonly slots: readonly number[];
  /** `own` of these slots, side by side, as sent; and how many updates that was. */
  readonly own: Uint8Array;
  readonly counts: readonly number[];
}

export class GroupSync {
  readonly #parts: ServerParts;
  readonly #master: number;
  /** Base values of a requester, by slab. */
  readonly base: Uint8Array[] = [];
  /** First values at group 0, by slab: those that worker 0 gave, with nobody's contribution, for servers that have nothing yet. */
  readonly first: Uint8Array[] = [];
  /** The request of worker 0 that loaded what everything is counted from; 0 when nothing was loaded. */
  generation = 0;
  /** Numbers by slot: updates by our own workers, those since the last request, and those that the master has said to have. What was
   *  loaded counts as updates of the master's group, so that the sum over all groups is the version. */
  readonly own: number[] = [];
  readonly #since: number[] = [];
  readonly #answered: number[] = [];
  readonly #due = new Set<number>();
  /** Changed by our workers, fewer times than makes them due. */
  readonly #late = new Set<number>();
  /** Announced as changed, and not known here yet. */
  readonly #unknown = new Set<number>();
  #timer: Timer | undefined;
  #exchange: Exchange | undefined;
  #number = 0;
  /** Contributions of each requesting group in the master's values, by slab; and the number of their updates, by slot. */
  readonly included = new Map<number, { readonly values: Uint8Array[]; readonly counts: number[] }>();
  /** The versions that the master has told of, by group and slot. */
  readonly #told: number[][] = [];
  /** Requests about slots, or of a generation, that we have not got yet: one per group. */
  readonly #early = new Map<number, Msg>();

  constructor(parts: ServerParts) {
    this.#parts = parts;
    this.#master = masterGroupOf(parts.options.topology, parts.options.server);
  }

  /** Whether this server sends requests. */
  get requests(): boolean {
    return this.#parts.options.topology.serverGroups > 1 && this.#master !== this.#parts.options.group;
  }

  get #active(): boolean {
    return this.#parts.options.topology.serverGroups > 1;
  }

  /** New slots have their first values. */
  grow(): void {
    if (!this.#active) return;
    const { slots } = this.#parts;
    while (this.own.length < slots.count) {
      this.own.push(0);
      this.#since.push(0);
      this.#answered.push(0);
    }
    for (let slab = this.base.length; this.requests && slab < slots.slabs.length; slab++) {
      this.base.push(Uint8Array.from(slots.slabs[slab].memory.bytes));
    }
    for (let slab = this.first.length; this.#parts.options.group === 0 && slab < slots.slabs.length; slab++) {
      this.first.push(Uint8Array.from(slots.slabs[slab].memory.bytes));
    }
    for (const group of this.included.values()) this.#growIncluded(group);
    for (const slot of this.#unknown) if (slot < slots.count) this.#due.add(slot);
    for (const slot of this.#due) this.#unknown.delete(slot);
  }

  /** Our workers have changed slots. */
  applied(from: number, to: number): void {
    if (!this.#active) return;
    for (let slot = from; slot < to; slot++) {
      this.own[slot]++;
      this.#since[slot]++;
      if (!this.requests) continue;
      if (this.#since[slot] >= this.#parts.options.syncEvery) this.#due.add(slot);
      else this.#late.add(slot);
    }
    this.#wake();
  }

  /** Sees to it that `#tick` runs before long. */
  #wake(): void {
    const { clock, syncMs } = this.#parts.options;
    if (this.#active) this.#timer ??= clock.setTimer(syncMs, () => this.#tick());
  }

  #tick(): void {
    this.#timer = undefined;
    for (const slot of this.#late) this.#due.add(slot);
    this.#late.clear();
    if (!this.requests) this.#sendNotices();
    this.#parts.actions.onDue();
  }

  /** Tells every group whose copy is older than the master's which slots are newer, and their versions. */
  #sendNotices(): void {
    const { options, actions, slots } = this.#parts;
    const { topology, group } = options;
    for (let other = 0; other < topology.serverGroups; other++) {
      if (other === group) continue;
      const told = (this.#told[other] ??= []);
      const stale: number[] = [];
      for (let slot = 0; slot < this.own.length; slot++) if (slots.version[slot] > (told[slot] ?? 0)) stale.push(slot);
      if (stale.length === 0) continue;
      const versions = stale.map((slot) => slots.version[slot]);
      for (const [k, slot] of stale.entries()) told[slot] = versions[k];
      actions.send(other, { type: KVMessage.syncNotice, frames: [this.#table(stale, versions)] });
    }
  }

  /** No timer fires any more. */
  close(): void {
    this.#timer?.cancel();
  }

  /** Loaded values are in place: everything is counted from them. */
  begin(generation: number): void {
    const { slots } = this.#parts;
    this.generation = generation;
    this.#exchange = undefined;
    for (const waiting of [this.#due, this.#late, this.#unknown]) waiting.clear();
    this.included.clear();
    this.#told.length = 0;
    for (const copies of [this.base, this.first]) for (const [slab, copy] of copies.entries()) copy.set(slots.slabs[slab].memory.bytes);
    for (let slot = 0; slot < this.own.length; slot++) {
      this.own[slot] = this.requests ? 0 : slots.version[slot];
      this.#since[slot] = 0;
      this.#answered[slot] = 0;
      // Others may have begun before us.
      if (this.requests) this.#due.add(slot);
    }
    this.#wake();
    this.retryEarly();
  }

  /** Makes due whatever the master has not said to have. */
  hurry(): void {
    for (let slot = 0; this.requests && slot < this.own.length; slot++) if (this.own[slot] > this.#answered[slot]) this.#due.add(slot);
  }

  /** Makes due whatever is older than these versions. */
  catchUp(versions: readonly number[]): void {
    const { slots } = this.#parts;
    for (let slot = 0; this.requests && slot < this.own.length; slot++)
      if (slots.version[slot] < (versions[slot] ?? 0)) this.#due.add(slot);
  }

  /** Whether the master has these numbers of updates of ours. */
  hasSent(counts: readonly number[]): boolean {
    return !this.requests || counts.every((count, slot) => this.#answered[slot] >= count);
  }

  /** Sends what is due, unless an answer is awaited. */
  flush(): void {
    if (this.#exchange !== undefined || this.#due.size === 0) return;
    const { slots } = this.#parts;
    const chosen: number[] = [];
    let bytes = 0;
    for (const slot of this.#due) {
      const size = slots.end[slot] - slots.start[slot];
      if (chosen.length > 0 && bytes + size > requestBytesMax) break;
      chosen.push(slot);
      bytes += size;
    }
    const own = chosen.map((slot) => {
      const values = slots.values(slot, slot + 1);
      const target = new Uint8Array(values.byteLength);
      this.#addDifference(slots.dtype(slot), target, values, this.#part(this.base, slot));
      return target;
    });
    const counts = chosen.map((slot) => this.own[slot]);
    const { incarnation } = this.#parts.options;
    this.#openExchange({ number: this.#number + 1, incarnation, slots: chosen, counts, own: Buffer.concat(own) });
    this.resend();
  }

  /** A standby: what its primary sends. @throws ShoalError `protocol`. */
  adopt(msg: Msg): void {
    const { generation, entries } = decodeSlotTable(msg.frames[0]);
    if (generation !== this.generation) return;
    this.#readValues(msg.frames[1], entries);
    const [slots, counts] = [entries.map(({ slot }) => slot), entries.map(({ count }) => count)];
    this.#openExchange({ number: msg.targetValue, incarnation: msg.targetVersion, slots, counts, own: msg.frames[1] });
  }

  #openExchange(exchange: Exchange): void {
    for (const slot of exchange.slots) {
      this.#due.delete(slot);
      this.#late.delete(slot);
      this.#since[slot] = 0;
    }
    this.#number = exchange.number;
    this.#exchange = exchange;
  }

  /** A connection with another group has been made (again), or, without a group, we have just begun to serve: what it was told
   *  may not have arrived. */
  peerUp(group?: number): void {
    if (group === undefined) this.#told.length = 0;
    else this.#told[group] = [];
    // It may have forgotten what it had included.
    if (group === undefined || group === this.#master) this.#allDue();
    this.resend();
    this.#wake();
  }

  /** The question may not have arrived. */
  resend(): void {
    if (this.#exchange === undefined) return;
    const { number, incarnation, slots, own, counts } = this.#exchange;
    this.#parts.actions.send(this.#master, {
      type: KVMessage.syncRequest,
      request: number,
      epoch: incarnation,
      frames: [this.#table(slots, counts), own],
    });
  }

  // ── the master's side ──────────────────────────────────────────────────────────────────────────────────────────

  /** @throws ShoalError `protocol`; nothing has changed. */
  receiveRequest(group: number, msg: Msg): void {
    const { slots, actions, committedSlots } = this.#parts;
    const { generation, entries } = decodeSlotTable(msg.frames[0]);
    // It will hear of the present one.
    if (generation < this.generation) return;
    if (generation > this.generation || entries.some(({ slot }) => slot >= committedSlots)) {
      this.#early.set(group, msg);
      return;
    }
    const values = this.#readValues(msg.frames[1], entries);
    const included = this.included.get(group) ?? { values: [], counts: [] };
    this.included.set(group, included);
    this.#growIncluded(included);
    const answer: Uint8Array[] = [];
    const told = (this.#told[group] ??= []);
    for (const [k, { slot, count }] of entries.entries()) {
      const value = slots.writable(slot, slot + 1);
      const before = this.#part(included.values, slot);
      this.#addDifference(slots.dtype(slot), value, values[k], before);
      before.set(values[k]);
      slots.version[slot] += count - included.counts[slot];
      included.counts[slot] = count;
      told[slot] = slots.version[slot];
      answer.push(Uint8Array.from(value));
    }
    actions.onExchanged();
    const asked = entries.map(({ slot }) => slot);
    const versions = asked.map((slot) => slots.version[slot]);
    actions.send(group, {
      type: KVMessage.syncResponse,
      request: msg.targetValue,
      epoch: msg.targetVersion,
      frames: [this.#table(asked, versions), Buffer.concat(answer)],
    });
    // The other groups may not know it yet.
    this.#wake();
  }

  /** Slots have been added, or loaded: requests about them can be answered. */
  retryEarly(): void {
    const early = [...this.#early];
    this.#early.clear();
    for (const [group, msg] of early) this.receiveRequest(group, msg);
  }

  // ── the requester's side ───────────────────────────────────────────────────────────────────────────────────────

  /** The master has changed slots. @throws ShoalError `protocol`; nothing has changed. */
  receiveNotice(msg: Msg): void {
    const { generation, entries } = decodeSlotTable(msg.frames[0]);
    // All slots of a later generation will be asked for.
    if (generation !== this.generation) return;
    for (const { slot } of entries) {
      if (slot < this.#parts.committedSlots) this.#due.add(slot);
      else this.#unknown.add(slot);
    }
  }

  /** @throws ShoalError `protocol`; nothing has changed. */
  receiveResponse(msg: Msg): void {
    const exchange = this.#exchange;
    const { generation, entries } = decodeSlotTable(msg.frames[0]);
    if (generation !== this.generation) return;
    if (exchange === undefined || msg.targetValue !== exchange.number || msg.targetVersion !== exchange.incarnation) {
      // The question was repeated: the master believes that we have these values.
      for (const { slot } of entries) if (slot < this.own.length) this.#due.add(slot);
      return;
    }
    if (entries.length !== exchange.slots.length || entries.some(({ slot }, k) => slot !== exchange.slots[k])) {
      throw malformed('an answer about other slots than were asked for');
    }
    const [values, sent] = [msg.frames[1], exchange.own].map((frame) => this.#readValues(frame, entries));
    const { slots } = this.#parts;
    for (const [k, { slot, count }] of entries.entries()) {
      const dtype = slots.dtype(slot);
      const base = this.#part(this.base, slot);
      const fresh = new Uint8Array(base.byteLength);
      this.#addDifference(dtype, fresh, values[k], sent[k]);
      this.#addDifference(dtype, slots.writable(slot, slot + 1), fresh, base);
      base.set(fresh);
      slots.version[slot] = count + this.own[slot] - exchange.counts[k];
      this.#answered[slot] = exchange.counts[k];
    }
    this.#exchange = undefined;
    this.#parts.actions.onExchanged();
  }

  /** The first values at group 0, with which a server of another group begins. */
  beginning(slot: number): Uint8Array {
    return this.#part(this.first, slot);
  }

  /** After a snapshot was loaded: everything may have changed since the last exchange. */
  restart(exchange: Exchange | undefined): void {
    this.#exchange = exchange;
    this.#number = exchange?.number ?? 0;
    this.#allDue();
    this.#wake();
  }

  /** The master may have forgotten us. */
  #allDue(): void {
    for (let slot = 0; this.requests && slot < this.own.length; slot++) if (this.own[slot] > 0) this.#due.add(slot);
  }

  /** The exchange in flight; a standby must know it. */
  get exchange(): Exchange | undefined {
    return this.#exchange;
  }

  #growIncluded({ values, counts }: { values: Uint8Array[]; counts: number[] }): void {
    const { slots } = this.#parts;
    for (let slab = values.length; slab < slots.slabs.length; slab++)
      values.push(new Uint8Array(slots.slabs[slab].memory.bytes.byteLength));
    while (counts.length < slots.count) counts.push(0);
  }

  #table(slots: readonly number[], counts: readonly number[]): Uint8Array {
    return encodeSlotTable(this.generation, slots, counts);
  }

  #part(slabs: readonly Uint8Array[], slot: number): Uint8Array {
    const { slots } = this.#parts;
    return slabs[slots.slab[slot]].subarray(slots.start[slot], slots.end[slot]);
  }

  #readValues(frame: Uint8Array | undefined, entries: readonly SlotCount[]): Uint8Array[] {
    const { slots } = this.#parts;
    const total = entries.reduce((sum, { slot }) => (slot < slots.count ? sum + slots.end[slot] - slots.start[slot] : NaN), 0);
    if (frame === undefined || frame.byteLength !== total) throw malformed(`${total} bytes of values in ${frame?.byteLength ?? 0}`);
    let at = 0;
    return entries.map(({ slot }) => {
      const part = new Uint8Array(slots.end[slot] - slots.start[slot]);
      part.set(frame.subarray(at, at + part.byteLength));
      at += part.byteLength;
      return part;
    });
  }

  /** target += plus − minus. */
  #addDifference(dtype: DType, target: Uint8Array, plus: Uint8Array, minus: Uint8Array): void {
    const { kernels } = this.#parts.options;
    if (dtype === 'bool') throw new ShoalError('unsupported', 'bool parameters cannot be kept by several server groups');
    const negative = new Uint8Array(minus.byteLength);
    if (dtypeInfo(dtype).kind === 'float') kernels.scale(dtype, negative, minus, -1);
    else negate(dtype, negative, minus);
    kernels.reduce(dtype, 'sum', [target], [target, plus, negative], differenceTree);
  }
}

function negate(dtype: DType, target: Uint8Array, source: Uint8Array): void {
  const to = elements(dtype, target) as Int32Array;
  const from = elements(dtype, source) as Int32Array;
  for (let k = 0; k < to.length; k++) to[k] = -from[k];
}
