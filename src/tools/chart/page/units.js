/** Formats numbers for people. */
export function duration(us) {
  if (us >= 60e6) return `${(us / 60e6).toFixed(1)} min`;
  if (us >= 1e6) return `${digits(us / 1e6)} s`;
  if (us >= 1e3) return `${digits(us / 1e3)} ms`;
  return `${digits(us)} µs`;
}
export function bytes(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = count < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(count) / 10));
  return power === 0 ? `${count} B` : `${Number(digits(count / 1024 ** power))} ${units[power]}`;
}
export function percent(share) {
  return `${digits(100 * share)} %`;
}
/** A number with three significant digits. */
export function digits(value) {
  if (value === 0) return '0';
  const magnitude = Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.max(0, Math.min(3, 2 - magnitude)));
}
/** Round steps between ticks: 1, 2, 5, 10, … of which some `count` fit into the range. */
export function tickStep(range, count) {
  const rough = range / Math.max(1, count);
  const decade = 10 ** Math.floor(Math.log10(rough));
  return ([1, 2, 5].find((step) => step * decade >= rough) ?? 10) * decade;
}
/** Any number, with at most three significant digits, and no more zeros than it needs. */
export function number(value) {
  const rounded = Number(value.toPrecision(3));
  return Math.abs(rounded) >= 1e7 || (rounded !== 0 && Math.abs(rounded) < 1e-3) ? rounded.toExponential() : rounded.toLocaleString('en');
}
