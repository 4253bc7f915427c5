/** Cuts a collective on device tensors into collectives of its own kind, each on staging of a bounded size. The cut follows from the
 *  contract, so it is the same on all ranks; only the places that a rank reads and writes are its own.
 *
 *      all-reduce, broadcast, reduce       0123│4567│89               consecutive elements
 *      all-gather, gather                  each rank's part is cut, and the k-th pieces of all ranks are gathered
 *      reduce-scatter, scatter, all-to-all the whole has a part for each rank: the k-th pieces of all parts lie together
 *
 *  It must not know devices. */
import { assert } from '../../../base/assert.ts';
import type { CollectiveCall, Place } from '../../../call/contract.ts';

/** Consecutive elements of an argument. */
export interface ElementSpan {
  readonly at: number;
  readonly count: number;
}

export interface Piece {
  /** Elements in the staging of `data` or `input`, one span after the other. */
  readonly input: readonly ElementSpan[];
  /** Elements in the staging of `data` or `output`. */
  readonly output: readonly ElementSpan[];
  /** Elements, as in the plan request. */
  readonly count: number;
  /** Elements of each rank's part, of calls that have them. */
  readonly counts?: readonly number[];
}

/** @param elementsMax of staging. A piece has at least as many elements as the group has ranks.
 *  @param aligned pieces begin at multiples of so many elements. */
export function cutCall(
  { kind, count, counts }: CollectiveCall,
  { rank, size }: Place,
  { elementsMax, aligned }: { readonly elementsMax: number; readonly aligned: number },
): Piece[] {
  const step = (most: number): number => Math.max(aligned, most - (most % aligned));
  switch (kind) {
    case 'all-reduce':
    case 'broadcast':
    case 'reduce':
      return cuts(count, step(elementsMax)).map((span) => ({ count: span.count, input: [span], output: [span] }));
    case 'all-to-all': {
      const part = count / size / size;
      return cuts(part, step(Math.floor(elementsMax / size))).map((span) => {
        const parts = Array.from({ length: size }, (_, peer) => ({ at: peer * part + span.at, count: span.count }));
        return { count: span.count * size * size, input: parts, output: parts };
      });
    }
    default: {
      const each = counts ?? new Array<number>(size).fill(count / size);
      const begins = each.map((_, peer) => each.slice(0, peer).reduce((sum, elements) => sum + elements, 0));
      const isGathering = kind === 'all-gather' || kind === 'gather';
      assert(isGathering || kind === 'reduce-scatter' || kind === 'scatter', () => `${kind} has data`);
      return cuts(Math.max(...each), step(Math.floor(elementsMax / size))).map((span) => {
        const ofEach = each.map((elements) => Math.min(span.count, Math.max(0, elements - span.at)));
        const own = [{ at: span.at, count: ofEach[rank] }];
        const whole = ofEach.map((elements, peer) => ({ at: begins[peer] + span.at, count: elements }));
        const total = ofEach.reduce((sum, elements) => sum + elements, 0);
        return { count: total, counts: ofEach, input: isGathering ? own : whole, output: isGathering ? whole : own };
      });
    }
  }
}

function cuts(count: number, step: number): ElementSpan[] {
  return Array.from({ length: Math.ceil(count / step) }, (_, k) => ({ at: k * step, count: Math.min(step, count - k * step) }));
}
