const shares = 15;
export class Densities {
  #stretchUs;
  /** Finest first; made when a row is first seen. */
  #levels = new Map();
  constructor({ stretchUs }) {
    this.#stretchUs = stretchUs;
  }
  each(row, { fromUs, toUs, stretchesMax }, onStretch) {
    const levels = this.#levelsOf(row);
    const wanted = Math.ceil(Math.log2((toUs - fromUs) / this.#stretchUs / Math.max(1, stretchesMax)));
    const depth = Math.max(0, Math.min(levels.length - 1, wanted));
    const { busy, waiting } = levels[depth];
    const stretchUs = this.#stretchUs * 2 ** depth;
    const last = Math.min(busy.length - 1, Math.floor(toUs / stretchUs));
    for (let at = Math.max(0, Math.floor(fromUs / stretchUs)); at <= last; at++)
      if (busy[at] > 0 || waiting[at] > 0) onStretch(at * stretchUs, (at + 1) * stretchUs, busy[at], waiting[at]);
  }
  #levelsOf(row) {
    let levels = this.#levels.get(row);
    if (levels === undefined) this.#levels.set(row, (levels = levelsOf(row.density ?? '')));
    return levels;
  }
}
function levelsOf(density) {
  const bytes = Uint8Array.from(atob(density), (letter) => letter.charCodeAt(0));
  const levels = [
    { busy: Float32Array.from(bytes, (byte) => (byte >> 4) / shares), waiting: Float32Array.from(bytes, (byte) => (byte & 15) / shares) },
  ];
  for (let level = levels[0]; level.busy.length > 1; levels.push(level))
    level = { busy: halved(level.busy), waiting: halved(level.waiting) };
  return levels;
}
function halved(values) {
  return Float32Array.from({ length: Math.ceil(values.length / 2) }, (_, at) => (values[2 * at] + (values[2 * at + 1] ?? 0)) / 2);
}
