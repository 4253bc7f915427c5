/** Cuts a byte stream into lines and gives each a prefix, so that the output of several ranks never mixes within a line.
 *  Works on bytes: characters are cut only where a line is longer than the bound, and then between characters.
 *
 *      "loss 1.2\nloss 1." ─▶ "[rank 0] loss 1.2\n"        "loss 1." is kept, at most `maxLineBytes` of it */

const newline = 0x0a;

export class LinePrefix {
  readonly #prefix: Buffer;
  readonly #maxLineBytes: number;
  #partial: Buffer = Buffer.alloc(0);

  constructor(prefix: string, options: { maxLineBytes?: number } = {}) {
    this.#prefix = Buffer.from(prefix);
    this.#maxLineBytes = options.maxLineBytes ?? 2 ** 20;
  }

  /** Everything that is now complete, in one piece; empty when nothing is. */
  push(chunk: Buffer): Buffer {
    const pieces: Buffer[] = [];
    let start = 0;
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline, start)) {
      const rest = this.#cut(pieces, chunk.subarray(start, end));
      pieces.push(this.#prefix, rest, lineEnd);
      this.#partial = Buffer.alloc(0);
      start = end + 1;
    }
    // A copy: the view would keep the whole chunk.
    this.#partial = Buffer.from(this.#cut(pieces, chunk.subarray(start)));
    return Buffer.concat(pieces);
  }

  /** The last line, when the stream ended without a newline. */
  end(): Buffer {
    return this.#partial.length === 0 ? this.#partial : this.push(lineEnd);
  }

  /** Adds bytes to the line; puts what exceeds the bound into `pieces` and returns the rest. */
  #cut(pieces: Buffer[], bytes: Buffer): Buffer {
    let line = joined(this.#partial, bytes);
    while (line.length > this.#maxLineBytes) {
      const cut = characterStart(line, this.#maxLineBytes);
      pieces.push(this.#prefix, line.subarray(0, cut), lineEnd);
      line = line.subarray(cut);
    }
    return line;
  }
}

const lineEnd = Buffer.from('\n');

function joined(first: Buffer, second: Buffer): Buffer {
  return first.length === 0 ? second : Buffer.concat([first, second]);
}

/** The last position ≤ `at` where a UTF-8 character begins; `at` itself when the bytes are no UTF-8. */
function characterStart(bytes: Buffer, at: number): number {
  for (let back = 0; back < 4 && at - back > 0; back++) {
    if ((bytes[at - back] & 0xc0) !== 0x80) return at - back;
  }
  return at;
}
