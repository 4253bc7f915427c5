/** Sizes and durations as people write them: `25MiB`, `300s`. Settings, command lines and tables all read and print them here, so
 *  that one text means the same everywhere. */

const byteUnits: Readonly<Record<string, number>> = {
  '': 1,
  b: 1,
  k: 2 ** 10,
  kib: 2 ** 10,
  kb: 1e3,
  m: 2 ** 20,
  mib: 2 ** 20,
  mb: 1e6,
  g: 2 ** 30,
  gib: 2 ** 30,
  gb: 1e9,
  t: 2 ** 40,
  tib: 2 ** 40,
  tb: 1e12,
};

const millisecondUnits: Readonly<Record<string, number>> = { '': 1, ms: 1, s: 1e3, min: 60e3, h: 3600e3 };

/** Syntax that `parseBytes` accepts, for messages. */
export const bytesSyntax = 'bytes, such as 4096, 64KiB, 25MiB, 1.5GiB (K, M, G mean KiB, MiB, GiB; KB, MB, GB are decimal)';

/** Syntax that `parseMilliseconds` accepts, for messages. */
export const millisecondsSyntax = 'milliseconds, or a time such as 500ms, 30s, 5min, 1h';

/** A whole number of bytes, or undefined when the text is not a size. */
export function parseBytes(text: string): number | undefined {
  return parseQuantity(text, byteUnits);
}

/** A whole number of milliseconds, or undefined when the text is not a duration. */
export function parseMilliseconds(text: string): number | undefined {
  return parseQuantity(text, millisecondUnits);
}

/** The shortest exact binary form: `25MiB`, `1536KiB`, `100`. Inverse of `parseBytes`. */
export function formatBytes(bytes: number): string {
  for (const [unit, factor] of [
    ['TiB', 2 ** 40],
    ['GiB', 2 ** 30],
    ['MiB', 2 ** 20],
    ['KiB', 2 ** 10],
  ] as const) {
    if (bytes >= factor && bytes % factor === 0) return `${bytes / factor}${unit}`;
  }
  return String(bytes);
}

function parseQuantity(text: string, units: Readonly<Record<string, number>>): number | undefined {
  const match = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(text.trim());
  if (match === null) return undefined;
  const unit = match[2].toLowerCase();
  if (!Object.hasOwn(units, unit)) return undefined;
  const value = Number(match[1]) * units[unit];
  return Number.isSafeInteger(value) ? value : undefined;
}
