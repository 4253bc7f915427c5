/** The promise of each collective, as data: the sizes of a rank's buffers, and the value of every element when the operation has
 *  ended. Used by the verifier and by the interpreter; written from the table in ir.ts and from nothing else. */
import { unreachable } from '../base/assert.ts';
import { sum } from '../base/numbers.ts';
import type { BufferName, PlanRequest } from './ir.ts';
import { segments, type Range } from './ranges.ts';
import { rankCount } from './topology.ts';

/** Elements of a rank's buffers, without scratch. */
export type BufferCounts = Readonly<Record<Exclude<BufferName, 'scratch' | 'mailbox'>, number>>;

/** Expected values of the elements of `range` of `buffer`: position p holds element p + delta of … */
export type Expectation = { readonly buffer: 'data' | 'input' | 'output'; readonly range: Range; readonly delta: number } & (
  | /** … one rank's initial buffer. */ { readonly kind: 'copy'; readonly rank: number; readonly from: 'data' | 'input' }
  | /** … the reduction over all ranks' initial buffers. */ { readonly kind: 'reduction'; readonly from: 'data' | 'input' }
);

export function bufferCounts(request: PlanRequest, rank: number): BufferCounts {
  const { collective, count, counts = [], splits = [], root } = request;
  const own = counts[rank] ?? 0;
  switch (collective) {
    case 'all-reduce':
    case 'broadcast':
    case 'reduce':
      return { data: count, input: 0, output: 0 };
    case 'all-gather':
      return { data: 0, input: own, output: count };
    case 'gather':
      return { data: 0, input: own, output: rank === root ? count : 0 };
    case 'scatter':
      return { data: 0, input: rank === root ? count : 0, output: own };
    case 'reduce-scatter':
      return { data: 0, input: count, output: own };
    case 'all-to-all':
      return { data: 0, input: sum(splits[rank]), output: sum(splits.map((row) => row[rank])) };
    case 'barrier':
      return { data: 0, input: 0, output: 0 };
    default:
      return unreachable(collective);
  }
}

/** Expectations for every element of the rank's data, input and output. */
export function expectations(request: PlanRequest, rank: number): Expectation[] {
  const { collective, count, splits = [], root = 0 } = request;
  const parts = segments(request.counts ?? []);
  const sizes = bufferCounts(request, rank);
  const all: Range = { offset: 0, count };
  // Inputs are the caller's, so they end as they began.
  const input: Expectation = { buffer: 'input', range: { offset: 0, count: sizes.input }, delta: 0, kind: 'copy', rank, from: 'input' };
  const output = (range: Range, from: number, index: number): Expectation => ({
    buffer: 'output',
    range,
    delta: index - range.offset,
    kind: 'copy',
    rank: from,
    from: 'input',
  });
  switch (collective) {
    case 'all-reduce':
      return [{ buffer: 'data', range: all, delta: 0, kind: 'reduction', from: 'data' }];
    case 'broadcast':
      return [{ buffer: 'data', range: all, delta: 0, kind: 'copy', rank: root, from: 'data' }];
    case 'reduce':
      if (rank === root) return [{ buffer: 'data', range: all, delta: 0, kind: 'reduction', from: 'data' }];
      return [{ buffer: 'data', range: all, delta: 0, kind: 'copy', rank, from: 'data' }];
    case 'all-gather':
      return [input, ...parts.map((part, from) => output(part, from, 0))];
    case 'gather':
      return [input, ...(rank === root ? parts.map((part, from) => output(part, from, 0)) : [])];
    case 'scatter':
      return [input, output({ offset: 0, count: parts[rank].count }, root, parts[rank].offset)];
    case 'reduce-scatter':
      return [
        input,
        { buffer: 'output', range: { offset: 0, count: parts[rank].count }, delta: parts[rank].offset, kind: 'reduction', from: 'input' },
      ];
    case 'all-to-all': {
      const incoming = segments(splits.map((row) => row[rank]));
      return [input, ...incoming.map((part, from) => output(part, from, segments(splits[from])[rank].offset))];
    }
    case 'barrier':
      return [];
    default:
      return unreachable(collective);
  }
}

/** True if the request reduces anything: a world of one has its result already. */
export function reduces(request: PlanRequest): boolean {
  const { collective } = request;
  return rankCount(request.topology) > 1 && (collective === 'all-reduce' || collective === 'reduce' || collective === 'reduce-scatter');
}
