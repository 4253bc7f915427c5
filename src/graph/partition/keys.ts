/** The rendezvous keys of a Send, a Recv or the slots of a FuseRecv, from their attributes. */
import { formatRendezvousKey } from '../../rendezvous/table/rendezvous-key.ts';
import type { Node } from '../structure/graph-node.ts';

/** Outside loops: frame 0, iteration 0. */
export function keysOf({ attributes, control }: Node): string[] {
  const names = listOf(attributes.tensor_name);
  if (control !== 'send' && control !== 'recv' && control !== 'fuse-recv') return [];
  const [sendDevices, recvDevices] = [listOf(attributes.send_device), listOf(attributes.recv_device)];
  const incarnations = listOf(attributes.send_device_incarnation);
  return names.map((name, slot) =>
    formatRendezvousKey({
      sendDevice: sendDevices[slot] as string,
      incarnation: incarnations[slot] as bigint,
      recvDevice: recvDevices[slot] as string,
      name: name as string,
      frame: 0,
      iteration: 0,
    }),
  );
}

/** The same keys in an iteration of a loop. */
export function keysIn(keys: readonly string[], frame: number, iteration: number): string[] {
  return keys.map((key) => `${key.slice(0, key.lastIndexOf(';'))};${frame}:${iteration}`);
}

function listOf(attribute: unknown): readonly unknown[] {
  return Array.isArray(attribute) ? (attribute as readonly unknown[]) : [attribute];
}
