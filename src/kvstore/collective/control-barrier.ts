/** A barrier of a collective store that also carries worker 0's announcement: an optimiser, or a state that it has loaded.
 *
 *    all-reduce  bytes of the announcement, 0 for none      the barrier itself
 *    broadcast   the announcement, JSON                     only when there is one
 *    broadcast   the tensors of a state, some at a time     only with a state */
import { ShoalError } from '../../base/errors.ts';
import type { ProcessGroup, Work } from '../../group/caller/types.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import { countOf } from '../../memory/tensor.ts';
import type { Snapshot, SnapshotTensor } from '../../checkpoint/snapshot.ts';
import type { OptimizerSpec } from '../../ps/optimizers/optimizer.ts';
import type { Announcement } from './local-backend.ts';
import type { ParameterTable } from './parameter-table.ts';

/** An announcement as it travels. */
interface Message {
  readonly optimizer?: OptimizerSpec;
  readonly state?: {
    readonly tensors: readonly (readonly [name: string, dtype: DType, shape: readonly number[]])[];
    readonly metadata: Readonly<Record<string, string>>;
  };
}

/** Bytes of tensors that are broadcast at the same time: each is staged. */
const batchBytes = 64 * 2 ** 20;

export class ControlBarrier {
  readonly #group: ProcessGroup;
  readonly #table: ParameterTable;
  readonly #onRestored: () => void;
  /** Worker 0's, until the next barrier has begun. */
  #next: Announcement = {};

  constructor(group: ProcessGroup, table: ParameterTable, { onRestored }: { readonly onRestored: () => void }) {
    this.#group = group;
    this.#table = table;
    this.#onRestored = onRestored;
  }

  /** Whether something was said that the others do not know. */
  get pending(): boolean {
    return this.#next.optimizer !== undefined || this.#next.snapshot !== undefined;
  }

  /** A state says which optimiser there is: it takes the place of one announced before it. */
  announce(announcement: Announcement): void {
    this.#next = announcement.snapshot === undefined ? { ...this.#next, ...announcement } : announcement;
  }

  *run(): Generator<readonly Work[], void> {
    const own = this.#next;
    const text = this.pending ? new TextEncoder().encode(JSON.stringify(messageOf(own))) : new Uint8Array();
    this.#next = {};
    const length = Uint32Array.of(text.length);
    yield [this.#group.allReduce(length, { name: 'barrier of the store' })];
    if (length[0] === 0) return;
    const bytes = this.#group.rank === 0 ? text : new Uint8Array(length[0]);
    yield [this.#group.broadcast(bytes, { root: 0, name: 'announcement' })];
    const { optimizer, state } = parse(bytes);
    if (state !== undefined) {
      const snapshot = own.snapshot ?? emptySnapshot(state);
      yield* this.#spread([...snapshot.tensors.values()]);
      this.#table.restore(snapshot);
      this.#onRestored();
    }
    if (optimizer !== undefined) this.#table.setOptimizer(optimizer);
  }

  *#spread(tensors: readonly SnapshotTensor[]): Generator<readonly Work[], void> {
    let works: Work[] = [];
    let inFlight = 0;
    for (const { data } of tensors) {
      works.push(this.#group.broadcast(data, { root: 0, name: 'loaded state' }));
      inFlight += data.length;
      if (inFlight < batchBytes) continue;
      yield works;
      works = [];
      inFlight = 0;
    }
    yield works;
  }
}

function messageOf({ optimizer, snapshot }: Announcement): Message {
  if (snapshot === undefined) return { ...(optimizer === undefined ? {} : { optimizer }) };
  const tensors = [...snapshot.tensors].map(([name, { dtype, shape }]) => [name, dtype, shape] as const);
  return { state: { tensors, metadata: snapshot.metadata }, ...(optimizer === undefined ? {} : { optimizer }) };
}

function parse(bytes: Uint8Array): Message {
  try {
    return JSON.parse(new TextDecoder().decode(bytes)) as Message;
  } catch (cause) {
    throw new ShoalError('protocol', 'what worker 0 announced at a barrier cannot be read', { cause });
  }
}

function emptySnapshot({ tensors, metadata }: NonNullable<Message['state']>): Snapshot {
  const empty = tensors.map(([name, dtype, shape]): [string, SnapshotTensor] => {
    return [name, { dtype, shape, data: new Uint8Array(countOf(shape) * dtypeInfo(dtype).bytes) }];
  });
  return { tensors: new Map(empty), metadata };
}
