/** A plan as a picture, ranks × time, from the cost model's event simulation: an SVG that stands by itself.
 *
 *      rank 0 │▓▓▓ send ░░░░ wait ▒▒ reduce │
 *      rank 1 │        ╲ message            │      one lane per channel */
import { costOf, type CostModel, type PlanCost } from './cost.ts';
import type { Plan, Step } from './ir.ts';

export interface DrawOptions {
  readonly model?: CostModel;
  /** Ranks drawn, from 0 on; the time is that of all. Default 32. */
  readonly ranksMax?: number;
}

const colours: Readonly<Record<Step['kind'], string>> = {
  put: '#3b6fb5',
  signal: '#8fb2dd',
  wait: '#ececec',
  reduce: '#c9572b',
  copy: '#e0a33e',
  flush: '#d8d8e4',
};

const [left, top, width, lane, gap] = [90, 56, 1000, 14, 6];
const messagesMax = 4000;

/** @param elementBytes size of the dtype the plan would run with. */
export function drawPlan(plan: Plan, elementBytes: number, options: DrawOptions = {}): string {
  const shown = Math.min(plan.programs.length, options.ranksMax ?? 32);
  const spans: { rank: number; channel: number; step: Step; from: number; to: number }[] = [];
  const messages: { from: number; to: number; left: number; arrived: number }[] = [];
  const cost = costOf(plan, elementBytes, options.model, {
    onStep: (rank, channel, step, from, to) => {
      if (rank < shown && to > from) spans.push({ rank, channel, step, from, to });
    },
    onMessage: (from, to, _, leaves, arrived) => {
      if (from < shown && to < shown) messages.push({ from, to, left: leaves, arrived });
    },
  });
  const tops: number[] = [];
  let height = top;
  for (const { channels } of plan.programs.slice(0, shown)) {
    tops.push(height);
    height += channels.length * lane + gap;
  }
  const x = (seconds: number): number => left + (cost.seconds > 0 ? (seconds / cost.seconds) * width : 0);
  const middle = (rank: number): number => tops[rank] + (plan.programs[rank].channels.length * lane) / 2;
  const parts = [
    ...heading(plan, cost),
    ...tops.map((y, rank) => text({ x: 8, y: y + lane - 3 }, `rank ${rank}`)),
    ...ticks(cost.seconds, x, height),
    ...spans.map(({ rank, channel, step, from, to }) => {
      const y = tops[rank] + channel * lane;
      const box = `x="${fixed(x(from))}" y="${y}" width="${fixed(Math.max(0.3, x(to) - x(from)))}" height="${lane - 2}"`;
      return `<rect ${box} fill="${colours[step.kind]}"><title>rank ${rank} channel ${channel} ${step.kind} ${formatSeconds(to - from)}</title></rect>`;
    }),
    ...messages
      .slice(0, messagesMax)
      .map(
        ({ from, to, left: leaves, arrived }) =>
          `<line x1="${fixed(x(leaves))}" y1="${middle(from)}" x2="${fixed(x(arrived))}" y2="${middle(to)}" stroke="#3b6fb5" stroke-opacity="0.25"/>`,
      ),
  ];
  const size = `width="${left + width + 20}" height="${height + 24}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="system-ui, sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="#fff"/>\n${parts.join('\n')}\n</svg>\n`;
}

/** `1.23 ms`. */
export function formatSeconds(seconds: number): string {
  if (seconds < 1e-3) return `${(seconds * 1e6).toPrecision(3)} µs`;
  return seconds < 1 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
}

function heading({ algorithm, request, programs }: Plan, cost: PlanCost): string[] {
  const hosts = request.topology.hosts.length;
  const title = `${algorithm} ${request.collective}, ${request.count} elements, ${programs.length} ranks on ${hosts} ${hosts === 1 ? 'host' : 'hosts'}: ${formatSeconds(cost.seconds)} in the cost model`;
  const legend = Object.entries(colours).flatMap(([kind, colour], index) => [
    `<rect x="${left + index * 90}" y="26" width="12" height="10" fill="${colour}"/>`,
    text({ x: left + 16 + index * 90, y: 35 }, kind),
  ]);
  return [`<text x="8" y="16" font-size="13" font-weight="600">${escape(title)}</text>`, ...legend];
}

function ticks(seconds: number, x: (seconds: number) => number, height: number): string[] {
  return [0, 0.25, 0.5, 0.75, 1].flatMap((share) => {
    const at = fixed(x(seconds * share));
    return [
      `<line x1="${at}" y1="${top - 6}" x2="${at}" y2="${height}" stroke="#ddd"/>`,
      text({ x: Number(at) - 14, y: height + 14 }, formatSeconds(seconds * share)),
    ];
  });
}

function text({ x, y }: { readonly x: number; readonly y: number }, content: string): string {
  return `<text x="${x}" y="${y}">${escape(content)}</text>`;
}

function escape(content: string): string {
  return content.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}

function fixed(value: number): string {
  return value.toFixed(1);
}
