/** Texts that name ranks in messages. */

/** The text for a list of ranks: `rank 3`, `ranks 0, 2`. */
export function rangesText(ranks: readonly number[]): string {
  return `${ranks.length === 1 ? 'rank' : 'ranks'} ${ranks.join(', ')}`;
}
