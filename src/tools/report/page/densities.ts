/** Busy time of rows at several levels of detail: each has half as many stretches as the one below, so that about as many are painted as
 *  there are pixels, however long the run. */
import type { ReportData, ReportRow } from '../data/report-data.ts';

interface Window {
  readonly fromUs: number;
  readonly toUs: number;
  /** Largest number of stretches in sight. */
  readonly stretchesMax: number;
}

/** Shares of a stretch, from 0 to 1. */
type OnStretch = (startUs: number, endUs: number, busy: number, waiting: number) => void;

interface Level {
  readonly busy: Float32Array;
  readonly waiting: Float32Array;
}

const shares = 15;

export class Densities {
  readonly #stretchUs: number;
  /** Finest first; made when a row is first seen. */
  readonly #levels = new Map<ReportRow, readonly Level[]>();

  constructor({ stretchUs }: ReportData) {
    this.#stretchUs = stretchUs;
  }

  each(row: ReportRow, { fromUs, toUs, stretchesMax }: Window, onStretch: OnStretch): void {
    const levels = this.#levelsOf(row);
    const wanted = Math.ceil(Math.log2((toUs - fromUs) / this.#stretchUs / Math.max(1, stretchesMax)));
    const depth = Math.max(0, Math.min(levels.length - 1, wanted));
    const { busy, waiting } = levels[depth];
    const stretchUs = this.#stretchUs * 2 ** depth;
    const last = Math.min(busy.length - 1, Math.floor(toUs / stretchUs));
    for (let at = Math.max(0, Math.floor(fromUs / stretchUs)); at <= last; at++)
      if (busy[at] > 0 || waiting[at] > 0) onStretch(at * stretchUs, (at + 1) * stretchUs, busy[at], waiting[at]);
  }

  #levelsOf(row: ReportRow): readonly Level[] {
    let levels = this.#levels.get(row);
    if (levels === undefined) this.#levels.set(row, (levels = levelsOf(row.density ?? '')));
    return levels;
  }
}

function levelsOf(density: string): Level[] {
  const bytes = Uint8Array.from(atob(density), (letter) => letter.charCodeAt(0));
  const levels: Level[] = [
    { busy: Float32Array.from(bytes, (byte) => (byte >> 4) / shares), waiting: Float32Array.from(bytes, (byte) => (byte & 15) / shares) },
  ];
  for (let level = levels[0]; level.busy.length > 1; levels.push(level))
    level = { busy: halved(level.busy), waiting: halved(level.waiting) };
  return levels;
}

function halved(values: Float32Array): Float32Array {
  return Float32Array.from({ length: Math.ceil(values.length / 2) }, (_, at) => (values[2 * at] + (values[2 * at + 1] ?? 0)) / 2);
}
