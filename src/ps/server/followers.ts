/** First values and optimiser of server groups other than 0: worker 0 talks to group 0 only, and server s of every other
 *  group asks server s of group 0. A follower acknowledges by naming the state that it has. */
import { ShoalError } from '../../base/errors.ts';
import type { Msg } from '../../messaging/msg.ts';
import { packBatch, unpackBatch } from '../protocol/parameter-directory.ts';
import { cutsOf } from './state/cuts.ts';
import type { ServerState } from './state/server-state.ts';
import { encodeControl, Fields, readControl } from '../protocol/wire-control.ts';
import { KVMessage, malformed } from '../protocol/wire.ts';

/** Values of one message. */
const chunkBytes = 32 * 2 ** 20;

export class ServerFollowers {
  readonly #state: ServerState;
  /** Group 0: by group, what its server has. */
  readonly #has = new Map<number, { batches: number; optimizer: number }>();
  readonly #spreading: { optimizer: number; done: () => void }[] = [];

  constructor(state: ServerState) {
    this.#state = state;
  }

  // ── group 0 ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Calls `done` when every group has the present optimiser. */
  spread(done: () => void): void {
    this.#spreading.push({ optimizer: this.#state.optimizerVersion, done });
    for (const group of this.#has.keys()) this.#sendOptimizer(group);
    this.#checkSpread();
  }

  onCommit(): void {
    for (const [group, { batches }] of this.#has) this.#sendBatches(group, batches);
  }

  receiveFollow(group: number, msg: Msg): void {
    const { again, ...has } = readControl(msg.frames[0], Fields.follow);
    const before = this.#has.get(group);
    this.#has.set(group, has);
    // A follower that has a later one heard of it from an earlier process; worker 0 repeats it to this one.
    if (has.optimizer < this.#state.optimizerVersion) this.#sendOptimizer(group);
    // An acknowledgement of a batch is no question for the ones that are on their way.
    if (before === undefined || again) this.#sendBatches(group, has.batches);
    this.#checkSpread();
  }

  #checkSpread(): void {
    const { serverGroups } = this.#state.options.topology;
    const least = this.#has.size < serverGroups - 1 ? -1 : Math.min(Infinity, ...[...this.#has.values()].map(({ optimizer }) => optimizer));
    const due = this.#spreading.filter(({ optimizer }) => optimizer <= least);
    this.#spreading.splice(0, this.#spreading.length, ...this.#spreading.filter(({ optimizer }) => optimizer > least));
    for (const { done } of due) done();
  }

  #sendOptimizer(group: number): void {
    const { optimizerVersion, optimizerSpec } = this.#state;
    if (optimizerSpec !== undefined) this.#tell(group, { optimizer: optimizerVersion, spec: optimizerSpec }, []);
  }

  #sendBatches(group: number, from: number): void {
    const { directory, options, slots, sync, committed } = this.#state;
    const records = directory.slots(options.server);
    for (let batch = from; batch < committed; batch++) {
      // Slots of a batch follow each other: of this one, those whose parameter is in it.
      const keys = new Set(directory.batch(batch).map(({ key }) => directory.find(key)));
      const own = records.map((_, slot) => slot).filter((slot) => keys.has(records[slot].parameter));
      const start = own[0] ?? records.length;
      for (const cut of cutsOf(start, start + own.length, chunkBytes, (slot) => slots.end[slot] - slots.start[slot])) {
        const parts = Array.from({ length: cut.to - cut.first }, (_, k) => sync.beginning(cut.first + k));
        this.#tell(group, { batch, entries: packBatch(directory.batch(batch)), ...cut }, [Buffer.concat(parts)]);
      }
      this.#has.set(group, { batches: batch + 1, optimizer: this.#has.get(group)?.optimizer ?? 0 });
    }
  }

  #tell(group: number, fields: Record<string, unknown>, frames: Uint8Array[]): void {
    this.#state.actions.send(group, { type: KVMessage.followed, frames: [encodeControl(fields), ...frames] });
  }

  // ── other groups ───────────────────────────────────────────────────────────────────────────────────────────────

  /** Says what we have. With `again`, whatever is missing is sent, also if it was before. */
  follow(how: { readonly again: boolean }): void {
    const { options, committed, optimizerVersion } = this.#state;
    if (options.group === 0) return;
    const frames = [encodeControl({ batches: committed, optimizer: optimizerVersion, again: how.again })];
    this.#state.actions.send(0, { type: KVMessage.follow, frames });
  }

  receiveFollowed(msg: Msg): void {
    const state = this.#state;
    const { spec, optimizer: version = 0 } = readControl(msg.frames[0], Fields.followedOptimizer);
    if (spec !== undefined) {
      if (version > state.optimizerVersion) {
        state.setOptimizer(spec);
        state.optimizerVersion = version;
        this.#state.actions.onFollowed();
      }
      return this.follow({ again: false });
    }
    const { batch, entries, first, to, last } = readControl(msg.frames[0], Fields.followedBatch);
    if (batch < state.committed) return undefined;
    // Earlier batches have been lost with a connection: all of them come again.
    if (batch > state.directory.batches) return undefined;
    if (batch === state.directory.batches) state.declare(unpackBatch(entries));
    const values = msg.frames[1];
    if (to > first && (first < state.committedSlots || to > state.slots.count)) throw malformed('slots of another batch');
    let at = 0;
    for (let slot = first; slot < to; slot++) {
      const target = state.slots.writable(slot, slot + 1);
      if (values === undefined || at + target.byteLength > values.byteLength) throw new ShoalError('protocol', 'first values are missing');
      target.set(values.subarray(at, at + target.byteLength));
      at += target.byteLength;
    }
    if (!last) return undefined;
    state.commit();
    this.#state.actions.onFollowed();
    return this.follow({ again: false });
  }
}
