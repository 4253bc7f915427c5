/** Collectives of random programs, and what they must give. */
import { ReduceOp } from '../../memory/reduce-op.ts';
import type { CommGroup } from '../api/process-group.ts';
import type { TensorLike, Work } from '../caller/types.ts';

/** A collective that all ranks call. */
export interface Collective {
  readonly kind: 'all-reduce' | 'broadcast' | 'all-gather' | 'reduce-scatter' | 'barrier';
  readonly count: number;
  readonly op: ReduceOp;
  readonly root: number;
  /** True for each rank that passes a plain array, not a tensor of the group. */
  readonly plain: readonly boolean[];
}

export interface Step extends Collective {
  /** Turns of the event loop before the call, by rank. */
  readonly late: readonly number[];
  /** True for each rank that waits for the call's end before the next one. */
  readonly awaited: readonly boolean[];
}

/** Small and large, at and around the sizes at which paths change. */
export const stepCounts = [0, 1, 2, 7, 64, 1000, 8192, 8196, 20_000] as const;

/** The number of elements after which a rank's contribution repeats itself. */
const period = 64;

/** A rank's contribution to a step; sums of it are exact. */
const given = (rank: number, step: number, index: number): number => ((rank + 1) * 31 + step * 17 + index * 7) % period;

/** One period of a function that has it. */
const table = (of: (index: number) => number): Float32Array => Float32Array.from({ length: period }, (_, index) => of(index));

/** A call, and what is right once it has ended well. */
export interface Call {
  readonly work: Work;
  check(): void;
}

/** A call that has its data. */
export interface PreparedCall {
  /** @throws ShoalError when the group has failed. */
  begin(): Work;
  check(): void;
}

/** Makes the call of a rank in this step, the `index`th of its program. @throws ShoalError when the group has failed. */
export function callOf(group: CommGroup, step: Collective, index: number): Call {
  const { begin, check } = prepareCall(group, step, index);
  return { work: begin(), check };
}

export function prepareCall(group: CommGroup, step: Collective, index: number): PreparedCall {
  const { rank, size } = group;
  const { kind, count, op, root } = step;
  const array = (length: number): { value: TensorLike; data: Float32Array } => {
    if (step.plain[rank]) {
      const data = new Float32Array(length);
      return { value: data, data };
    }
    const value = group.tensor('float32', [length]);
    return { value, data: value.data };
  };
  const filled = (length: number): { value: TensorLike; data: Float32Array } => {
    const made = array(length);
    const values = table((i) => given(rank, index, i));
    for (let i = 0; i < length; i++) made.data[i] = values[i % period];
    return made;
  };
  const reduced = (i: number): number => {
    const all = Array.from({ length: size }, (_, r) => given(r, index, i));
    return op === ReduceOp.Max ? Math.max(...all) : all.reduce((sum, value) => sum + value, 0);
  };
  /** The elements from `from` on of what `of` describes. */
  const expectRange = (result: Float32Array, of: (i: number) => number, from = 0): void => {
    const values = table(of);
    for (let i = 0; i < result.length; i++) {
      const right = values[(from + i) % period];
      if (result[i] !== right)
        throw new Error(`rank ${rank}, call ${index}, ${kind} of ${count}: element ${i} is ${result[i]}, not ${right}`);
    }
  };
  switch (kind) {
    case 'all-reduce': {
      const { value, data } = filled(count);
      return { begin: () => group.allReduce(value, { op }), check: () => expectRange(data, reduced) };
    }
    case 'broadcast': {
      const { value, data } = filled(count);
      return { begin: () => group.broadcast(value, { root }), check: () => expectRange(data, (i) => given(root, index, i)) };
    }
    case 'all-gather': {
      const [input, output] = [filled(count), array(count * size)];
      return {
        begin: () => group.allGather(output.value, input.value),
        check: () => {
          for (let r = 0; r < size; r++) expectRange(output.data.subarray(r * count, (r + 1) * count), (i) => given(r, index, i));
        },
      };
    }
    case 'reduce-scatter': {
      const [input, output] = [filled(count * size), array(count)];
      return {
        begin: () => group.reduceScatter(output.value, input.value, { op }),
        check: () => expectRange(output.data, reduced, rank * count),
      };
    }
    default:
      return { begin: () => group.barrier(), check: () => {} };
  }
}

/** Every rank sends so many numbers to its right, and receives as many. @throws Error where those of its left are wrong. */
export async function sendAround(group: CommGroup, count: number, index: number): Promise<void> {
  const { rank, size } = group;
  const [right, left] = [(rank + 1) % size, (rank + size - 1) % size];
  const received = new Float32Array(count);
  const sent = group.send(new Float32Array(count).fill(rank + index), right);
  await group.recv(received, left);
  await sent;
  if (received.some((value) => value !== left + index))
    throw new Error(`rank ${rank}, call ${index}: received ${received[0]} of rank ${left}`);
}
