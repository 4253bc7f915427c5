/** Dispatches the main thread's calls to their paths, and numbers them among the group's calls.
 *
 *      the same collective on the same data as before ─▶ its earlier binding          nothing is prepared
 *      collective ─▶ route ─▶ the group's fast path, the engine, or its device calls
 *      message ────────────▶ the engine
 *
 *  Arguments have been checked before. It must not know how a call runs. */
import { must } from '../../base/assert.ts';
import { CallSites } from '../../base/call-site.ts';
import { isOnDevice } from '../../memory/device/device-tensor.ts';
import { dtypeInfo } from '../../memory/dtype.ts';
import type { ReduceOp } from '../../memory/reduce-op.ts';
import { Tensor } from '../../memory/tensor.ts';
import { CallBuffers, onHost, type BufferUse } from './call-buffers.ts';
import type { CommClient } from './comm-client.ts';
import type { WorldHandle } from './world-handle.ts';
import type { Command, SharedBuffer } from '../shared/comm-protocol.ts';
import type { CollectiveCall } from '../../call/contract.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import { TensorBlock } from './tensor-block.ts';
import type { FastOperation, FastPath, FastRequest, OpenFastPath } from './fast-path.ts';
import { mayRepeat, route, type EnginePath, type GroupFacts } from '../../call/route.ts';
import type { TensorMemory } from './tensor-memory.ts';
import type { CollectiveData, ReduceOptions, RootOptions, TensorLike } from './types.ts';
import { CompletedWork, completedWork, type SettlingWork } from '../../comm/caller/work.ts';
import { MessageWork } from './message-work.ts';

/** Options of collectives that may be repeated. */
export type RepeatableOptions = ReduceOptions & RootOptions;

/** A collective whose arguments have been checked. */
export interface CheckedCall {
  readonly call: CollectiveCall;
  readonly uses: readonly BufferUse[];
  /** The options as the user gave them. `op`, `factor`: only of calls that reduce; `root`: only of those that have one. */
  readonly options: RepeatableOptions;
  readonly timeoutMs: number;
}

/** A send or receive whose arguments have been checked. */
export type CheckedMessage = Pick<Extract<Command, { type: 'message' }>, 'direction' | 'peer' | 'tag' | 'timeoutMs'> & {
  readonly use: BufferUse & { readonly name: 'data' };
};

/** The way of a call, and its arguments where that needs them. */
type PreparedCall =
  | { readonly path: 'device' }
  | { readonly path: EnginePath; readonly reach: CallBuffers }
  | { readonly path: 'host' | 'network'; readonly reach: CallBuffers; readonly fast: FastPath; readonly operation: FastOperation };

/** A call that needs no more preparation. */
interface BoundCall {
  readonly kind: CollectiveCall['kind'];
  /** A call of another kind whose first array is the same. */
  next: BoundCall | undefined;
  readonly op: ReduceOp | undefined;
  readonly root: number | undefined;
  /** The array that the call is found by; undefined: it has none. */
  readonly first: BoundArgument | undefined;
  readonly second: BoundArgument | undefined;
  readonly operation: FastOperation;
  /** The buffers that the operation runs on: a private one may have run on another array since. */
  readonly buffers: unknown;
  readonly request: () => FastRequest;
}

/** An argument as it was when its call was bound. */
interface BoundArgument {
  readonly value: TensorLike;
  /** Memory of the tensor: once it is released, or its group is gone, nothing is bound to it. */
  readonly block: TensorBlock | undefined;
  /** Elements there were: an array whose buffer was taken away has none. */
  readonly count: number;
}

/** Starts collectives on tensors of a device. */
export interface DeviceStarter {
  start(checked: CheckedCall): SettlingWork;
}

export interface CallDispatchOptions {
  readonly world: Pick<WorldHandle, 'client' | 'memory' | 'board'>;
  readonly spec: GroupSpec;
  readonly planner: GroupFacts['planner'];
  /** The group's fast path. Default: it has none. */
  readonly path?: OpenFastPath | undefined;
  /** Called by each call on tensors of a device. */
  readonly devices: () => DeviceStarter;
}

export class CallDispatch {
  readonly #spec: GroupSpec;
  readonly #client: CommClient;
  readonly #memory: TensorMemory;
  readonly #board: WorldHandle['board'];
  readonly #facts: GroupFacts;
  readonly #fast: FastPath | undefined;
  readonly #devices: CallDispatchOptions['devices'];
  readonly #sites = new CallSites();
  /** The latest call of each kind that was bound on the fast path, by its first tensor or array. */
  readonly #bound = new WeakMap<object, BoundCall>();
  /** The same words as `FastPath.called`. */
  readonly #called: Float64Array;

  constructor({ world, spec, planner, path, devices }: CallDispatchOptions) {
    const { client, memory, board } = world;
    this.#board = board;
    this.#spec = spec;
    this.#devices = devices;
    this.#client = client;
    this.#memory = memory;
    this.#facts = { planner, ...path, usesLibrary: spec.library !== undefined };
    this.#fast = path?.fast;
    this.#called = path?.fast.called ?? Float64Array.of(spec.callsBefore ?? 0);
  }

  /** Runs a call as it was bound to the same data before, unchecked; undefined when it has not been, or not like this.
   *  @param first undefined: calls of this kind have no data. */
  repeat(
    kind: CollectiveCall['kind'],
    options: RepeatableOptions,
    first: CollectiveData | null | undefined,
    second?: CollectiveData | null,
  ): SettlingWork | undefined {
    if (!this.#fast) return undefined;
    let bound = this.#bound.get(first ?? this);
    while (bound && bound.kind !== kind) bound = bound.next;
    if (!bound || !mayRepeat(options) || options.op !== bound.op || options.root !== bound.root) return undefined;
    if (!isAsBound(first, bound.first) || !isAsBound(second, bound.second)) return undefined;
    const { operation, buffers, request } = bound;
    const beganUs = operation.tally?.begin() ?? 0;
    try {
      if (operation.repetition === undefined || operation.buffers !== buffers)
        return timed(operation, beganUs, this.#fast.run(operation, request, buffers));
      const status = operation.repetition();
      return timed(operation, beganUs, status === undefined ? completedWork : this.#fast.run(operation, request, buffers, status));
    } catch (thrown) {
      throw this.#client.tellExhaustion(this.#spec.id, thrown);
    }
  }

  /** @throws ShoalError `usage` when a result lies over another argument; `out-of-memory`, `unsupported` when there is no room to
   *          stage private arguments. */
  start(checked: CheckedCall): SettlingWork {
    try {
      return this.#start(checked, this.#prepare(checked));
    } catch (thrown) {
      throw this.#client.tellExhaustion(this.#spec.id, thrown);
    }
  }

  /** Finds the way of a call, and makes its arguments reachable. That takes as long as it takes: whom others wait for in the meantime has
   *  called. */
  #prepare({ call, uses }: CheckedCall): PreparedCall {
    this.#called[0] += 1;
    try {
      const way = route(call, this.#facts, { isOnDevice: uses.some(({ operand }) => isOnDevice(operand.value)) });
      if (way.path === 'device') return { path: 'device' };
      const reach = new CallBuffers(this.#memory, uses);
      if (way.path === 'host' || way.path === 'network') {
        const fast = must(this.#fast, () => `a group whose calls take the ${way.path} path has one`);
        const operation = fast.bind(call, way, reach);
        operation.tally ??= this.#board.tally(this.#spec.id, call.kind, `${way.path} path`, call.count * dtypeInfo(call.dtype).bytes);
        return { path: way.path, reach, fast, operation };
      }
      reach.share();
      return { path: way.path, reach };
    } finally {
      this.#called[0] -= 1;
    }
  }

  #start(checked: CheckedCall, prepared: PreparedCall): SettlingWork {
    if (prepared.path === 'device') return this.#devices().start(checked);
    const { reach } = prepared;
    if ('fast' in prepared) return this.#startFast(prepared.fast, prepared.operation, checked, reach);
    const { call, timeoutMs } = checked;
    const { id: group, name } = this.#spec;
    // Ranks tell each other their splits first: a call of its own.
    const sequence = this.#called[0];
    this.#called[0] += prepared.path === 'exchange' ? 2 : 1;
    const way = { path: prepared.path };
    const site = this.#sites.current();
    const command = {
      type: 'collective',
      group,
      way,
      sequence,
      call: { ...call, site: site() },
      buffers: reach.share(),
      timeoutMs,
    } as const;
    return this.#client.start(command, `${call.kind} of group '${name}'`, { ...reach.pend(), site });
  }

  /** @throws ShoalError `out-of-memory`, `unsupported` when there is no room to stage a private buffer. */
  startMessage({ use, ...message }: CheckedMessage): MessageWork {
    const { dtype, count } = use.operand;
    const { direction, peer } = message;
    const whom = peer === undefined ? 'any rank' : `rank ${peer}`;
    try {
      const reach = new CallBuffers(this.#memory, [use]);
      const buffer = reach.share().data as SharedBuffer;
      const work = new MessageWork(this.#client, `${direction} ${direction === 'send' ? 'to' : 'from'} ${whom}`, reach.pend());
      this.#client.submit(work, { type: 'message', group: this.#spec.id, ...message, dtype, count, buffer });
      return work;
    } catch (thrown) {
      throw this.#client.tellExhaustion(this.#spec.id, thrown);
    }
  }

  /** All that was called has ended. */
  close(): void {
    this.#fast?.close();
  }

  #startFast(fast: FastPath, operation: FastOperation, checked: CheckedCall, reach: CallBuffers): SettlingWork {
    const { call, uses, options, timeoutMs } = checked;
    const { buffers } = operation;
    const requestWith = (own: CallBuffers): FastRequest => {
      const shared = own.share({ withResults: fast.comesInPieces });
      return { call, buffers: shared, local: () => own.local, timeoutMs, hooks: own.pend(), site: this.#sites.current() };
    };
    if (!reach.staged && mayRepeat(options)) {
      // Arguments that are not staged stay where they are.
      const request = (): FastRequest => requestWith(operation.isPrivate ? new CallBuffers(this.#memory, uses) : reach);
      const [first, second] = uses.map(({ operand: { value } }) => boundTo(onHost(value)));
      const { op, root } = options;
      this.#keep(first?.value ?? this, { kind: call.kind, next: undefined, op, root, first, second, operation, buffers, request });
    }
    const beganUs = operation.tally?.begin() ?? 0;
    const work = timed(
      operation,
      beganUs,
      fast.run(operation, () => requestWith(reach), buffers),
    );
    if (work instanceof CompletedWork) reach.end();
    return work;
  }

  /** Keeps a bound call in the place of the one of its kind. */
  #keep(by: object, bound: BoundCall): void {
    const first = this.#bound.get(by);
    if (!first || first.kind === bound.kind) {
      bound.next = first?.next;
      this.#bound.set(by, bound);
      return;
    }
    let before = first;
    while (before.next && before.next.kind !== bound.kind) before = before.next;
    bound.next = before.next?.next;
    before.next = bound;
  }
}

/** @param beganUs of a call that is timed, else 0. */
function timed(operation: FastOperation, beganUs: number, work: SettlingWork): SettlingWork {
  if (beganUs > 0 && work === completedWork) operation.tally?.end(beganUs);
  return work;
}

/** @param value null: this rank has no such argument. */
function isAsBound(value: CollectiveData | null | undefined, bound: BoundArgument | undefined): boolean {
  if (!bound) return value === undefined || value === null;
  return value === bound.value && lengthOf(bound.value) === bound.count && bound.block?.live !== false;
}

function boundTo(value: TensorLike): BoundArgument {
  return { value, block: blockOf(value), count: lengthOf(value) };
}

function lengthOf(value: TensorLike): number {
  return value instanceof Tensor ? value.count : value.length;
}

function blockOf(value: TensorLike): TensorBlock | undefined {
  return value instanceof Tensor && value.region instanceof TensorBlock ? value.region : undefined;
}
