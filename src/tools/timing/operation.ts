/** One collective on buffers of its own: writes its inputs, starts it, and counts wrong elements of the result. The number and
 *  the times of calls are not known here. */
import { ShoalError } from '../../base/errors.ts';
import { sum } from '../../base/numbers.ts';
import type { ProcessGroup, TensorLike, Work } from '../../group/caller/types.ts';
import { dtypeInfo, viewOf, type TypedArray } from '../../memory/dtype.ts';
import { Tensor } from '../../memory/tensor.ts';
import { evenName, layoutOf, reduces, type Half, type Layout, type pairTests } from './collective.ts';
import { hasOwnArray, type BenchOptions } from './options.ts';
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
  readonly options: Pick<BenchOptions, 'collective' | 'dtype' | 'op' | 'root' | 'memory' | 'buckets'>;
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

interface Buffers {
  readonly input: Buffer;
  readonly output: Buffer;
}

/** A collective's use of its buffers; `arm` writes patterns into them, by elements. */
type Moves = Pick<Operation, 'start' | 'arm' | 'wrong'>;

export function createOperation(spec: OperationSpec): Operation {
  const { group, options } = spec;
  const { collective, dtype, root } = options;
  const size = { bytes: spec.bytes, elementBytes: dtypeInfo(dtype).bytes, ranks: group.size };
  const layout = layoutOf(collective, size, { rank: group.rank, root });
  const { input, output } = buffersOf(spec, layout);
  const moves = movesOf(spec, layout, { input, output });
  // Zeros stay zeros; ones would do for one call only, as without `touch` every call finds the result of the one before as its input.
  fillConstant(input.data, 0);
  const contribution = reduces(collective) ? group.rank + 1 : 1;
  return {
    touch: () => fillConstant(input.data, contribution),
    start: moves.start,
    arm: () => {
      spoil(output.data);
      moves.arm();
    },
    wrong: moves.wrong,
    release: () => {
      for (const value of new Set([input.value, output.value])) if (value instanceof Tensor) group.release(value);
    },
  };
}

/** In place, the smaller buffer is this rank's part of the larger. */
function buffersOf(spec: OperationSpec, { parts, sendCount, receiveCount }: Layout): Buffers {
  if (spec.half === 'outOfPlace' || sendCount === 0 || receiveCount === 0)
    return { input: allocate(spec, sendCount), output: allocate(spec, receiveCount) };
  const larger = allocate(spec, Math.max(sendCount, receiveCount));
  if (sendCount === receiveCount) return { input: larger, output: larger };
  const part = { value: larger.value, data: sliced(larger.data, parts)[spec.group.rank] };
  return sendCount < receiveCount ? { input: part, output: larger } : { input: larger, output: part };
}

function movesOf({ group, options, patterns, slot }: OperationSpec, { parts }: Layout, { input, output }: Buffers): Moves {
  const { rank, size } = group;
  const { collective, op, root } = options;
  const name = evenName(collective);
  const shift = slot * 37;
  const inPlace = input.value === output.value;
  const atRoot = rank === root;
  const eachRank = Array.from({ length: size }, (_, each) => each);
  const counts = name === collective ? {} : { counts: parts };
  const fillPart = (): void => fillWith(input.data, patterns.part(rank), shift);
  const wrongPart = (source: number): number => patterns.countWrong(output.data, patterns.part(source), shift);
  switch (name) {
    case 'all-reduce':
      return {
        // Out of place: the interface reduces in place, so the input is copied first; the copy is part of the time.
        start: inPlace ? () => group.allReduce(input.value, { op }) : () => group.allReduce(copied(input, output), { op }),
        arm: () => fillWith(input.data, patterns.term(rank), shift),
        wrong: () => patterns.countWrong(output.data, patterns.reduced(), shift),
      };
    case 'reduce':
      return {
        start: () => group.reduce(inPlace || !atRoot ? input.value : copied(input, output), { op, root }),
        arm: () => fillWith(input.data, patterns.term(rank), shift),
        // Other ranks keep their values.
        wrong: () => patterns.countWrong((atRoot ? output : input).data, atRoot ? patterns.reduced() : patterns.term(rank), shift),
      };
    case 'broadcast':
      return {
        start: inPlace || !atRoot ? () => group.broadcast(output.value, { root }) : () => group.broadcast(copied(input, output), { root }),
        arm: () => {
          if (atRoot) fillPart();
        },
        wrong: () => wrongPart(root),
      };
    case 'all-gather':
    case 'gather': {
      const wrong = (): number => {
        const received = output.data.length === 0 ? [] : sliced(output.data, parts);
        return sum(received.map((part, from) => patterns.countWrong(part, patterns.part(from), shift)));
      };
      if (name === 'all-gather') return { start: () => group.allGather(output.value, input.value, counts), arm: fillPart, wrong };
      return {
        start: () => group.gather(atRoot ? output.value : null, inPlace ? null : input.value, { root, ...counts }),
        arm: fillPart,
        wrong,
      };
    }
    case 'scatter':
      return {
        start: () => group.scatter(inPlace ? null : output.value, atRoot ? input.value : null, { root, ...counts }),
        arm: () => {
          if (atRoot) sliced(input.data, parts).forEach((part, to) => fillWith(part, patterns.part(root, to), shift));
        },
        wrong: () => patterns.countWrong(output.data, patterns.part(root, rank), shift),
      };
    case 'reduce-scatter':
      return {
        start: () => group.reduceScatter(output.value, input.value, { op, ...counts }),
        arm: () => fillWith(input.data, patterns.term(rank), shift),
        wrong: () => patterns.countWrong(output.data, patterns.reduced(), shift + sum(parts.slice(0, rank))),
      };
    case 'all-to-all': {
      // Two ranks send each other equally much, and all ranks send equally much in all.
      const splits = eachRank.map((peer) => parts[(rank + peer) % size]);
      const uneven = name === collective ? {} : { inputSplits: splits, outputSplits: splits };
      return {
        start: () => group.allToAll(output.value, input.value, uneven),
        arm: () => sliced(input.data, splits).forEach((part, to) => fillWith(part, patterns.part(rank, to), shift)),
        wrong: () => sum(sliced(output.data, splits).map((part, from) => patterns.countWrong(part, patterns.part(from, rank), shift))),
      };
    }
    case 'send-recv': {
      // A ring, as in nccl-tests: every rank sends to the next and receives from the one before.
      const before = (rank + size - 1) % size;
      return {
        start: () => together(group.recv(output.value, before, { tag: slot }), group.send(input.value, (rank + 1) % size, { tag: slot })),
        arm: fillPart,
        wrong: () => wrongPart(before),
      };
    }
    case 'latency':
    case 'bandwidth':
    case 'bidirectional': {
      const peer = 1 - rank;
      const receives = name !== 'bandwidth' || rank === 1;
      return {
        start: exchangeOf(name, { group, options, slot }, { input, output }),
        arm: fillPart,
        wrong: () => (receives ? wrongPart(peer) : 0),
      };
    }
    case 'barrier':
      return { start: () => group.barrier(), arm: () => undefined, wrong: () => 0 };
  }
}

/** This rank's part of a test of two ranks. A latency is a message there and one back; a window of bandwidth ends with a small
 *  message back. */
function exchangeOf(
  name: (typeof pairTests)[number],
  { group, options, slot }: Pick<OperationSpec, 'group' | 'options' | 'slot'>,
  { input, output }: Buffers,
): () => Pending {
  const first = group.rank === 0;
  const peer = 1 - group.rank;
  const send = (data: TensorLike = input.value): Work => group.send(data, peer, { tag: slot });
  const receive = (data: TensorLike = output.value): Work => group.recv(data, peer, { tag: slot });
  if (name === 'bidirectional') return () => together(receive(), send());
  if (name === 'latency') return first ? () => inTurn(send(), receive) : () => inTurn(receive(), send);
  if (slot < options.buckets - 1) return first ? () => send() : () => receive();
  const end = new Uint8Array(1);
  return first ? () => inTurn(send(), () => receive(end)) : () => inTurn(receive(), () => send(end));
}

/** Two operations, of which the second starts when the first is done. */
function inTurn(first: Work, second: () => Work): Pending {
  return {
    waitSync(timeoutMs) {
      first.waitSync(timeoutMs);
      second().waitSync(timeoutMs);
    },
    then: (onFulfilled, onRejected) => first.then(() => second()).then(onFulfilled, onRejected),
  };
}

/** Two started operations as one. */
function together(first: Work, second: Work): Pending {
  return inTurn(first, () => second);
}

/** Views of consecutive parts of so many elements. */
function sliced(data: TypedArray, counts: readonly number[]): TypedArray[] {
  return counts.map((count, index) => {
    const start = sum(counts.slice(0, index));
    return data.subarray(start, start + count);
  });
}

function allocate({ group, options: { dtype, memory } }: OperationSpec, count: number): Buffer {
  if (memory === 'shared') {
    const tensor = group.tensor(dtype, [count]);
    return { value: tensor, data: tensor.data };
  }
  if (!hasOwnArray(dtype)) {
    const message = `${dtype} has no typed array of its own in JavaScript, so that it cannot be measured with private memory`;
    throw new ShoalError('usage', message);
  }
  const array = viewOf(dtype, new ArrayBuffer(count * dtypeInfo(dtype).bytes), 0, count);
  return { value: array, data: array };
}

function copied(source: Buffer, target: Buffer): TensorLike {
  (target.data as Float64Array).set(source.data as Float64Array);
  return target.value;
}

function fillConstant(data: TypedArray, value: number): void {
  if (data instanceof BigInt64Array || data instanceof BigUint64Array) data.fill(BigInt(value));
  else data.fill(value);
}
