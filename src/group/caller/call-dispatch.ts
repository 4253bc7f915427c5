/** Dispatches the main thread's calls to their paths, and numbers them among the group's calls.
 *
 *      the same collective on the same data as before ─▶ its earlier binding          nothing is prepared
 *      collective ─▶ route ─▶ the group's fast path, the engine, its schedule, or its device calls
 *      message ────────────▶ the engine
 *
 *  Arguments have been checked before. It must not know how a call runs. */
import { must } from '../../base/assert.ts';
import { CallSites } from '../../base/call-site.ts';
import { isExhaustion } from '../../base/exhaustion.ts';
import { isOnDevice } from '../../memory/device/device-tensor.ts';
import type { ReduceOp } from '../../memory/reduce-op.ts';
import { notStarted, RepetitionNumber } from '../../memory/step-machine.ts';
import { Tensor } from '../../memory/tensor.ts';
import { CallBuffers, onHost, type BufferUse } from './call-buffers.ts';
import type { CommClient } from './comm-client.ts';
import type { WorldHandle } from './world-handle.ts';
import type { Command, SharedBuffer } from '../shared/comm-protocol.ts';
import type { CollectiveCall } from '../shared/call/contract.ts';
import type { GroupSpec } from '../shared/call/group-spec.ts';
import { TensorBlock } from './tensor-block.ts';
import type { FastOperation, FastPath, FastRequest, OpenFastPath } from './fast-path.ts';
import { mayRepeat, route, type GroupFacts } from '../shared/call/route.ts';
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
  /** The task that a scheduled call is. Default: the call is not scheduled. */
  readonly task?: Pick<Extract<Command, { type: 'scheduled' }>, 'name' | 'isNamed' | 'priority'>;
}

/** A send or receive whose arguments have been checked. */
export type CheckedMessage = Pick<Extract<Command, { type: 'message' }>, 'direction' | 'peer' | 'tag' | 'timeoutMs'> & {
  readonly use: BufferUse & { readonly name: 'data' };
};

/** A checked call whose buffers are known. */
interface PreparedCall extends CheckedCall {
  readonly reach: CallBuffers;
}

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
  readonly world: Pick<WorldHandle, 'client' | 'memory'>;
  readonly spec: GroupSpec;
  readonly planner: GroupFacts['planner'];
  /** The group's fast path. Default: it has none. */
  readonly path?: OpenFastPath | undefined;
  /** Called by each call on tensors of a device. Default: there are no such calls. */
  readonly devices?: () => DeviceStarter;
}

export class CallDispatch {
  readonly #spec: GroupSpec;
  readonly #client: CommClient;
  readonly #memory: TensorMemory;
  readonly #facts: GroupFacts;
  readonly #fast: FastPath | undefined;
  readonly #devices: CallDispatchOptions['devices'];
  readonly #sites = new CallSites();
  /** The latest call of each kind that was bound on the fast path, by its first tensor or array. */
  readonly #bound = new WeakMap<object, BoundCall>();
  /** `RepetitionNumber.Runs`: the collectives called, whichever way they went. */
  readonly #numbers: Float64Array;

  constructor({ world, spec, planner, path, devices }: CallDispatchOptions) {
    const { client, memory } = world;
    this.#spec = spec;
    this.#devices = devices;
    this.#client = client;
    this.#memory = memory;
    this.#facts = { planner, ...path, isScheduled: spec.scheduling !== undefined, usesLibrary: spec.library !== undefined };
    this.#fast = path?.fast;
    this.#numbers = path?.fast.numbers ?? new Float64Array(1);
    this.#numbers[RepetitionNumber.Runs] = spec.callsBefore ?? 0;
  }

  /** Runs a call as it was bound to the same data before, unchecked; undefined when it has not been, or not like this.
   *  @param first undefined: calls of this kind have no data. */
  repeat(
    kind: CollectiveCall['kind'],
    options: RepeatableOptions,
    first: CollectiveData | undefined,
    second?: CollectiveData | null,
  ): SettlingWork | undefined {
    try {
      return this.#repeat(kind, options, first, second);
    } catch (thrown) {
      throw this.#told(thrown);
    }
  }

  #repeat(
    kind: CollectiveCall['kind'],
    options: RepeatableOptions,
    first: CollectiveData | undefined,
    second: CollectiveData | null | undefined,
  ): SettlingWork | undefined {
    if (!this.#fast) return undefined;
    let bound = this.#bound.get(first ?? this);
    while (bound && bound.kind !== kind) bound = bound.next;
    if (!bound || !mayRepeat(options) || options.op !== bound.op || options.root !== bound.root) return undefined;
    if (!isAsBound(first, bound.first) || !isAsBound(second, bound.second)) return undefined;
    const { operation, buffers, request } = bound;
    if (operation.repetition !== undefined && operation.buffers === buffers) {
      const status = operation.repetition();
      if (status === undefined) return completedWork;
      if (status !== notStarted && this.#fast.goOn) return this.#fast.goOn(operation, status, request);
      operation.repetition = undefined;
    }
    const work = this.#run(this.#fast, operation, request, buffers);
    if (work === completedWork && operation.repetition === undefined) this.#fast.makeRepeatable?.(operation);
    return work;
  }

  /** @throws ShoalError `usage` when a result lies over another argument; `out-of-memory`, `unsupported` when there is no room to
   *          stage private arguments. */
  start(checked: CheckedCall): SettlingWork {
    // Copying arguments takes as long as it takes: whom others wait for in the meantime has called.
    this.#announce(this.#calls + 1);
    try {
      return this.#start(checked);
    } catch (thrown) {
      throw this.#told(thrown);
    } finally {
      this.#announce(this.#calls);
    }
  }

  #start(checked: CheckedCall): SettlingWork {
    const { call, uses, timeoutMs } = checked;
    const way = route(call, this.#facts, { isOnDevice: uses.some(({ operand }) => isOnDevice(operand.value)) });
    if (way.path === 'device' && this.#devices) return this.#devices().start(checked);
    const reach = new CallBuffers(this.#memory, uses);
    if (this.#fast && (way.path === 'host' || way.path === 'network'))
      return this.#startFast(this.#fast, this.#fast.bind(call, way, reach), { ...checked, reach });
    const { id: group, name } = this.#spec;
    const buffers = reach.share();
    if (way.path === 'schedule') {
      const task = must(checked.task, () => 'a call of a scheduled group is a task');
      const command = { type: 'scheduled', group, ...task, call, buffer: buffers.data as SharedBuffer, timeoutMs } as const;
      return this.#client.start(command, `${call.kind} of '${task.name}' of group '${name}'`, reach.pend());
    }
    const path = way.path === 'exchange' || way.path === 'library' ? way.path : 'engine';
    // Ranks tell each other their splits first: a call of its own.
    const sequence = this.#nextSequence(path === 'exchange' ? 2 : 1);
    const site = this.#sites.current();
    const command = { type: 'collective', group, path, sequence, call: { ...call, site: site() }, buffers, timeoutMs } as const;
    return this.#client.start(command, `${call.kind} of group '${name}'`, { ...reach.pend(), site });
  }

  /** @throws ShoalError `out-of-memory`, `unsupported` when there is no room to stage a private buffer. */
  startMessage(message: CheckedMessage): MessageWork {
    try {
      return this.#startMessage(message);
    } catch (thrown) {
      throw this.#told(thrown);
    }
  }

  #startMessage({ use, ...message }: CheckedMessage): MessageWork {
    const { dtype, count } = use.operand;
    const reach = new CallBuffers(this.#memory, [use]);
    const buffer = reach.share().data as SharedBuffer;
    const { direction, peer } = message;
    const whom = peer === undefined ? 'any rank' : `rank ${peer}`;
    const work = new MessageWork(this.#client, `${direction} ${direction === 'send' ? 'to' : 'from'} ${whom}`, reach.pend());
    this.#client.submit(work, { type: 'message', group: this.#spec.id, ...message, dtype, count, buffer });
    return work;
  }

  /** No call follows. What was called before goes on. */
  close(): void {
    this.#fast?.close();
  }

  /** All that was called has ended. */
  end(): void {
    this.#fast?.end();
  }

  /** Where this process has run out of something, others would wait for its part of the call in vain. */
  #told(thrown: unknown): unknown {
    if (isExhaustion(thrown)) void this.#client.failGroup(this.#spec.id, thrown);
    return thrown;
  }

  #startFast(fast: FastPath, operation: FastOperation, { call, uses, reach, options, timeoutMs }: PreparedCall): SettlingWork {
    const { buffers } = operation;
    const requestWith = (own: CallBuffers): FastRequest => {
      const shared = own.share();
      return { call, buffers: shared, timeoutMs, hooks: own.pend(), site: this.#sites.current() };
    };
    if (!reach.staged && mayRepeat(options)) {
      // Arguments that are not staged stay where they are.
      const request = (): FastRequest => requestWith(operation.isPrivate ? new CallBuffers(this.#memory, uses) : reach);
      const [first, second] = uses.map(({ operand: { value } }) => boundTo(onHost(value)));
      const { op, root } = options;
      this.#keep(first?.value ?? this, { kind: call.kind, next: undefined, op, root, first, second, operation, buffers, request });
    }
    const work = this.#run(fast, operation, () => requestWith(reach), buffers);
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

  /** When peers are late, what is private must be staged: whether there is room for that is found before anything is announced. */
  #run(fast: FastPath, operation: FastOperation, request: () => FastRequest, buffers: unknown): SettlingWork {
    if (operation.isPrivate) fast.checkRoom(operation, buffers);
    return fast.run(operation, this.#nextSequence(), request, buffers);
  }

  get #calls(): number {
    return this.#numbers[RepetitionNumber.Runs];
  }

  /** @param operations of the call. */
  #nextSequence(operations = 1): number {
    const sequence = this.#calls;
    this.#numbers[RepetitionNumber.Runs] = sequence + operations;
    this.#announce(this.#calls);
    return sequence;
  }

  /** Notes for other ranks that this one has made so many calls. */
  #announce(calls: number): void {
    this.#fast?.announce(calls);
  }
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
