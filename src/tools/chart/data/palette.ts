/** The colours of every page and picture, one meaning each, for light and dark. Pages and pictures name them as variables of CSS. */

/** Colours by role: on light, on dark. */
const roles = {
  text: ['#1d2430', '#e4e8ee'],
  faint: ['#5c6470', '#a3adbb'],
  line: ['#dde1e7', '#333b47'],
  page: ['#ffffff', '#14181f'],
  panel: ['#f1f4f8', '#1d232c'],
  bad: ['#b42318', '#ff8a80'],
  'bad-panel': ['#fdeceb', '#3a1f1d'],
  // Activities of threads and ranks.
  work: ['#2f6fb0', '#5b9bdb'],
  wait: ['#d9a441', '#c08f35'],
  other: ['#667286', '#7c889b'],
  mark: ['#8a3fb0', '#c08be0'],
  reduce: ['#3f8f4f', '#6cc37c'],
  copy: ['#1b8a8a', '#57c4c2'],
  // Text on these colours; on `wait` it is dark in both.
  'on-fill': ['#ffffff', '#10141a'],
  'on-wait': ['#1d2430', '#10141a'],
  // Curves, in their order; and limits that no curve can pass.
  'series-0': ['#2f6fb0', '#6aa9e9'],
  'series-1': ['#c2591a', '#f0914e'],
  'series-2': ['#3a8549', '#6cc37c'],
  'series-3': ['#8a3fb0', '#c08be0'],
  'series-4': ['#b5382b', '#ef8578'],
  'series-5': ['#177d7d', '#57c4c2'],
  'series-6': ['#b83280', '#ee86bd'],
  'series-7': ['#75651a', '#cdbb62'],
  bound: ['#5c6470', '#a3adbb'],
} as const satisfies Readonly<Record<string, readonly [light: string, dark: string]>>;

/** Number of colours; further curves take them again, with other dashes. */
export const seriesColours = 8;

/** The CSS variables, for elements that `selector` selects. */
export function paletteStyle(selector: string): string {
  const variables = (theme: 0 | 1): string =>
    Object.entries(roles)
      .map(([role, colours]) => `--${role}:${colours[theme]}`)
      .join(';');
  return `${selector}{color-scheme:light dark;${variables(0)}}@media (prefers-color-scheme:dark){${selector}{${variables(1)}}}`;
}
