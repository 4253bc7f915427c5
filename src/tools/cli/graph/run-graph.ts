/** The command `shoal graph`: reads a graph, partitions it twice, says and draws the difference. */
import { listed } from '../../../base/collections/lists.ts';
import { ShoalError } from '../../../base/errors.ts';
import { readRegularFileSync } from '../../../base/files/read-file.ts';
import { writeFileAt } from '../../../base/files/write-file.ts';
import { picturesPage } from '../../chart/document.ts';
import { drawGraph } from '../../draw/draw-graph.ts';
import { partitionGraph, type PartitionedGraph } from '../../../graph/partition/partition-graph.ts';
import { prune } from '../../../graph/partition/prune.ts';
import { fusePolicies } from '../../../graph/passes/fuse-policy.ts';
import type { UnfusedReceive } from '../../../graph/passes/fuse-recv.ts';
import { DeviceSet } from '../../../graph/placement/devices.ts';
import { place } from '../../../graph/placement/place.ts';
import { formatDeviceName, parseDeviceName } from '../../../graph/structure/device-name.ts';
import type { Graph } from '../../../graph/structure/graph.ts';
import { decodeGraph } from '../../../graph/wire/graphs.ts';

export interface GraphFlags {
  readonly out?: string;
  readonly target: readonly string[];
  readonly feed: readonly string[];
  readonly policy: string;
  readonly boxes: number;
  readonly json?: true;
}

/** @returns what to print. @throws ShoalError `usage` for names that do not exist, `protocol` for another file, `system`. */
export function runGraph(file: string, { out, target, feed, policy: name, boxes, json }: GraphFlags): string {
  const policy = fusePolicies.find((each) => each.name === name);
  if (policy === undefined)
    throw new ShoalError('usage', `--policy ${name}: there are ${fusePolicies.map((each) => each.name).join(' and ')}`);
  if (out !== undefined && !/\.(html|svg)$/.test(out)) throw new ShoalError('usage', `--out ${out} must end in .html or .svg`);
  const graph = decoded(file, read(file));
  const devices = new DeviceSet(devicesOf(graph));
  const placeholders = graph.nodes.filter(({ op }) => op === 'Placeholder');
  const feeds = feed.length > 0 ? feed.map((each) => graph.output(each)) : placeholders.map(({ outputs: [output] }) => output);
  const targets = target.length > 0 ? target.map((each) => graph.node(each)) : graph.nodes.filter(({ op }) => op !== 'Placeholder');
  const needed = prune(graph, place(graph, devices), { feeds, fetches: [], targets });
  const before = partitionGraph(needed, { devices });
  const after = partitionGraph(needed, { devices, doFuseRecv: true, fuse: { policy } });
  const pictures = [before, after].map((each, k) => drawGraph(each, { title: `${file}: ${titles[k]}`, boxesMax: boxes }));
  if (out !== undefined) writeFileAt(out, out.endsWith('.svg') ? pictures[1] : page(file, pictures));
  if (json === true) {
    const result = { version: 1, before: figures(before), after: figures(after), ...(out === undefined ? {} : { drawn: out }) };
    return `${JSON.stringify(result, undefined, 2)}\n`;
  }
  const lines = titles.map((title, k) => `${title.padEnd(15)} ${summary([before, after][k])}\n`);
  return `${lines.join('')}${leftAlone(after)}${out === undefined ? '' : `${out}\n`}`;
}

const titles = ['before fusion', 'after fusion'];

function read(file: string): Uint8Array {
  try {
    return readRegularFileSync(file, { bytesMax: 2 ** 31 - 1 });
  } catch (thrown) {
    throw new ShoalError('system', `${file} cannot be read: ${ShoalError.from(thrown).message}`, { cause: thrown });
  }
}

function decoded(file: string, bytes: Uint8Array): Graph {
  try {
    return decodeGraph(bytes);
  } catch (cause) {
    const { code, message } = ShoalError.from(cause);
    throw new ShoalError(code, `${file} is no graph that encodeGraph has written: ${message}`, { cause });
  }
}

/** All that the nodes say, and the first of a job's tasks where they leave it open. */
function devicesOf({ nodes }: Graph): string[] {
  const names = new Set<string>();
  for (const { device } of nodes) {
    if (device === '') continue;
    const { job = 'worker', task = 0, type = 'CPU', index = 0, replica } = parseDeviceName(device);
    names.add(formatDeviceName({ job, task, type, index, ...(replica !== undefined && { replica }) }));
  }
  return names.size === 0 ? ['/job:worker/task:0/device:CPU:0'] : [...names].sort(workersFirst);
}

function workersFirst(a: string, b: string): number {
  const rank = (name: string): string => `${name.startsWith('/job:worker') ? 0 : 1}${name}`;
  return rank(a) < rank(b) ? -1 : 1;
}

interface Figures {
  readonly nodes: number;
  readonly devices: number;
  readonly transfers: number;
  readonly requests: number;
  /** Receives of each group that is fused, the largest first. */
  readonly groups: readonly number[];
  /** Receives that the pass left alone. */
  readonly unfused: readonly UnfusedReceive[];
}

function figures({ partitions, transfers, groups, unfused }: PartitionedGraph): Figures {
  const fused = groups.reduce((sum, { length }) => sum + length, 0);
  return {
    nodes: partitions.reduce((sum, { graph }) => sum + graph.nodes.length, 0),
    devices: partitions.length,
    transfers: transfers.length,
    requests: transfers.length - fused + groups.length,
    groups: groups.map(({ length }) => length).sort((a, b) => b - a),
    unfused,
  };
}

/** Receives that are not fused, with why; the first of many. */
function leftAlone({ unfused }: PartitionedGraph): string {
  const lines = unfused.map(
    ({ tensor, sendDevice, recvDevice, why }) => `not fused       ${tensor}, ${sendDevice} to ${recvDevice}: ${why}\n`,
  );
  const more = lines.length > listedMax ? `not fused       and ${lines.length - listedMax} more: --json lists all\n` : '';
  return `${lines.slice(0, listedMax).join('')}${more}`;
}

const listedMax = 10;

function summary(graph: PartitionedGraph): string {
  const { nodes, devices, transfers, requests, groups: sizes } = figures(graph);
  const shown = sizes.length === 0 ? '' : `; groups of ${listed(sizes)}`;
  return `${nodes} nodes on ${devices} devices, ${transfers} transfers by ${requests} requests${shown}`;
}

function page(file: string, pictures: readonly string[]): string {
  return picturesPage(
    file,
    pictures.map((svg, k) => ({ title: titles[k], svg })),
  );
}
