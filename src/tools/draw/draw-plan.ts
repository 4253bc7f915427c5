/** Draws a plan as a picture, ranks × time, from the cost model's event simulation: an SVG that stands by itself.
 *
 *      host 0 · ranks 0–1
 *      rank 0 │▓▓▓ put ░░░░ wait ▒▒ reduce │
 *      rank 1 │        ╲ message           │      one lane per channel
 *
 *  Beyond `ranksMax` ranks a row is a host, or several: the number of its channels in each kind of step, over time.
 *
 *      host 0 │▒▒▒▓▓▓▓▓▓▓▓▓░░░░│      ▓ put ▒ reduce ░ wait
 *      host 1 │░░▓▓▓▓▓▓▒▒▒▒▓▓░│ */
import { fixed, letterWidth, picture, pictureLegend, pictureText } from '../chart/picture.ts';
import { costOf, defaultCostModel, type PlanCost } from '../../plan/cost.ts';
import type { Plan, Step } from '../../plan/ir.ts';

/** Most ranks that are drawn one by one; beyond, hosts are drawn. */
const ranksMax = 64;
/** Kinds of steps, in the order of the legend. */
const stepKinds: readonly Step['kind'][] = ['put', 'signal', 'wait', 'reduce', 'copy', 'flush'];

/** Area of the rows; the room left of it is for their names. */
const area = { left: 96, top: 60, width: 1000 } as const;
const [right, bottom] = [40, 26];
const [hostHeight, gap, laneMost, laneLeast] = [18, 4, 14, 3];
/** Height of all lanes together, if they can be as low. */
const lanesHeight = 900;
const messagesMax = 4000;
/** Most rows of hosts. */
const rowsMax = 64;
/** Number of moments that a row shows. */
const moments = 200;
/** Order of kinds from the bottom of a row. */
const order: readonly Step['kind'][] = ['put', 'signal', 'reduce', 'copy', 'flush', 'wait'];

/** @param elementBytes size of the dtype that the plan would run with. */
export function drawPlan(plan: Plan, elementBytes: number): string {
  const { cost, height, parts } = (plan.programs.length > ranksMax ? drawHosts : drawRanks)(plan, elementBytes);
  const title = `${plan.algorithm} ${plan.request.collective}`;
  return picture(title, { width: area.left + area.width + right, height: height + bottom }, [
    ...heading(plan, cost),
    ...ticks(cost.seconds, height),
    ...parts,
  ]);
}

/** Rows of a picture, below `area.top`, and the height at which they end. */
interface DrawnRows {
  readonly cost: PlanCost;
  readonly height: number;
  readonly parts: readonly string[];
}

function drawRanks(plan: Plan, elementBytes: number): DrawnRows {
  const spans: { rank: number; channel: number; step: Step; from: number; to: number }[] = [];
  const messages: { from: number; to: number; left: number; arrived: number }[] = [];
  const cost = costOf(plan, elementBytes, defaultCostModel, {
    onStep: (rank, channel, step, from, to) => {
      if (to > from) spans.push({ rank, channel, step, from, to });
    },
    onMessage: (from, to, _, left, arrived) => messages.push({ from, to, left, arrived }),
  });
  const lanes = plan.programs.reduce((sum, { channels }) => sum + channels.length, 0);
  const lane = Math.max(laneLeast, Math.min(laneMost, Math.floor(lanesHeight / Math.max(1, lanes))));
  const { tops, height, bands } = rowsOf(plan, lane);
  const x = (seconds: number): number => area.left + (cost.seconds > 0 ? (seconds / cost.seconds) * area.width : 0);
  const middle = (rank: number): number => tops[rank] + (plan.programs[rank].channels.length * lane) / 2;
  // Names of ranks keep clear of each other where rows are low.
  let named = -Infinity;
  const labels = tops.flatMap((y, rank) => {
    const at = middle(rank) + 4;
    if (at - named < 12) return [];
    named = at;
    return [pictureText({ x: area.left - 8, y: Math.max(at, y + 8), anchor: 'end' }, `rank ${rank}`)];
  });
  const boxes = spans.map(({ rank, channel, step, from, to }) => {
    const y = tops[rank] + channel * lane;
    const box = `x="${fixed(x(from))}" y="${y}" width="${fixed(Math.max(0.3, x(to) - x(from)))}" height="${lane < 8 ? lane - 1 : lane - 2}"`;
    return `<rect ${box} class="${step.kind}"><title>rank ${rank} channel ${channel} ${step.kind} ${formatSeconds(to - from)}</title></rect>`;
  });
  const lines = messages
    .slice(0, messagesMax)
    .map(
      ({ from, to, left, arrived }) =>
        `<line x1="${fixed(x(left))}" y1="${middle(from)}" x2="${fixed(x(arrived))}" y2="${middle(to)}" class="message"/>`,
    );
  // The more messages, the fainter each is.
  const opacity = Math.max(0.15, Math.min(1, 200 / lines.length)).toFixed(2);
  return { cost, height, parts: [...bands, ...labels, ...boxes, `<g opacity="${opacity}">`, ...lines, '</g>'] };
}

/** Positions of the ranks' rows: those of a host together, with its name above them where there are several. */
function rowsOf({ programs, request: { topology } }: Plan, lane: number): { tops: number[]; height: number; bands: string[] } {
  const tops: number[] = [];
  const bands: string[] = [];
  let y: number = area.top;
  topology.hosts.forEach((ranks, host) => {
    const begin = y;
    if (topology.hosts.length > 1) y += hostHeight;
    for (const rank of ranks) {
      tops[rank] = y;
      y += Math.max(1, programs[rank].channels.length) * lane + gap;
    }
    if (topology.hosts.length === 1) return;
    const shade = host % 2 === 0 ? [`<rect x="0" y="${begin}" width="100%" height="${y - begin}" class="band"/>`] : [];
    const who = ranks.length === 1 ? '' : ` · ranks ${ranks[0]}–${ranks.at(-1)}`;
    bands.push(...shade, pictureText({ x: 8, y: begin + 13, kind: 'faint' }, `host ${host}${who}`));
  });
  return { tops, height: y, bands };
}

function drawHosts(plan: Plan, elementBytes: number): DrawnRows {
  const { hosts } = plan.request.topology;
  const perRow = Math.ceil(hosts.length / rowsMax);
  const rows = Math.ceil(hosts.length / perRow);
  const rowOf = new Map(hosts.flatMap((ranks, host) => ranks.map((rank) => [rank, Math.floor(host / perRow)] as const)));
  const channels = new Array<number>(rows).fill(0);
  plan.programs.forEach((program, rank) => (channels[rowOf.get(rank)!] += program.channels.length));
  // The time is known only at the end, and the spans of all ranks are too many to keep, so the simulation runs twice.
  const total = costOf(plan, elementBytes).seconds;
  const busy = Array.from({ length: rows }, () => new Map(order.map((kind) => [kind, new Float64Array(moments)])));
  const moment = total / moments;
  const cost = costOf(plan, elementBytes, defaultCostModel, {
    onStep: (rank, _, { kind }, from, to) => {
      const row = busy[rowOf.get(rank)!].get(kind);
      for (let at = Math.floor(from / moment); row !== undefined && at < moments && at * moment < to; at++)
        row[at] += Math.max(0, Math.min(to, (at + 1) * moment) - Math.max(from, at * moment));
    },
  });
  const hostRowHeight = Math.max(14, Math.min(40, Math.floor(900 / rows)));
  const parts = busy.flatMap((kinds, row) => {
    const y = area.top + row * hostRowHeight;
    const first = row * perRow;
    const name = perRow === 1 ? `host ${first}` : `hosts ${first}–${Math.min(hosts.length, first + perRow) - 1}`;
    const paths = stacked(kinds, { y, height: hostRowHeight - 3, full: channels[row] * moment });
    return [pictureText({ x: area.left - 8, y: y + hostRowHeight / 2 + 3, anchor: 'end' }, name), ...paths];
  });
  return { cost, height: area.top + rows * hostRowHeight, parts };
}

/** One path per kind; bars of `area.width / moments`. */
function stacked(
  kinds: ReadonlyMap<Step['kind'], Float64Array>,
  { y, height, full }: { readonly y: number; readonly height: number; readonly full: number },
): string[] {
  const width = area.width / moments;
  const filled = new Float64Array(moments);
  return order.flatMap((kind) => {
    let path = '';
    kinds.get(kind)!.forEach((seconds, at) => {
      const tall = full > 0 ? (seconds / full) * height : 0;
      if (tall < 0.05) return;
      path += `M${fixed(area.left + at * width)} ${fixed(y + height - filled[at])}h${fixed(width)}v${fixed(-tall)}h${fixed(-width)}z`;
      filled[at] += tall;
    });
    return path === '' ? [] : [`<path d="${path}" class="${kind}"/>`];
  });
}

/** A time with its unit: `1.23 ms`. */
export function formatSeconds(seconds: number): string {
  if (seconds < 1e-3) return `${(seconds * 1e6).toPrecision(3)} µs`;
  return seconds < 1 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
}

function heading({ algorithm, request, programs }: Plan, cost: PlanCost): string[] {
  const hosts = request.topology.hosts.length;
  const title = `${algorithm} ${request.collective}, ${request.count} elements, ${programs.length} ranks on ${hosts} ${hosts === 1 ? 'host' : 'hosts'}: ${formatSeconds(cost.seconds)} in the cost model`;
  return [
    pictureText({ x: 8, y: 18, kind: 'title' }, title),
    ...pictureLegend(
      { x: area.left, y: 38 },
      stepKinds.map((kind) => [kind, kind] as const),
    ),
  ];
}

function ticks(seconds: number, height: number): string[] {
  return [0, 0.25, 0.5, 0.75, 1].flatMap((share) => {
    const at = area.left + share * area.width;
    const label = share === 0 ? '0' : formatSeconds(seconds * share);
    // The last label ends within the picture.
    const x = Math.min(at, area.left + area.width + right - (label.length * letterWidth) / 2);
    // Above and below: a picture of many ranks is higher than a window.
    return [
      `<line x1="${fixed(at)}" y1="${area.top - 4}" x2="${fixed(at)}" y2="${height}" class="grid"/>`,
      ...[area.top - 7, height + 16].map((y) => pictureText({ x, y, kind: 'faint', anchor: 'middle' }, label)),
    ];
  });
}
