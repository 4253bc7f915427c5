/** The end of a store in a process that is a server. Launchers of Shoal start servers without a script; this is for others, which start the
 *  same script everywhere. */
import type { ServerStore } from '../calls/operation.ts';
import { workerCount } from '../protocol/topology.ts';
import type { KVStoreType } from '../values/types.ts';
import type { ServerNode } from './server-node.ts';

export function serverStore(node: ServerNode, type: KVStoreType): ServerStore {
  const { topology, number: rank } = node;
  const { serverGroups, serversPerGroup, workersPerGroup } = topology;
  const numbers = { numWorkers: workerCount(topology), numServers: serverGroups * serversPerGroup, workerGroup: 0, workersPerGroup };
  return {
    place: { type, role: 'server', rank, ...numbers, timeoutMs: 0 },
    served: async () => void (await node.ended),
    close: () => node.stop(),
  };
}
