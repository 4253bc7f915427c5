/** Busy and waiting time of a row in equal stretches of time: an overview shows these where there are too many spans. Stretches
 *  double when the run turns out to be longer, so that their number has a bound.
 *
 *      ▂▇▇▁  ▁▂█    busy         one byte each: 0…15 of busy, 0…15 of waiting
 *      ▁     ▅▅     waiting */
const stretchesMax = 2048;
const firstUs = 16;
const levels = 15;

export class Density {
  stretchUs = firstUs;
  readonly #busy = new Float32Array(stretchesMax);
  readonly #waiting = new Float32Array(stretchesMax);

  add(startUs: number, durationUs: number, isWait: boolean): void {
    const start = Math.max(0, startUs);
    const end = Math.max(start, startUs + durationUs);
    while (end >= this.stretchUs * stretchesMax) this.#double();
    const width = this.stretchUs;
    const into = isWait ? this.#waiting : this.#busy;
    const last = Math.floor(end / width);
    for (let at = Math.floor(start / width); at <= last; at++) into[at] += Math.min(end, (at + 1) * width) - Math.max(start, at * width);
  }

  /** Base64 of the stretches, of that many microseconds, between two times. Spans within spans count once, as far as can be told. */
  encoded(stretchUs: number, fromUs: number, endUs: number): string {
    while (this.stretchUs < stretchUs) this.#double();
    const first = Math.floor(fromUs / stretchUs);
    const count = Math.min(stretchesMax - first, Math.max(1, Math.ceil(endUs / stretchUs) - first));
    const bytes = new Uint8Array(count);
    for (let at = 0; at < count; at++)
      bytes[at] = (level(this.#busy[first + at] / stretchUs) << 4) | level(this.#waiting[first + at] / stretchUs);
    return Buffer.from(bytes).toString('base64');
  }

  #double(): void {
    for (const sums of [this.#busy, this.#waiting]) {
      for (let at = 0; at < stretchesMax / 2; at++) sums[at] = sums[2 * at] + sums[2 * at + 1];
      sums.fill(0, stretchesMax / 2);
    }
    this.stretchUs *= 2;
  }
}

/** Something shows as something. */
function level(share: number): number {
  return share === 0 ? 0 : Math.max(1, Math.min(levels, Math.round(share * levels)));
}
