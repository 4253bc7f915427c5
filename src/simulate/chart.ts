/** Figures as one self-contained HTML page: line charts with logarithmic axes as SVG, and the numbers as tables. */
import type { Figure } from './micro-benchmarks.ts';

const colours = ['#b5483b', '#3b6fb5', '#3f8f4f', '#9a6fb0', '#c98a2b'];
const [width, height, left, right, top, bottom] = [640, 360, 64, 180, 40, 48];

export function figuresPage(title: string, figures: readonly Figure[]): string {
  const style =
    'body{font:14px system-ui,sans-serif;margin:24px;max-width:960px}table{border-collapse:collapse;margin:8px 0 32px}td,th{padding:2px 12px;text-align:right;border-bottom:1px solid #ddd}';
  const body = figures.map((figure) => `<h2>${escape(figure.title)}</h2>\n${figureChart(figure)}\n${figureTable(figure)}`).join('\n');
  return `<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>${escape(title)}</title><style>${style}</style></head>\n<body><h1>${escape(title)}</h1>\n${body}\n</body></html>\n`;
}

/** Values over x. */
function figureChart({ x, xLabel, series, unit = 'ms' }: Figure): string {
  const values = series.flatMap((each) => each.values).filter((value) => value !== null);
  const [low, high] = [Math.min(...values) / 1.2, Math.max(...values) * 1.2];
  const [first, last] = [Math.min(...x), Math.max(...x)];
  const atX = (value: number): number => left + share(value, first, last) * (width - left - right);
  const atY = (value: number): number => height - bottom - share(value, low, high) * (height - top - bottom);
  const axes = [
    ...x.map((value) => `<text x="${fixed(atX(value))}" y="${height - bottom + 16}" text-anchor="middle">${value}</text>`),
    ...ticksBetween(low, high).map(
      (value) =>
        `<line x1="${left}" x2="${width - right}" y1="${fixed(atY(value))}" y2="${fixed(atY(value))}" stroke="#e4e4e4"/><text x="${left - 6}" y="${fixed(atY(value) + 4)}" text-anchor="end">${value}</text>`,
    ),
    `<text x="${(left + width - right) / 2}" y="${height - 8}" text-anchor="middle">${escape(xLabel)}</text>`,
    `<text x="12" y="${top - 14}">${escape(unit)}</text>`,
  ];
  const lines = series.flatMap(({ name, values: line }, index) => {
    const colour = colours[index % colours.length];
    const points = line.flatMap((value, at) => (value === null ? [] : [`${fixed(atX(x[at]))},${fixed(atY(value))}`]));
    return [
      `<polyline points="${points.join(' ')}" fill="none" stroke="${colour}" stroke-width="2"/>`,
      ...points.map((point) => `<circle cx="${point.split(',')[0]}" cy="${point.split(',')[1]}" r="3" fill="${colour}"/>`),
      `<text x="${width - right + 12}" y="${top + 18 * index}" fill="${colour}">${escape(name)}</text>`,
    ];
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="system-ui, sans-serif" font-size="11">${[...axes, ...lines].join('')}</svg>`;
}

function figureTable({ x, xLabel, series, unit = 'ms' }: Figure): string {
  const head = [xLabel, ...series.map(({ name }) => `${name}, ${unit}`)].map((cell) => `<th>${escape(cell)}</th>`).join('');
  const cell = (value: number | null): string => (value === null ? '' : value.toPrecision(4));
  const rows = x.map((value, at) => `<tr><td>${value}</td>${series.map(({ values }) => `<td>${cell(values[at])}</td>`).join('')}</tr>`);
  return `<table><tr>${head}</tr>${rows.join('')}</table>`;
}

/** Where `value` lies between two others on a logarithmic scale: 0…1. */
function share(value: number, low: number, high: number): number {
  return high > low ? Math.log(value / low) / Math.log(high / low) : 0.5;
}

/** 1, 2, 5, 10, … between two values. */
function ticksBetween(low: number, high: number): number[] {
  const ticks: number[] = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) {
    for (const step of [1, 2, 5]) {
      const value = Number((step * 10 ** decade).toPrecision(1));
      if (value >= low && value <= high) ticks.push(value);
    }
  }
  return ticks;
}

function escape(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}

function fixed(value: number): string {
  return value.toFixed(1);
}
