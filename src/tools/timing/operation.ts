/** One collective on buffers of its own: writes its inputs, starts it, and counts wrong elements of the result. The number and
 *  the times of calls are not known here. */
import { ShoalError } from '../../base/errors.ts';
import { sum } from '../../base/numbers.ts';
import type { ProcessGroup, TensorLike, Work } from '../../group/caller/types.ts';
import { dtypeInfo, dtypeOfArray, viewOf, type DType, type TypedArray } from '../../memory/dtype.ts';
import { Tensor } from '../../memory/tensor.ts';
import { layoutOf, type Half } from './collective.ts';
import type { BenchOptions } from './options.ts';
import { fillWith, spoil, type Patterns } from './pattern.ts';

/** A started operation, to be awaited or waited for synchronously. */
export type Pending = Pick<Work, 'then' | 'waitSync'>;

export interface Operation {
  /** Writes this rank's input, as a training step does: with numbers that stay small however often they are summed. */
  touch(): void;
  start(): Pending;
  /** Writes inputs that tell ranks and positions apart, and makes the results unlike them. */
  arm(): void;
  /** Number of wrong elements of this rank's result, after `arm` and one call. */
  wrong(): number;
  /** Gives the memory back. */
  release(): void;
}

export interface OperationSpec {
  readonly group: ProcessGroup;
  readonly options: BenchOptions;
  readonly patterns: Patterns;
  readonly bytes: number;
  readonly half: Half;
  /** Shifts the patterns: operations in flight at the same time hold different data. */
  readonly slot: number;
}

interface Buffer {
  readonly value: TensorLike;
  readonly data: TypedArray;
}

/** A collective's use of its buffers. */
interface Moves {
  start(): Pending;
  /** Writes patterns into the buffers, by elements. */
  arm(): void;
  wrong(): number;
}

export function createOperation(spec: OperationSpec): Operation {
  const { group, options, half } = spec;
  const { collective, dtype } = options;
  const { sendCount, receiveCount } = layoutOf(collective, { bytes: spec.bytes, elementBytes: dtypeInfo(dtype).bytes, ranks: group.size });
  const input = allocate(spec, sendCount);
  const output = half === 'inPlace' ? input : allocate(spec, receiveCount);
  const moves = movesOf(spec, input, output);
  // Zeros stay zeros; ones would do for one call only, as without `touch` every call finds the result of the one before as its input.
  fillConstant(input.data, 0);
  const contribution = collective === 'all-reduce' || collective === 'reduce-scatter' ? group.rank + 1 : 1;
  return {
    touch: () => fillConstant(input.data, contribution),
    start: moves.start,
    arm: () => {
      spoil(output.data);
      moves.arm();
    },
    wrong: moves.wrong,
    release: () => {
      for (const { value } of new Set([input, output])) if (value instanceof Tensor) group.release(value);
    },
  };
}

function movesOf({ group, options, patterns, slot }: OperationSpec, input: Buffer, output: Buffer): Moves {
  const { rank, size } = group;
  const { collective, op, root } = options;
  const shift = slot * 37;
  const inPlace = input === output;
  const partCount = Math.max(input.data.length, output.data.length) / size;
  const own = (data: TypedArray, part: number): TypedArray => data.subarray(part * partCount, (part + 1) * partCount);
  const eachRank = Array.from({ length: size }, (_, each) => each);
  switch (collective) {
    case 'all-reduce':
      return {
        // Out of place: the interface reduces in place, so the input is copied first; the copy is part of the time.
        start: inPlace ? () => group.allReduce(input.value, { op }) : () => group.allReduce(copied(input, output), { op }),
        arm: () => fillWith(input.data, patterns.term(rank), shift),
        wrong: () => patterns.countWrong(output.data, patterns.reduced(), shift),
      };
    case 'broadcast':
      return {
        start:
          inPlace || rank !== root ? () => group.broadcast(output.value, { root }) : () => group.broadcast(copied(input, output), { root }),
        arm: () => {
          if (rank === root) fillWith(input.data, patterns.part(root), shift);
        },
        wrong: () => patterns.countWrong(output.data, patterns.part(root), shift),
      };
    case 'all-gather':
      return {
        start: () => group.allGather(output.value, input.value),
        arm: () => fillWith(input.data, patterns.part(rank), shift),
        wrong: () => sum(eachRank.map((from) => patterns.countWrong(own(output.data, from), patterns.part(from), shift))),
      };
    case 'reduce-scatter':
      return {
        start: () => group.reduceScatter(output.value, input.value, { op }),
        arm: () => fillWith(input.data, patterns.term(rank), shift),
        wrong: () => patterns.countWrong(output.data, patterns.reduced(), shift + rank * partCount),
      };
    case 'all-to-all':
      return {
        start: () => group.allToAll(output.value, input.value),
        arm: () => eachRank.forEach((to) => fillWith(own(input.data, to), patterns.part(rank, to), shift)),
        wrong: () => sum(eachRank.map((from) => patterns.countWrong(own(output.data, from), patterns.part(from, rank), shift))),
      };
    case 'send-recv': {
      // A ring, as in nccl-tests: every rank sends to the next and receives from the one before.
      const before = (rank + size - 1) % size;
      return {
        start: () => new Both(group.recv(output.value, before, { tag: slot }), group.send(input.value, (rank + 1) % size, { tag: slot })),
        arm: () => fillWith(input.data, patterns.part(rank), shift),
        wrong: () => patterns.countWrong(output.data, patterns.part(before), shift),
      };
    }
    case 'barrier':
      return { start: () => group.barrier(), arm: () => undefined, wrong: () => 0 };
  }
}

/** Two operations as one. */
class Both implements Pending {
  readonly #first: Work;
  readonly #second: Work;

  constructor(first: Work, second: Work) {
    this.#first = first;
    this.#second = second;
  }

  waitSync(timeoutMs?: number): void {
    this.#first.waitSync(timeoutMs);
    this.#second.waitSync(timeoutMs);
  }

  then<A = void, B = never>(
    onFulfilled?: ((value: void) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return Promise.all([this.#first, this.#second])
      .then(() => undefined)
      .then(onFulfilled, onRejected);
  }
}

function allocate({ group, options: { dtype, memory } }: OperationSpec, count: number): Buffer {
  if (memory === 'shared') {
    const tensor = group.tensor(dtype, [count]);
    return { value: tensor, data: tensor.data };
  }
  const array = viewOf(dtype, new ArrayBuffer(count * dtypeInfo(dtype).bytes), 0, count);
  checkPrivate(dtype, array);
  return { value: array, data: array };
}

function checkPrivate(dtype: DType, array: TypedArray): void {
  if (dtypeOfArray(array) === dtype) return;
  throw new ShoalError('usage', `${dtype} has no typed array of its own in JavaScript, so that it cannot be measured with private memory`);
}

function copied(source: Buffer, target: Buffer): TensorLike {
  (target.data as Float64Array).set(source.data as Float64Array);
  return target.value;
}

function fillConstant(data: TypedArray, value: number): void {
  if (data instanceof BigInt64Array || data instanceof BigUint64Array) data.fill(BigInt(value));
  else data.fill(value);
}
