/** Pieces, executed on lists: what all ranks' pieces do together is what the call does. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { CollectiveCall } from '../../../call/contract.ts';
import { cutCall, type ElementSpan, type Piece } from './device-pieces.ts';

type Memory = { [name in 'input' | 'output' | 'data']?: number[] };

const kinds = ['all-reduce', 'broadcast', 'reduce', 'all-gather', 'gather', 'scatter', 'reduce-scatter', 'all-to-all'] as const;

function picked(values: readonly number[], spans: readonly ElementSpan[]): number[] {
  return spans.flatMap(({ at, count }) => values.slice(at, at + count));
}

function put(values: number[], spans: readonly ElementSpan[], from: readonly number[]): void {
  let next = 0;
  for (const { at, count } of spans) for (let k = 0; k < count; k++) values[at + k] = from[next++];
  expect(next).toBe(from.length);
}

function sumOf(lists: readonly (readonly number[])[]): number[] {
  return lists[0].map((_, at) => lists.reduce((sum, list) => sum + list[at], 0));
}

function slices(values: readonly number[], counts: readonly number[]): number[][] {
  let at = 0;
  return counts.map((count) => values.slice(at, (at += count)));
}

/** Makes each rank's output from all inputs. @param counts of each rank's part. */
function collective(
  kind: CollectiveCall['kind'],
  inputs: readonly number[][],
  root: number,
  counts: readonly number[],
): (number[] | undefined)[] {
  const n = inputs.length;
  switch (kind) {
    case 'all-reduce':
      return inputs.map(() => sumOf(inputs));
    case 'broadcast':
      return inputs.map(() => [...inputs[root]]);
    case 'reduce':
      return inputs.map((input, rank) => (rank === root ? sumOf(inputs) : [...input]));
    case 'all-gather':
      return inputs.map(() => inputs.flat());
    case 'gather':
      return inputs.map((_, rank) => (rank === root ? inputs.flat() : undefined));
    case 'scatter':
      return slices(inputs[root], counts);
    case 'reduce-scatter':
      return slices(sumOf(inputs), counts);
    default:
      return inputs.map((_, to) => inputs.flatMap((input) => slices(input, new Array<number>(n).fill(input.length / n))[to]));
  }
}

describe('cutCall', () => {
  it('makes pieces that together are the call', () => {
    fc.assert(
      fc.property(
        fc.constantFrom(...kinds),
        fc.integer({ min: 1, max: 5 }),
        fc.array(fc.nat(40), { minLength: 5, maxLength: 5 }),
        fc.boolean(),
        fc.integer({ min: 1, max: 24 }),
        fc.constantFrom(1, 2, 4),
        fc.nat(4),
        (kind, n, sizes, uneven, elementsMax, aligned, rootIndex) => {
          const root = rootIndex % n;
          const hasParts = ['all-gather', 'gather', 'scatter', 'reduce-scatter', 'all-to-all'].includes(kind);
          const counts = kind !== 'all-to-all' && uneven ? sizes.slice(0, n) : new Array<number>(n).fill(sizes[0]);
          const whole = counts.reduce((sum, count) => sum + count, 0);
          const count = kind === 'all-to-all' ? sizes[0] * n * n : hasParts ? whole : sizes[0];
          const ofWhole = ['scatter', 'reduce-scatter', 'all-to-all'].includes(kind);
          const inputs = Array.from({ length: n }, (_, rank) =>
            Array.from({ length: !hasParts ? sizes[0] : ofWhole ? whole : counts[rank] }, (_each, at) => 1000 * rank + at),
          );
          const call: CollectiveCall = {
            kind,
            dtype: 'int32',
            count,
            root,
            ...(uneven && hasParts && kind !== 'all-to-all' ? { counts } : {}),
          };
          const wanted = collective(kind, inputs, root, counts);
          const memories: Memory[] = inputs.map((input, rank) =>
            hasParts ? { input, output: new Array<number>(wanted[rank]?.length ?? 0).fill(-1) } : { data: [...input] },
          );
          const pieces = inputs.map((_, rank) => cutCall(call, { rank, size: n }, { elementsMax: Math.max(n, elementsMax), aligned }));
          expect(new Set(pieces.map(({ length }) => length)).size).toBe(1);
          pieces[0].forEach((_, index) =>
            runPiece(
              kind,
              pieces.map((own) => own[index]),
              memories,
              root,
            ),
          );
          memories.forEach(({ data, output }, rank) => expect(data ?? output).toEqual(wanted[rank] ?? []));
          for (const piece of pieces.flat()) {
            const most = Math.max(n * aligned, elementsMax, n);
            for (const spans of [piece.input, piece.output])
              expect(spans.reduce((sum, span) => sum + span.count, 0)).toBeLessThanOrEqual(most);
          }
        },
      ),
    );
  });
});

/** One piece on all ranks. */
function runPiece(kind: CollectiveCall['kind'], pieces: readonly Piece[], memories: readonly Memory[], root: number): void {
  const inputs = pieces.map(({ input }, rank) => picked(memories[rank].data ?? memories[rank].input ?? [], input));
  const outputs = collective(kind, inputs, root, pieces[0].counts ?? []);
  pieces.forEach(({ output }, rank) => {
    const result = outputs[rank];
    if (result) put(memories[rank].data ?? memories[rank].output ?? [], output, result);
  });
}
