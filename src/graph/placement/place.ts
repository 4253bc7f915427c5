/** The device that every node runs on: the one that it asks for, those they are colocated with, and the default for the rest. An operation
 *  that changes a variable is always colocated with it. */
import { ShoalError } from '../../base/errors.ts';
import { deviceParts, parseDeviceName, type DeviceName } from '../structure/device-name.ts';
import type { Graph } from '../structure/graph.ts';
import { describeNode, nodeError, type Node } from '../structure/graph-node.ts';
import type { Device, DeviceSet } from './devices.ts';

export type Placement = ReadonlyMap<Node, Device>;

interface Group {
  /** The device that the members ask for together. */
  readonly wanted: DeviceName;
  /** The member that said anything of it last, for messages. */
  readonly by: Node;
}

/** @param defaultDevice for nodes that leave it open, where it is what they say; else the first device that is.
 *  @throws ShoalError `usage` that names the node: a device that does not exist, colocated nodes that want different ones. */
export function place({ nodes }: Graph, devices: DeviceSet, defaultDevice: string = devices.names[0]): Placement {
  const fallback = devices.find(devices.match(parseDeviceName(defaultDevice))?.name ?? '');
  if (fallback === undefined)
    throw new ShoalError('usage', `the default device '${defaultDevice}' does not exist; ${devices.suggestion(defaultDevice)}`);
  const leaders = new Map<Node, Node>();
  const leaderOf = (node: Node): Node => {
    let leader = node;
    for (let next = leaders.get(leader); next !== undefined; next = leaders.get(leader)) leader = next;
    for (let at = node; at !== leader;) {
      const next = leaders.get(at) ?? leader;
      leaders.set(at, leader);
      at = next;
    }
    return leader;
  };
  const join = (a: Node, b: Node): void => {
    const [from, to] = [leaderOf(a), leaderOf(b)];
    if (from !== to) leaders.set(from, to);
  };
  for (const node of nodes) {
    if (node.colocateWith !== undefined) join(node, node.colocateWith);
    // Variables whose reference the operation needs.
    node.definition.inputs.forEach(({ isRef }, index) => isRef === true && join(node, node.inputs[index].node));
  }
  const groups = new Map<Node, Group>();
  for (const node of nodes) {
    if (node.device === '') continue;
    const leader = leaderOf(node);
    groups.set(leader, agreed(node, groups.get(leader)));
  }
  const placement = new Map<Node, Device>();
  const chosen = new Map<Node, Device>();
  for (const node of nodes) {
    const leader = leaderOf(node);
    const device = chosen.get(leader) ?? choose(groups.get(leader), devices, fallback);
    chosen.set(leader, device);
    placement.set(node, device);
  }
  return placement;
}

function agreed(node: Node, group: Group | undefined): Group {
  const own = parseDeviceName(node.device);
  if (group === undefined) return { wanted: own, by: node };
  for (const key of deviceParts) {
    if (own[key] === undefined || group.wanted[key] === undefined || own[key] === group.wanted[key]) continue;
    const other = `${describeNode(group.by)} on ${group.by.device}`;
    throw new ShoalError('usage', `${describeNode(node)} is on ${node.device}, but is colocated with ${other}`);
  }
  return { wanted: { ...group.wanted, ...own }, by: node };
}

function choose(group: Group | undefined, devices: DeviceSet, fallback: Device): Device {
  if (group === undefined) return fallback;
  const { wanted, by } = group;
  const device = devices.match({ ...parseDeviceName(fallback.name), ...wanted }) ?? devices.match(wanted);
  if (device !== undefined) return device;
  throw nodeError(by, `device ${by.device} does not exist; ${devices.suggestion(by.device)}`);
}
