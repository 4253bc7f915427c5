/** N ranks of a process group in one thread, for tests of code that uses groups: an operation completes when the last rank has
 *  entered it, unless the test holds it back. It checks that ranks call the same operations in the same order, as real groups do.
 *  It must not be used where processes matter: it has none. */
import { ShoalError } from '../../base/errors.ts';
import { dtypeOfArray, type DType, type DTypeViews, type TypedArray } from '../../memory/dtype.ts';
import { balancedTree } from '../../memory/kernels.ts';
import { checkReduceOp, ReduceOp } from '../../memory/reduce-op.ts';
import type { Region } from '../../memory/region.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';
import type { CallOptions, CountsOptions, ReduceOptions, RootOptions, TensorLike, Work } from '../../group/caller/types.ts';
import type { ReducerGroup } from '../reducer-options.ts';

/** An operation as one rank entered it. */
interface Entry {
  /** Text that has to agree between ranks. */
  readonly contract: string;
  readonly data: TypedArray;
  readonly work: LocalWork;
  /** Performs the operation; runs once, with the entries of all ranks. */
  readonly perform: (entries: readonly Entry[]) => void;
  readonly output?: TypedArray;
}

class LocalWork implements Work {
  error: ShoalError | undefined;
  done = false;
  #settle: () => void = () => undefined;
  readonly #promise = new Promise<void>((resolve, reject) => {
    this.#settle = () => (this.error ? reject(this.error) : resolve());
  });

  constructor() {
    // A test may look at `error` instead of awaiting.
    this.#promise.catch(() => undefined);
  }

  end(error?: ShoalError): void {
    if (this.done) return;
    this.done = true;
    this.error = error;
    this.#settle();
  }

  then: Work['then'] = (onFulfilled, onRejected) => this.#promise.then(onFulfilled, onRejected);
  catch: Work['catch'] = (onRejected) => this.#promise.catch(onRejected);
  finally: Work['finally'] = (onFinally) => this.#promise.finally(onFinally);

  waitSync(): void {
    if (!this.done) throw new ShoalError('timeout', 'local world: other ranks share this thread, so a wait for them never ends');
    if (this.error) throw this.error;
  }
}

export class LocalWorld {
  readonly groups: readonly LocalGroup[];
  /** Contracts of completed operations, in order. */
  readonly log: string[] = [];
  readonly #entered: Entry[][] = [];
  readonly #next: number[];
  #completed = 0;
  #held = false;
  #lost: ShoalError | undefined;

  constructor(size: number) {
    this.#next = Array.from({ length: size }, () => 0);
    this.groups = Array.from({ length: size }, (_, rank) => new LocalGroup(this, rank, size));
  }

  /** Completes nothing until `resume`. */
  hold(): void {
    this.#held = true;
  }

  /** Completes what was held back. */
  resume(): void {
    this.#held = false;
    this.#advance();
  }

  /** Simulates the death of `rank`: everything under way and everything later fails on all ranks. */
  lose(rank: number): void {
    this.#lost = new ShoalError('peer-lost', `rank ${rank} died`, { peer: rank });
    this.#advance();
  }

  enter(rank: number, entry: Entry): Work {
    const sequence = this.#next[rank]++;
    (this.#entered[sequence] ??= [])[rank] = entry;
    this.#advance();
    return entry.work;
  }

  #advance(): void {
    for (; this.#completed < this.#entered.length; this.#completed++) {
      const entries = this.#entered[this.#completed];
      if (this.#lost) {
        for (const { work } of entries.filter(Boolean)) work.end(this.#lost);
        continue;
      }
      const all = entries.filter(Boolean);
      if (this.#held || all.length < this.groups.length) return;
      const contracts = new Set(all.map(({ contract }) => contract));
      if (contracts.size === 1) {
        all[0].perform(all);
        this.log.push(all[0].contract);
        for (const { work } of all) work.end();
      } else {
        const calls = all.map(({ contract }, rank) => `rank ${rank}: ${contract}`).join('; ');
        for (const { work } of all) work.end(new ShoalError('mismatch', `ranks called different collectives: ${calls}`));
      }
    }
  }
}

export class LocalGroup implements ReducerGroup {
  readonly rank: number;
  readonly size: number;
  /** Number of tensors allocated and not released. */
  tensors = 0;
  readonly #world: LocalWorld;

  constructor(world: LocalWorld, rank: number, size: number) {
    this.#world = world;
    this.rank = rank;
    this.size = size;
  }

  tensor<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    this.tensors++;
    return new Tensor(dtype, shape, sharedArrayRegion(countOf(shape) * 8), 0);
  }

  release(): void {
    this.tensors--;
  }

  allReduce(data: TensorLike, { op = ReduceOp.Sum, name = '' }: ReduceOptions = {}): Work {
    const [array, dtype] = arrayOf(data);
    checkReduceOp(op, dtype);
    if (op !== ReduceOp.Sum && op !== ReduceOp.Avg) throw new ShoalError('unsupported', `local world: reduce op '${op}'`);
    if (dtype !== 'float32' && dtype !== 'float64') throw new ShoalError('unsupported', `local world: all-reduce of ${dtype}`);
    return this.#enter(`all-reduce ${name} ${op} ${dtype}[${array.length}]`, array, (entries) => {
      const sources = entries.map((entry) => entry.data.slice() as DTypeViews[typeof dtype]);
      const tree = balancedTree(sources.length);
      for (let i = 0; i < array.length; i++) {
        const stack: number[] = [];
        for (const node of tree) stack.push(node >= 0 ? sources[node][i] : round(stack.pop()! + stack.pop()!, dtype));
        const value = op === ReduceOp.Avg ? stack[0] / entries.length : stack[0];
        for (const entry of entries) entry.data[i] = value;
      }
    });
  }

  broadcast(data: TensorLike, { root = 0, name = '' }: RootOptions = {}): Work {
    const [array, dtype] = arrayOf(data);
    return this.#enter(`broadcast ${name} ${dtype}[${array.length}] from ${root}`, array, (entries) => {
      for (const entry of entries) entry.data.set(entries[root].data as never);
    });
  }

  allGather(output: TensorLike, input: TensorLike, { counts, name = '' }: CountsOptions = {}): Work {
    const [array, dtype] = arrayOf(input);
    const [target] = arrayOf(output);
    const shares = counts ?? Array.from({ length: this.size }, () => array.length);
    if (array.length !== shares[this.rank] || target.length !== shares.reduce((a, b) => a + b, 0)) {
      throw new ShoalError(
        'usage',
        `local world: all-gather of ${array.length} into ${target.length} elements with counts ${shares.join(', ')}`,
      );
    }
    const gather = (entries: readonly Entry[]): void => {
      let from = 0;
      for (const { data } of entries) {
        for (const entry of entries) entry.output?.set(data as never, from);
        from += data.length;
      }
    };
    return this.#enter(`all-gather ${name} ${dtype}[${shares.join(', ')}]`, array, gather, target);
  }

  barrier({ name = '' }: CallOptions = {}): Work {
    return this.#enter(`barrier ${name}`, new Uint8Array(0), () => undefined);
  }

  #enter(contract: string, data: TypedArray, perform: Entry['perform'], output?: TypedArray): Work {
    return this.#world.enter(this.rank, { contract, data, perform, work: new LocalWork(), ...(output && { output }) });
  }
}

/** Runs `body` on every rank at once, and returns the results by rank. All bodies end before the first failure is thrown. */
export async function onEveryRank<T>(world: LocalWorld, body: (group: LocalGroup) => Promise<T>): Promise<T[]> {
  const results = await Promise.allSettled(world.groups.map(body));
  return results.map((result) => {
    if (result.status === 'rejected') throw result.reason as Error;
    return result.value;
  });
}

function arrayOf(data: TensorLike): [TypedArray, DType] {
  return data instanceof Tensor ? [data.data, data.dtype] : [data as TypedArray, dtypeOfArray(data)];
}

function round(value: number, dtype: 'float32' | 'float64'): number {
  return dtype === 'float32' ? Math.fround(value) : value;
}

function sharedArrayRegion(bytes: number): Region {
  const buffer = new SharedArrayBuffer(Math.max(bytes, 8));
  return {
    id: 'local',
    bytes: buffer.byteLength,
    buffer,
    share: { kind: 'thread', id: 'local', bytes: buffer.byteLength, buffer },
    close: () => undefined,
    retire: () => undefined,
  };
}
