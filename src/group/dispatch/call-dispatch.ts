/** Which way a call of a group takes from the main thread, and its place among the group's calls.
 *
 *      all-reduce of the same data as before ─▶ as it was bound then         nothing is prepared
 *      collective ─▶ lane         all ranks share memory; small, or on private buffers
 *                 ─▶ express      several hosts; small
 *                 ─▶ comm thread  all others
 *      message ────▶ comm thread
 *
 *  The way follows from what all ranks agree on. Arguments have been checked before; what a call does is not known here. */
import { CallSites } from '../../base/call-site.ts';
import { isPlainObject, noOptions } from '../../base/settings/options.ts';
import type { ReduceOp } from '../../memory/reduce-op.ts';
import { Tensor } from '../../memory/tensor.ts';
import { CallBuffers, type BufferUse } from './call-buffers.ts';
import type { CommClient } from '../thread/comm-client.ts';
import type { Command, SharedBuffer } from '../engine/comm-protocol.ts';
import type { CollectiveCall } from '../call/contract.ts';
import type { ExpressOperation } from '../fast/network-path.ts';
import type { ExpressCaller, ExpressRequest } from './network-path-caller.ts';
import type { GroupSpec } from '../call/group-spec.ts';
import type { HostLane, LaneRequest } from './host-path-caller.ts';
import { hasPrivate, type LaneBuffers, type LaneOperation } from '../fast/host-path.ts';
import { TensorBlock } from './tensor-block.ts';
import { largestBlockBytes, type TensorMemory } from './tensor-memory.ts';
import type { ReduceOptions, TensorLike, Work } from '../call/types.ts';
import { CompletedWork } from '../thread/work.ts';

/** A collective whose arguments have been checked. */
export interface CheckedCall {
  readonly call: CollectiveCall;
  readonly uses: readonly BufferUse[];
  /** As the user gave them. `op`, `factor`: only of calls that reduce. */
  readonly options: ReduceOptions;
  readonly timeoutMs: number;
}

/** A send or receive whose arguments have been checked. */
export type CheckedMessage = Pick<Extract<Command, { type: 'message' }>, 'direction' | 'peer' | 'tag' | 'timeoutMs'> & {
  readonly use: BufferUse & { readonly name: 'data' };
};

/** A checked call whose buffers are known. */
interface PreparedCall extends CheckedCall {
  readonly reach: CallBuffers;
}

/** An all-reduce that needs no more preparation. */
interface BoundReduce<Operation, Request> {
  readonly op: ReduceOp | undefined;
  /** Memory of the tensor: once it is released, or its group is gone, nothing is bound to it. */
  readonly block: TensorBlock | undefined;
  readonly operation: Operation;
  readonly request: () => Request;
}

interface LaneReduce extends BoundReduce<LaneOperation, LaneRequest> {
  /** What the operation runs on: a private one may have run on another array since. */
  readonly buffers: LaneBuffers;
  /** Elements there were: an array whose buffer was taken away has none. */
  readonly count: number;
}

export interface CallDispatchOptions {
  readonly spec: GroupSpec;
  readonly client: CommClient;
  readonly memory: TensorMemory;
  readonly lane: HostLane | undefined;
  readonly express: ExpressCaller | undefined;
}

export class CallDispatch {
  readonly #spec: GroupSpec;
  readonly #client: CommClient;
  readonly #memory: TensorMemory;
  readonly #lane: HostLane | undefined;
  readonly #express: ExpressCaller | undefined;
  readonly #sites = new CallSites();
  /** By tensor or array: all-reduces bound on the lane. */
  readonly #onLane = new WeakMap<TensorLike, LaneReduce>();
  /** The same on the express. */
  readonly #onExpress = new WeakMap<Tensor, BoundReduce<ExpressOperation, ExpressRequest>>();
  /** Collectives called, whichever way they went. */
  #calls: number;

  constructor({ spec, client, memory, lane, express }: CallDispatchOptions) {
    this.#spec = spec;
    this.#calls = spec.callsBefore ?? 0;
    this.#client = client;
    this.#memory = memory;
    this.#lane = lane;
    this.#express = express;
  }

  /** Runs an all-reduce as it was bound to the same data before, unchecked; undefined when it has not been, or not like this. */
  repeatAllReduce(data: TensorLike, options: ReduceOptions): Work | undefined {
    if (this.#lane) {
      const bound = this.#onLane.get(data);
      if (bound && isPlain(options) && options.op === bound.op && lengthOf(data) === bound.count && bound.block?.live !== false)
        return this.#runOnLane(this.#lane, bound.operation, bound.request, bound.buffers);
    }
    if (this.#express && data instanceof Tensor) {
      const bound = this.#onExpress.get(data);
      if (bound && isPlain(options) && options.op === bound.op && bound.block?.live !== false)
        return this.#express.run(bound.operation, this.#nextSequence(), bound.request);
    }
    return undefined;
  }

  /** @throws ShoalError `usage` when a result lies over another argument; `out-of-memory`, `unsupported` when there is no room to
   *          stage private arguments. */
  start(checked: CheckedCall): Work {
    // Copying arguments takes as long as it takes: whom others wait for in the meantime has called.
    this.#announce(this.#calls + 1);
    try {
      return this.#start(checked);
    } finally {
      this.#announce(this.#calls);
    }
  }

  #start({ call, uses, options, timeoutMs }: CheckedCall): Work {
    const reach = new CallBuffers(this.#memory, uses);
    const prepared: PreparedCall = { call, uses, options, timeoutMs, reach };
    // How much is moved, ranks agree on in the comm thread.
    const isKnown = call.parts === undefined;
    const onLane = isKnown ? this.#lane?.bind(call, reach) : undefined;
    if (this.#lane && onLane) return this.#startOnLane(this.#lane, onLane, prepared);
    const buffers = reach.share();
    const onExpress = isKnown ? this.#express?.bind(call, buffers) : undefined;
    if (this.#express && onExpress) return this.#startOnExpress(this.#express, onExpress, prepared);
    const sequence = this.#nextSequence(isKnown ? 1 : 2);
    const sited = { ...call, site: this.#sites.current()() };
    return this.#client.start(
      { type: 'collective', group: this.#spec.id, sequence, call: sited, buffers, timeoutMs },
      `${call.kind} of group '${this.#spec.name}'`,
      reach.pend(),
    );
  }

  /** @throws ShoalError `out-of-memory`, `unsupported` when there is no room to stage a private buffer. */
  startMessage({ use, ...message }: CheckedMessage): Work {
    const { dtype, count } = use.operand;
    const reach = new CallBuffers(this.#memory, [use]);
    const buffer = reach.share().data as SharedBuffer;
    const { direction, peer } = message;
    return this.#client.start(
      { type: 'message', group: this.#spec.id, ...message, dtype, count, buffer },
      `${direction} ${direction === 'send' ? 'to' : 'from'} rank ${peer}`,
      reach.pend(),
    );
  }

  /** No call follows. What was called before goes on. */
  close(): void {
    this.#express?.close();
  }

  /** All that was called has ended. */
  end(): void {
    this.#lane?.close();
  }

  #startOnLane(lane: HostLane, operation: LaneOperation, { call, uses, reach, options, timeoutMs }: PreparedCall): Work {
    const requestWith = (own: CallBuffers): LaneRequest => {
      const buffers = own.share();
      return { call, buffers, timeoutMs, hooks: own.pend(), site: this.#sites.current() };
    };
    if (call.kind === 'all-reduce' && !reach.staged && isPlain(options)) {
      const { value } = uses[0].operand;
      // What nothing is staged for stays where it is.
      const request = (): LaneRequest => requestWith(hasPrivate(operation.buffers) ? new CallBuffers(this.#memory, uses) : reach);
      this.#onLane.set(value, {
        op: options.op,
        block: blockOf(value),
        operation,
        buffers: operation.buffers,
        count: lengthOf(value),
        request,
      });
    }
    const work = this.#runOnLane(lane, operation, () => requestWith(reach));
    if (work instanceof CompletedWork) reach.end();
    return work;
  }

  #startOnExpress(express: ExpressCaller, operation: ExpressOperation, { call, uses, reach, options, timeoutMs }: PreparedCall): Work {
    const buffers = reach.share();
    const request = (): ExpressRequest => ({ call: { ...call, site: this.#sites.current()() }, buffers, timeoutMs, hooks: reach.pend() });
    const { value } = uses.at(0)?.operand ?? {};
    if (call.kind === 'all-reduce' && value instanceof Tensor && !reach.staged && isPlain(options))
      this.#onExpress.set(value, { op: options.op, block: blockOf(value), operation, request });
    const work = express.run(operation, this.#nextSequence(), request);
    if (work instanceof CompletedWork) reach.end();
    return work;
  }

  /** When peers are late, what is private must be staged: whether there is room for that is found before anything is announced. */
  #runOnLane(lane: HostLane, operation: LaneOperation, request: () => LaneRequest, buffers = operation.buffers): Work {
    if (operation.privateBytes > largestBlockBytes) for (const { view } of Object.values(buffers)) this.#memory.checkFits(view.length);
    return lane.run(operation, this.#nextSequence(), request, buffers);
  }

  /** @param operations of the call. */
  #nextSequence(operations = 1): number {
    const sequence = this.#calls;
    this.#calls += operations;
    this.#announce(this.#calls);
    return sequence;
  }

  /** Notes for other ranks that this one has made so many calls. */
  #announce(calls: number): void {
    this.#lane?.announce(calls);
    this.#express?.announce(calls);
  }
}

/** These are options, and give nothing but the operator. Of calls that repeat, nothing else is checked. */
function isPlain(options: ReduceOptions): boolean {
  if (options === noOptions) return true;
  for (const key in options) if (key !== 'op') return othersUndefined(options);
  return options?.op !== undefined || isPlainObject(options);
}

function othersUndefined(options: ReduceOptions): boolean {
  return isPlainObject(options) && Object.entries(options).every(([key, value]) => key === 'op' || value === undefined);
}

function lengthOf(value: TensorLike): number {
  return value instanceof Tensor ? value.count : value.length;
}

function blockOf(value: TensorLike): TensorBlock | undefined {
  return value instanceof Tensor && value.region instanceof TensorBlock ? value.region : undefined;
}
