/** Takes one output stream of a rank to where it belongs: console with prefix, file as it is, and the tail that a failure
 *  report shows. Pauses the rank when one of them is slow. The console does not get the error that Node.js writes when it ends the rank. */
import { createWriteStream, type WriteStream } from 'node:fs';
import type { Readable } from 'node:stream';
import type { ConsoleSink } from './console-sink.ts';
import { LinePrefix } from './line-prefix.ts';
import { readUncaught, UncaughtSplitter, type UncaughtError } from './uncaught-error.ts';

export interface RankOutputOptions {
  /** The console and the prefix; undefined: the output is not shown. */
  readonly console: { readonly sink: ConsoleSink; readonly prefix: string } | undefined;
  /** Path of the file; undefined: none. */
  readonly file: string | undefined;
  /** Bytes of the end to keep for a report. */
  readonly tailBytes: number;
  /** The file cannot be written; the rank goes on without. */
  readonly onFileError: (error: Error) => void;
}

export class RankOutput {
  /** Resolves when the rank has closed the stream and everything is written. */
  readonly finished: Promise<void>;
  readonly #source: Readable;
  readonly #options: RankOutputOptions;
  readonly #tail: Tail;
  readonly #splitter = new UncaughtSplitter();
  /** The text behind the mark, written by Node.js. */
  readonly #behind: Tail;

  constructor(source: Readable, options: RankOutputOptions) {
    this.#source = source;
    this.#options = options;
    this.#tail = new Tail(options.tailBytes);
    this.#behind = new Tail(options.tailBytes);
    this.finished = this.#pump();
  }

  /** The last words of the program itself. */
  tail(): string {
    return this.#tail.read();
  }

  /** The error that has ended it. */
  uncaught(): UncaughtError | undefined {
    return readUncaught(this.#behind.read());
  }

  /** Gives up on a stream that processes outside our reach keep open. */
  abandon(): void {
    this.#source.destroy();
  }

  async #pump(): Promise<void> {
    const { console, file } = this.#options;
    const lines = console === undefined ? undefined : new LinePrefix(console.prefix);
    const target = file === undefined ? undefined : this.#open(file);
    const resume = (): void => void this.#source.resume();
    const say = (said: Buffer): void => {
      this.#tail.push(said);
      if (lines !== undefined && console!.sink.write(lines.push(said))) {
        this.#source.pause();
        console!.sink.onDrain(resume);
      }
    };
    this.#source.on('data', (chunk: Buffer) => {
      const { said, behind } = this.#splitter.push(chunk);
      this.#behind.push(behind);
      if (target !== undefined && !target.errored && !target.write(Buffer.concat([said, behind]))) {
        this.#source.pause();
        target.once('drain', resume);
      }
      say(said);
    });
    await new Promise<void>((resolve) => this.#source.once('close', resolve).on('error', () => undefined));
    // The launcher tells the error itself; everything else is shown.
    const begun = this.#splitter.end();
    if (target !== undefined && !target.errored) target.write(begun);
    say(Buffer.concat([begun, Buffer.from(this.uncaught()?.rest ?? this.#behind.read())]));
    if (lines !== undefined) console!.sink.write(lines.end());
    if (target !== undefined) await closed(target);
  }

  #open(file: string): WriteStream {
    const target = createWriteStream(file, { flags: 'a', mode: 0o644 });
    target.on('error', (error) => {
      this.#options.onFileError(error);
      this.#source.resume();
    });
    return target;
  }
}

function closed(target: WriteStream): Promise<void> {
  return new Promise((resolve) => {
    if (target.closed || target.errored) return resolve();
    target.on('close', resolve).on('error', () => resolve());
    target.end();
  });
}

/** The last bytes of a stream. */
export class Tail {
  readonly #maxBytes: number;
  #chunks: Buffer[] = [];
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  push(chunk: Buffer): void {
    if (this.#maxBytes === 0) return;
    const kept = Buffer.from(chunk.subarray(Math.max(0, chunk.length - this.#maxBytes)));
    this.#chunks.push(kept);
    this.#bytes += kept.length;
    while (this.#bytes - this.#chunks[0].length >= this.#maxBytes) this.#bytes -= this.#chunks.shift()!.length;
    // Many tiny chunks would cost more than their bytes.
    if (this.#chunks.length > 256) this.#chunks = [Buffer.concat(this.#chunks)];
  }

  read(): string {
    const bytes = Buffer.concat(this.#chunks);
    return bytes.subarray(Math.max(0, bytes.length - this.#maxBytes)).toString('utf8');
  }
}
