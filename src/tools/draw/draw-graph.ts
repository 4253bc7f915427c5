/** A partitioned graph as a picture: one lane per device, waves from left to right; an SVG that stands by itself. A large graph is
 *  collapsed: nodes of one scope and device are one box.
 *
 *      /job:ps      │ table ─▶ rows ─▶ Send ┄┄┐
 *      /job:worker  │                         └┄▶ FuseRecv ─▶ h1 ─▶ loss   */
import { anyList, anyNumber, anyText, checkArgument, checkOptions, optionTable } from '../../base/schema.ts';
import { escapeMarkup, letterWidth, picture, pictureLegend, pictureText, shortened, type Place } from '../chart/picture.ts';
import { layoutOf, type Box, type DrawnEdge, type Layout } from './graph-layout.ts';
import type { PartitionedGraph } from '../../graph/partition/partition-graph.ts';

/** Options of the drawing of a partitioned graph. */
export interface DrawGraphOptions {
  /** Above the picture. Default `partitioned graph`. */
  readonly title?: string;
  /** Boxes at most; beyond, scopes are collapsed as far as needed. Default 300. */
  readonly boxesMax?: number;
}

const drawOptionKeys = optionTable<DrawGraphOptions>({ title: anyText, boxesMax: anyNumber });

/** Boxes and what they are, as the legend has them. */
const kinds: readonly (readonly [Box['kind'], string])[] = [
  ['kernel', 'operation'],
  ['send', 'Send'],
  ['recv', 'Recv'],
  ['fuse-recv', 'FuseRecv'],
  ['control', 'control flow'],
  ['scope', 'several of one scope'],
];

/** Classes of lines. */
const edgeKinds = { data: 'edge', control: 'edge order', transfer: 'edge transfer' } as const;

const [left, top, column, row, width, height] = [16, 76, 200, 30, 164, 22];
const laneHead = 22;

/** The figure before and after the pass: draw what was partitioned without and with `doFuseRecv`. */
export function drawGraph(partitioned: PartitionedGraph, options: DrawGraphOptions = {}): string {
  checkOptions('drawGraph', options, drawOptionKeys);
  checkArgument('drawGraph: the partitions of a graph', (partitioned as PartitionedGraph | undefined)?.partitions, anyList);
  const layout = layoutOf(partitioned, options.boxesMax ?? 300);
  const lanes = partitioned.partitions.map(({ device }) => device.name);
  const tops = laneTops(layout, lanes);
  const place = (box: Box): Point => ({ x: left + box.wave * column, y: (tops.get(box.device) ?? top) + laneHead + box.row * row });
  const title = options.title ?? 'partitioned graph';
  const about = summary(partitioned, layout);
  const present = new Set(layout.boxes.map(({ kind }) => kind));
  const legend = kinds.filter(([kind]) => present.has(kind)).map(([kind, words]) => [`box ${kind}`, words] as const);
  const parts = [
    pictureText({ x: left, y: 20, kind: 'title' }, title),
    pictureText({ x: left, y: 38 }, about),
    ...pictureLegend({ x: left, y: 58 }, legend),
    ...lanes.map((device) => lane(device, tops.get(device) ?? top)),
    ...layout.edges.map((each) => edge(place(each.from), place(each.to), each.kind)),
    ...layout.boxes.map((box) => draw(box, place(box))),
  ];
  const widest = Math.max(title.length * 8.5, about.length * letterWidth, ...lanes.map((name) => name.length * letterWidth), 620);
  const total = {
    width: left * 2 + Math.max(layout.waves * column, widest),
    height: Math.max(...tops.values(), top) + laneHead + (layout.bottom + 1) * row,
  };
  return picture(title, total, parts);
}

type Point = Pick<Place, 'x' | 'y'>;

function laneTops({ rows }: Layout, lanes: readonly string[]): Map<string, number> {
  const tops = new Map<string, number>();
  let y = top;
  for (const device of lanes) {
    tops.set(device, y);
    y += laneHead + 10 + (rows.get(device) ?? 0) * row;
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
  return `<line x1="0" y1="${y}" x2="100%" y2="${y}" class="grid"/>${pictureText({ x: left, y: y + 14, kind: 'faint' }, device)}`;
}

function draw(box: Box, { x, y }: Point): string {
  const title = `<title>${escapeMarkup(`${box.detail} on ${box.device}`)}</title>`;
  const shape = `<rect x="${x}" y="${y}" width="${width}" height="${height}" rx="4" class="box ${box.kind}"/>`;
  return `<g>${title}${shape}${pictureText({ x: x + 6, y: y + 15 }, shortened(box.label, width - 12))}</g>`;
}

function edge(from: Point, to: Point, kind: DrawnEdge['kind']): string {
  const [x1, y1, x2, y2] = [from.x + width, from.y + height / 2, to.x, to.y + height / 2];
  const bend = Math.max(20, Math.abs(x2 - x1) / 2);
  return `<path d="M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}" class="${edgeKinds[kind]}"/>`;
}
