/** Events of rank 0 of a benchmark for its starter, as lines among others on its standard output. Launchers bound the length of a
 *  line, and a report with every sample is longer: it comes in pieces.
 *
 *      shoal-event+ {"event":"row","samplesUs":[1.5,1.       shoal-event. 25]}        `+`: more follows; `.`: the last piece */
const mark = 'shoal-event';
/** Length of a piece: shorter than any line that a launcher cuts. */
const pieceLength = 8192;

export function formatEvent(event: unknown): string {
  const text = JSON.stringify(event);
  let lines = '';
  for (let at = 0; at < text.length; at += pieceLength) {
    const last = at + pieceLength >= text.length;
    lines += `${mark}${last ? '.' : '+'} ${text.slice(at, at + pieceLength)}\n`;
  }
  return lines;
}

/** Puts events together again, from lines without their ends. */
export class EventLines {
  #pieces = '';

  /** @returns `other` for a line that is not part of an event; undefined when more of the event follows. */
  take(line: string): { readonly event: unknown } | 'other' | undefined {
    const kind = line.startsWith(mark) ? line[mark.length] : undefined;
    if ((kind !== '+' && kind !== '.') || line[mark.length + 1] !== ' ') return 'other';
    this.#pieces += line.slice(mark.length + 2);
    if (kind === '+') return undefined;
    const event: unknown = JSON.parse(this.#pieces);
    this.#pieces = '';
    return { event };
  }
}
