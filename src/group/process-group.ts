/** The process group as user code sees it: checks arguments, makes buffers reachable, and hands calls to the comm side.
 *  What a call does there is not known here. */
import { CallSites } from '../base/call-site.ts';
import { ShoalError } from '../base/errors.ts';
import type { DType } from '../memory/dtype.ts';
import type { ReduceOp } from '../memory/reduce-op.ts';
import { countOf, Tensor } from '../memory/tensor.ts';
import { dtypeInfo } from '../memory/dtype.ts';
import type { CostModel } from '../plan/cost.ts';
import type { Collective } from '../plan/ir.ts';
import type { Topology } from '../plan/topology.ts';
import { CallBuffers, operand, type BufferUse, type Operand } from './call-buffers.ts';
import type { CommClient } from './comm-client.ts';
import type { SharedBuffer, WorldInfo } from './comm-protocol.ts';
import type { CollectiveCall } from './contract.ts';
import type { ExpressOperation } from './express.ts';
import type { ExpressCaller, ExpressRequest } from './express-caller.ts';
import { restrictHosts, worldGroupId, type GroupSpec } from './group-spec.ts';
import { largestBlockBytes, type MemoryBlock, type TensorMemory } from './tensor-memory.ts';
import type {
  AllToAllOptions,
  CallOptions,
  CountsOptions,
  PeerOptions,
  ProcessGroup,
  ReduceOptions,
  RootOptions,
  TensorLike,
  Work,
} from './types.ts';
import { exchangeSplits, splitsOf } from './all-to-all-splits.ts';
import {
  checkCounts,
  checkRootOnly,
  checkSameDtype,
  checkTag,
  checkTimeout,
  even,
  localPlace,
  reductionOf,
  rootOf,
} from './call-arguments.ts';
import { CompletedWork, PendingWork } from './work.ts';
import type { HostLane, LaneRequest } from './host-lane.ts';
import { hasPrivate, type LaneBuffers, type LaneOperation } from './lane.ts';
import { groupOfRanks, splitGroup } from './subgroups.ts';

/** What all groups of a world share on the main thread. */
export interface WorldHandle {
  readonly client: CommClient;
  readonly memory: TensorMemory;
  readonly info: WorldInfo;
  readonly timeoutMs: number;
  /** The synchronous path of a group whose ranks share memory; undefined where there is none. */
  openLane(spec: GroupSpec): HostLane | undefined;
  /** The synchronous path of a group over several hosts; undefined where there is none. */
  openExpress(spec: GroupSpec): ExpressCaller | undefined;
  /** The algorithm that a group takes for an operation of so many bytes. */
  algorithmOf(spec: GroupSpec, collective: Collective, bytes: number): string;
  /** Ends the world; called when its first group is destroyed. */
  close(timeoutMs: number): Promise<void>;
}

/** An all-reduce that needs no more preparation. */
interface HotReduce {
  readonly op: ReduceOp | undefined;
  readonly operation: LaneOperation;
  /** What the operation runs on: a private one may have run on another array since. */
  readonly buffers: LaneBuffers;
  /** Elements there were: an array whose buffer was taken away has none. */
  readonly count: number;
  readonly request: () => LaneRequest;
}

interface HotExpress {
  readonly op: ReduceOp | undefined;
  readonly operation: ExpressOperation;
  readonly request: () => ExpressRequest;
}

/** A call that has been checked. */
interface PreparedCall {
  readonly call: CollectiveCall;
  readonly uses: readonly BufferUse[];
  readonly reach: CallBuffers;
  /** `op`: only of calls that reduce. */
  readonly options: ReduceOptions;
  readonly timeoutMs: number;
}

const noOptions: ReduceOptions = {};

/** Nothing but the operator is given. */
function isPlain({ name, timeoutMs, factor }: ReduceOptions): boolean {
  return name === undefined && timeoutMs === undefined && factor === undefined;
}

const destroyTimeoutMs = 10_000;

export class CommGroup implements ProcessGroup {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly localRank: number;
  readonly localSize: number;
  readonly hosts: readonly (readonly number[])[];
  readonly globalRanks: readonly number[];
  readonly #world: WorldHandle;
  readonly #spec: GroupSpec;
  readonly #sites = new CallSites();
  readonly #blocks = new Map<Tensor, MemoryBlock>();
  readonly #released = new WeakSet<Tensor>();
  readonly #lane: HostLane | undefined;
  readonly #express: ExpressCaller | undefined;
  /** Tensors and arrays whose all-reduce is bound, for the shortest way through a call. */
  readonly #hot = new WeakMap<TensorLike, HotReduce>();
  /** The same, over several hosts. */
  readonly #hotExpress = new WeakMap<Tensor, HotExpress>();
  /** Calls made on this group, whichever way they go. */
  #calls = 0;
  #destroyed: Promise<void> | undefined;

  constructor(world: WorldHandle, spec: GroupSpec) {
    this.#world = world;
    this.#spec = spec;
    this.name = spec.name;
    this.rank = spec.rank;
    this.size = spec.globalRanks.length;
    this.globalRanks = spec.globalRanks;
    this.#lane = world.openLane(spec);
    this.#express = world.openExpress(spec);
    this.hosts = restrictHosts(world.info.hosts, spec.globalRanks);
    ({ localRank: this.localRank, localSize: this.localSize } = localPlace(this.hosts, this.rank));
  }

  // ── tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    this.#checkUsable();
    const block = this.#world.memory.allocate(countOf(shape) * dtypeInfo(dtype).bytes);
    const tensor = new Tensor(dtype, shape, block.region, block.offset);
    new Uint8Array(block.region.buffer, block.offset, tensor.bytes).fill(0);
    this.#blocks.set(tensor, block);
    return tensor;
  }

  release(tensor: Tensor): void {
    const block = this.#blocks.get(tensor);
    if (!block)
      throw new ShoalError(
        'usage',
        this.#released.has(tensor) ? 'this tensor has been released before' : `this tensor was not made by group '${this.name}'`,
      );
    this.#blocks.delete(tensor);
    this.#hot.delete(tensor);
    this.#hotExpress.delete(tensor);
    this.#released.add(tensor);
    this.#world.memory.free(block);
  }

  // ── collectives ─────────────────────────────────────────────────────────────────────────────────────────────────

  allReduce(data: TensorLike, options: ReduceOptions = noOptions): Work {
    if (this.#lane) {
      const hot = this.#hot.get(data);
      if (hot && !this.#destroyed && options.op === hot.op && isPlain(options) && lengthOf(data) === hot.count)
        return this.#runOnLane(this.#lane, hot.operation, hot.request, hot.buffers);
    }
    if (this.#express && data instanceof Tensor) {
      const hot = this.#hotExpress.get(data);
      if (hot && !this.#destroyed && options.op === hot.op && isPlain(options))
        return this.#express.run(hot.operation, this.#nextSequence(), hot.request);
    }
    const target = this.#operand(data, 'the data of allReduce');
    return this.#collective('all-reduce', target, target.count, options, reductionOf(target, options), [
      { name: 'data', operand: target, reads: true, writes: true },
    ]);
  }

  broadcast(data: TensorLike, options: RootOptions = {}): Work {
    const target = this.#operand(data, 'the data of broadcast');
    const root = rootOf(options, this.size);
    return this.#collective('broadcast', target, target.count, options, { root }, [
      { name: 'data', operand: target, reads: root === this.rank, writes: root !== this.rank },
    ]);
  }

  reduce(data: TensorLike, options: ReduceOptions & RootOptions = {}): Work {
    const target = this.#operand(data, 'the data of reduce');
    const root = rootOf(options, this.size);
    return this.#collective('reduce', target, target.count, options, { root, ...reductionOf(target, options) }, [
      { name: 'data', operand: target, reads: true, writes: root === this.rank },
    ]);
  }

  allGather(output: TensorLike, input: TensorLike, options: CountsOptions = {}): Work {
    const { source, target, counts } = this.#gathering('allGather', output, input, options);
    return this.#collective('all-gather', target, target.count, options, { counts }, [
      { name: 'input', operand: source, reads: true, writes: false },
      { name: 'output', operand: target, reads: false, writes: true },
    ]);
  }

  gather(output: TensorLike | null, input: TensorLike, options: CountsOptions & RootOptions = {}): Work {
    const root = rootOf(options, this.size);
    checkRootOnly('the output of gather', output, root, this.rank);
    const source = this.#operand(input, 'the input of gather');
    const counts = options.counts ?? even(source.count, this.size);
    const total = checkCounts(this, 'gather', counts, source, output === null ? undefined : this.#operand(output, 'the output of gather'));
    const buffers: BufferUse[] = [{ name: 'input', operand: source, reads: true, writes: false }];
    if (output !== null) buffers.push({ name: 'output', operand: operand(output, 'the output of gather'), reads: false, writes: true });
    return this.#collective('gather', source, total, options, { root, counts: options.counts }, buffers);
  }

  scatter(output: TensorLike, input: TensorLike | null, options: CountsOptions & RootOptions = {}): Work {
    const root = rootOf(options, this.size);
    checkRootOnly('the input of scatter', input, root, this.rank);
    const target = this.#operand(output, 'the output of scatter');
    const counts = options.counts ?? even(target.count, this.size);
    const total = checkCounts(this, 'scatter', counts, target, input === null ? undefined : this.#operand(input, 'the input of scatter'));
    const buffers: BufferUse[] = [{ name: 'output', operand: target, reads: false, writes: true }];
    if (input !== null) buffers.push({ name: 'input', operand: operand(input, 'the input of scatter'), reads: true, writes: false });
    return this.#collective('scatter', target, total, options, { root, counts: options.counts }, buffers);
  }

  reduceScatter(output: TensorLike, input: TensorLike, options: ReduceOptions & CountsOptions = {}): Work {
    const { source, target, counts } = this.#gathering('reduceScatter', input, output, options);
    return this.#collective('reduce-scatter', source, target.count, options, { counts, ...reductionOf(source, options) }, [
      { name: 'input', operand: target, reads: true, writes: false },
      { name: 'output', operand: source, reads: false, writes: true },
    ]);
  }

  allToAll(output: TensorLike, input: TensorLike, options: AllToAllOptions = {}): Work {
    const source = this.#operand(input, 'the input of allToAll');
    const target = this.#operand(output, 'the output of allToAll');
    checkSameDtype('allToAll', source, target);
    const inputSplits = splitsOf('inputSplits', options.inputSplits, source, this.size);
    const outputSplits = splitsOf('outputSplits', options.outputSplits, target, this.size);
    const buffers: BufferUse[] = [
      { name: 'input', operand: source, reads: true, writes: false },
      { name: 'output', operand: target, reads: false, writes: true },
    ];
    if (options.inputSplits === undefined && options.outputSplits === undefined) {
      const splits = this.globalRanks.map(() => even(source.count / this.size, this.size));
      return this.#collective('all-to-all', source, source.count * this.size, options, { splits }, buffers);
    }
    return this.#deferred('allToAll', async (site) => {
      const matrix = await exchangeSplits(this, inputSplits, outputSplits, options);
      const total = matrix.flat().reduce((sum, count) => sum + count, 0);
      await this.#collective('all-to-all', source, total, options, { splits: matrix, site }, buffers);
    });
  }

  barrier(options: CallOptions = {}): Work {
    return this.#collective('barrier', { dtype: 'uint8' }, 0, options, {}, []);
  }

  monitoredBarrier(options: CallOptions = {}): Work {
    return this.#collective('barrier', { dtype: 'uint8' }, 0, { name: 'monitored', ...options }, {}, []);
  }

  // ── point to point ──────────────────────────────────────────────────────────────────────────────────────────────

  send(data: TensorLike, peer: number, options: PeerOptions = {}): Work {
    return this.#message('send', data, peer, options);
  }

  recv(data: TensorLike, peer: number, options: PeerOptions = {}): Work {
    return this.#message('recv', data, peer, options);
  }

  // ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────

  async split(color: number | null, options: { key?: number; timeoutMs?: number } = {}): Promise<ProcessGroup | null> {
    return this.#open(await splitGroup(this, this.#world, color, options), options.timeoutMs);
  }

  async newGroup(
    ranks: readonly number[],
    options: { timeoutMs?: number; name?: string; backend?: string } = {},
  ): Promise<ProcessGroup | null> {
    return this.#open(await groupOfRanks(this, this.#world, ranks, options), options.timeoutMs);
  }

  destroy(options: { timeoutMs?: number } = {}): Promise<void> {
    this.#destroyed ??= this.#end(options.timeoutMs ?? destroyTimeoutMs);
    return this.#destroyed;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.destroy();
  }

  /** What this rank reaches each rank of the group over: `shm`, `tcp`, `self`. */
  get links(): readonly string[] {
    const row = this.#world.info.fabricOf[this.globalRanks[this.rank]];
    return this.globalRanks.map((rank) => row[rank]);
  }

  /** Which ranks of the group load from and store to each other's memory, as plans see it. */
  get topology(): Topology {
    return this.#spec.topology;
  }

  /** The algorithm that an operation of so many bytes takes, on this rank as on all others. */
  algorithmOf(collective: Collective, bytes: number): string {
    return this.#world.algorithmOf(this.#spec, collective, bytes);
  }

  /** Rates of the world, measured at its start; undefined where nothing is chosen by them. */
  get costModel(): CostModel | undefined {
    return this.#world.info.model;
  }

  /** fabricOf[a][b] for all ranks of the world. */
  get linkMatrix(): readonly (readonly string[])[] {
    return this.#world.info.fabricOf;
  }

  // ── how calls are made ──────────────────────────────────────────────────────────────────────────────────────────

  #collective(
    kind: CollectiveCall['kind'],
    { dtype }: { dtype: DType },
    count: number,
    options: CallOptions,
    extra: Partial<CollectiveCall>,
    uses: readonly BufferUse[],
  ): Work {
    this.#checkUsable();
    const timeoutMs = checkTimeout(options.timeoutMs ?? this.#world.timeoutMs);
    const reach = new CallBuffers(this.#world.memory, uses);
    const call: CollectiveCall = { kind, dtype, count, name: options.name, ...extra };
    const onLane = this.#lane?.bind(call, reach);
    if (this.#lane && onLane) return this.#startOnLane(this.#lane, onLane, { call, uses, reach, options, timeoutMs });
    const buffers = reach.share();
    const onExpress = this.#express?.bind(call, buffers);
    if (this.#express && onExpress) return this.#startOnExpress(this.#express, onExpress, { call, uses, reach, options, timeoutMs });
    const sequence = this.#nextSequence();
    const sited = { ...call, site: this.#sites.current()() };
    return this.#world.client.start(
      { type: 'collective', group: this.#spec.id, sequence, call: sited, buffers, timeoutMs },
      `${kind} of group '${this.name}'`,
      hooksOf(reach),
    );
  }

  #startOnLane(lane: HostLane, operation: LaneOperation, { call, uses, reach, options, timeoutMs }: PreparedCall): Work {
    const requestWith = (own: CallBuffers): LaneRequest => {
      const buffers = own.share();
      return { call, buffers, timeoutMs, hooks: hooksOf(own), site: this.#sites.current() };
    };
    if (call.kind === 'all-reduce' && !reach.staged && isPlain(options)) {
      const { value } = uses[0].operand;
      // What nothing is staged for stays where it is.
      const request = (): LaneRequest => requestWith(hasPrivate(operation.buffers) ? new CallBuffers(this.#world.memory, uses) : reach);
      this.#hot.set(value, { op: options.op, operation, buffers: operation.buffers, count: lengthOf(value), request });
    }
    const work = this.#runOnLane(lane, operation, () => requestWith(reach));
    if (work instanceof CompletedWork) hooksOf(reach).onSuccess?.();
    return work;
  }

  #startOnExpress(express: ExpressCaller, operation: ExpressOperation, { call, uses, reach, options, timeoutMs }: PreparedCall): Work {
    const buffers = reach.share();
    const hooks = hooksOf(reach);
    const request = (): ExpressRequest => ({ call: { ...call, site: this.#sites.current()() }, buffers, timeoutMs, hooks });
    const { value } = uses.at(0)?.operand ?? {};
    if (call.kind === 'all-reduce' && value instanceof Tensor && isPlain(options))
      this.#hotExpress.set(value, { op: options.op, operation, request });
    const work = express.run(operation, this.#nextSequence(), request);
    if (work instanceof CompletedWork) hooks.onSuccess?.();
    return work;
  }

  /** When peers are late, what is private must be staged: whether there is room for that is found before anything is announced. */
  #runOnLane(lane: HostLane, operation: LaneOperation, request: () => LaneRequest, buffers = operation.buffers): Work {
    if (operation.privateBytes > largestBlockBytes)
      for (const { view } of Object.values(buffers)) this.#world.memory.checkFits(view.length);
    return lane.run(operation, this.#nextSequence(), request, buffers);
  }

  #nextSequence(): number {
    const sequence = this.#calls++;
    this.#lane?.announce(this.#calls);
    this.#express?.announce(this.#calls);
    return sequence;
  }

  #message(direction: 'send' | 'recv', data: TensorLike, peer: number, options: PeerOptions): Work {
    this.#checkUsable();
    const value = this.#operand(data, `the data of ${direction}`);
    if (!Number.isInteger(peer) || peer < 0 || peer >= this.size || peer === this.rank) {
      throw new ShoalError('usage', `${direction} needs another rank of 0…${this.size - 1}, not ${peer} (this is rank ${this.rank})`);
    }
    const tag = checkTag(options.tag ?? 0);
    const timeoutMs = checkTimeout(options.timeoutMs ?? this.#world.timeoutMs);
    const use = { name: 'data', operand: value, reads: direction === 'send', writes: direction === 'recv' } as const;
    const reach = new CallBuffers(this.#world.memory, [use]);
    const buffer = reach.share().data as SharedBuffer;
    const { dtype, count } = value;
    return this.#world.client.start(
      { type: 'message', group: this.#spec.id, direction, peer, tag, dtype, count, buffer, timeoutMs },
      `${direction} ${direction === 'send' ? 'to' : 'from'} rank ${peer}`,
      hooksOf(reach),
    );
  }

  /** An operation of several steps as one `Work`. */
  #deferred(description: string, run: (site: string | undefined) => Promise<void>): Work {
    const work = new PendingWork(this.#world.client, description);
    run(this.#sites.current()()).then(
      () => work.settle(undefined),
      (thrown: unknown) => work.settle(ShoalError.from(thrown)),
    );
    return work;
  }

  async #open(spec: GroupSpec | null, timeoutMs = this.#world.timeoutMs): Promise<ProcessGroup | null> {
    if (spec === null) return null;
    await this.#world.client.start({ type: 'open-group', spec, timeoutMs }, `opening group '${spec.name}'`);
    return new CommGroup(this.#world, spec);
  }

  async #end(timeoutMs: number): Promise<void> {
    for (const tensor of this.#blocks.keys()) this.#released.add(tensor);
    this.#lane?.flush();
    this.#express?.close();
    if (this.#spec.id === worldGroupId) {
      await this.#world.close(timeoutMs);
      return;
    }
    await this.#world.client.start({ type: 'close-group', group: this.#spec.id, timeoutMs }, `destroying group '${this.name}'`);
    for (const block of this.#blocks.values()) this.#world.memory.free(block);
    this.#blocks.clear();
  }

  // ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────────

  #checkUsable(): void {
    if (this.#destroyed) throw new ShoalError('closed', `group '${this.name}' was destroyed`, { rank: this.rank });
  }

  #operand(value: TensorLike, role: string): Operand {
    if (value instanceof Tensor && this.#released.has(value)) throw new ShoalError('usage', `${role} has been released`);
    return operand(value, role);
  }

  /** The arguments of an operation between one part per rank and the whole. */
  #gathering(
    operation: string,
    whole: TensorLike,
    part: TensorLike,
    options: CountsOptions,
  ): { source: Operand; target: Operand; counts?: readonly number[] } {
    const source = this.#operand(part, `the ${operation === 'allGather' ? 'input' : 'output'} of ${operation}`);
    const target = this.#operand(whole, `the ${operation === 'allGather' ? 'output' : 'input'} of ${operation}`);
    checkCounts(this, operation, options.counts ?? even(source.count, this.size), source, target);
    return { source, target, counts: options.counts };
  }
}

function lengthOf(value: TensorLike): number {
  return value instanceof Tensor ? value.count : value.length;
}

function hooksOf(staging: CallBuffers): { onSuccess?: () => void } {
  if (!staging.staged) return {};
  return {
    onSuccess: () => {
      staging.copyOut();
      staging.release();
    },
  };
}
