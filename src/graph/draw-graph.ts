/** A partitioned graph as a picture: one lane per device, waves from left to right; an SVG that stands by itself. A large graph is
 *  collapsed: nodes of one scope and device are one box.
 *
 *      /job:ps      │ table ─▶ rows ─▶ Send ┄┄┐
 *      /job:worker  │                         └┄▶ FuseRecv ─▶ h1 ─▶ loss   */
import { checkKind, checkOptions, optionTable } from '../base/settings/options.ts';
import { layoutOf, type Box, type Layout } from './draw-layout.ts';
import type { PartitionedGraph } from './partition/partition.ts';

export interface DrawGraphOptions {
  readonly title?: string;
  /** Boxes at most; beyond, scopes are collapsed as far as needed. Default 300. */
  readonly boxesMax?: number;
}

const drawOptionKeys = optionTable<DrawGraphOptions>({ title: 'string', boxesMax: 'number' });

const colours = {
  kernel: '#eef2f7',
  send: '#dbe7f6',
  recv: '#f6e3c5',
  'fuse-recv': '#f2b87a',
  control: '#e6e0f2',
  scope: '#e3efe3',
} as const;

const [left, top, column, row, width, height] = [16, 56, 170, 30, 140, 22];

/** The figure before and after the pass: draw what was partitioned without and with `doFuseRecv`. */
export function drawGraph(partitioned: PartitionedGraph, options: DrawGraphOptions = {}): string {
  checkOptions('drawGraph', options, drawOptionKeys);
  checkKind('drawGraph: the partitions of a graph', (partitioned as PartitionedGraph | undefined)?.partitions, 'list');
  const layout = layoutOf(partitioned, options.boxesMax ?? 300);
  const lanes = partitioned.partitions.map(({ device }) => device.name);
  const tops = laneTops(layout, lanes);
  const place = (box: Box): { x: number; y: number } => ({
    x: left + box.wave * column,
    y: (tops.get(box.device) ?? top) + 20 + box.row * row,
  });
  const parts = [
    text(left, 20, options.title ?? 'partitioned graph', 14),
    text(left, 38, summary(partitioned, layout)),
    ...lanes.map((device) => lane(device, tops.get(device) ?? top)),
    ...layout.edges.map(({ from, to, kind }) => edge(place(from), place(to), kind)),
    ...layout.boxes.map((box) => draw(box, place(box))),
  ];
  const total = { width: left * 2 + layout.waves * column, height: Math.max(...tops.values(), top) + (layout.bottom + 2) * row };
  const size = `width="${total.width}" height="${total.height}" viewBox="0 0 ${total.width} ${total.height}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="system-ui, sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="#fff"/>\n${parts.join('\n')}\n</svg>\n`;
}

function laneTops({ rows }: Layout, lanes: readonly string[]): Map<string, number> {
  const tops = new Map<string, number>();
  let y = top;
  for (const device of lanes) {
    tops.set(device, y);
    y += 28 + (rows.get(device) ?? 0) * row;
  }
  return tops;
}

function summary({ partitions, transfers, groups }: PartitionedGraph, { boxes, nodes }: Layout): string {
  const fused = groups.reduce((sum, { length }) => sum + length, 0);
  const requests = transfers.length - fused + groups.length;
  const collapsed = boxes.length < nodes ? `, drawn as ${boxes.length} boxes` : '';
  return `${nodes} nodes on ${partitions.length} devices${collapsed}; ${transfers.length} transfers by ${requests} requests, ${groups.length} of them fused`;
}

function lane(device: string, y: number): string {
  return `<line x1="0" y1="${y}" x2="100%" y2="${y}" stroke="#ccc"/>${text(left, y + 13, device)}`;
}

function draw(box: Box, { x, y }: { readonly x: number; readonly y: number }): string {
  const title = `<title>${escape(`${box.detail} on ${box.device}`)}</title>`;
  const shape = `<rect x="${x}" y="${y}" width="${width}" height="${height}" rx="4" fill="${colours[box.kind]}" stroke="#8a94a3"/>`;
  return `<g>${title}${shape}${text(x + 5, y + 15, shortened(box.label))}</g>`;
}

function edge(from: { readonly x: number; readonly y: number }, to: { readonly x: number; readonly y: number }, kind: string): string {
  const [x1, y1, x2, y2] = [from.x + width, from.y + height / 2, to.x, to.y + height / 2];
  const bend = Math.max(20, Math.abs(x2 - x1) / 2);
  const style =
    kind === 'transfer'
      ? 'stroke="#c9572b" stroke-dasharray="4 3"'
      : kind === 'control'
        ? 'stroke="#999" stroke-dasharray="1 3"'
        : 'stroke="#7d8794"';
  return `<path d="M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}" fill="none" ${style}/>`;
}

function shortened(label: string): string {
  return label.length > 22 ? `…${label.slice(-21)}` : label;
}

function text(x: number, y: number, content: string, size = 11): string {
  return `<text x="${x}" y="${y}" font-size="${size}">${escape(content)}</text>`;
}

function escape(content: string): string {
  return content.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}
