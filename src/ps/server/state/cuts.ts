/** Cuts a long list for messages of a bounded size. */

interface Cut {
  readonly first: number;
  /** The position after the last. */
  readonly to: number;
  /** True for the last cut. */
  readonly last: boolean;
}

/** Positions `first` to `end − 1` in cuts of `bytesMax` bytes or of one position; without positions one empty cut. */
export function* cutsOf(first: number, end: number, bytesMax: number, bytesOf: (position: number) => number): Generator<Cut, void> {
  do {
    let to = first;
    for (let bytes = 0; to < end && (to === first || bytes + bytesOf(to) <= bytesMax); to++) bytes += bytesOf(to);
    yield { first, to, last: to === end };
    first = to;
  } while (first < end);
}
