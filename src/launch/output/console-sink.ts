/** A stream that many ranks write whole lines to. It tells its writers when to pause, so that a slow reader slows the
 *  ranks instead of filling our memory, and it outlives a reader that goes away (`| head`). */
import type { Writable } from 'node:stream';

export class ConsoleSink {
  readonly #stream: Writable;
  #waiting: (() => void)[] = [];
  #broken = false;

  constructor(stream: Writable) {
    this.#stream = stream;
    stream.on('drain', () => this.#release());
    stream.on('error', () => {
      this.#broken = true;
      this.#release();
    });
  }

  /** True when the writer should pause until `onDrain` calls it. */
  write(bytes: Buffer | string): boolean {
    if (this.#broken || bytes.length === 0) return false;
    return !this.#stream.write(bytes);
  }

  onDrain(callback: () => void): void {
    if (this.#broken || !this.#stream.writableNeedDrain) callback();
    else this.#waiting.push(callback);
  }

  #release(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const callback of waiting) callback();
  }
}
