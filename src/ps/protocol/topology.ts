/** Worker groups, server groups, and the connections between them. Pure.
 *
 *    AllReduce / Sandblaster   1 worker group    1 server group     all workers, one version at a time
 *    Downpour                  n worker groups   1 server group     groups do not wait for each other
 *    distributed Hogwild       n worker groups   m server groups    server groups hold a copy each and exchange changes
 *
 *  Within a worker group an update is complete when all its workers have pushed (`dist_sync`); `dist_async` is the
 *  topology whose worker groups are one process each. Server groups are of equal size, so that slice s lies on server
 *  s of every group.  Source: SINGA, "Frameworks" and "Architecture". */
import { ShoalError } from '../../base/errors.ts';
import { groupOf, idOf, makeAddress, roleOf, type Address } from '../../messaging/address.ts';
import { Role } from './singa.ts';

export interface KVTopology {
  readonly workerGroups: number;
  readonly workersPerGroup: number;
  readonly serverGroups: number;
  readonly serversPerGroup: number;
  /** 1: servers alone; 2: each has a standby that takes over. */
  readonly replicas: 1 | 2;
}

/** @throws ShoalError `config` naming the numbers that cannot be. */
export function checkTopology(topology: KVTopology): void {
  const { workerGroups, workersPerGroup, serverGroups, serversPerGroup, replicas } = topology;
  for (const [name, value] of Object.entries({ workerGroups, workersPerGroup, serverGroups, serversPerGroup })) {
    if (!Number.isSafeInteger(value) || value < 1) throw new ShoalError('config', `${name} is ${value}; it must be a whole number from 1`);
  }
  if (replicas !== 1 && replicas !== 2) throw new ShoalError('config', `replicas is ${String(replicas)}; it must be 1 or 2`);
  if (serverGroups > workerGroups) {
    const message = `${serverGroups} server groups for ${workerGroups} worker groups: some would have no workers; have at most as many server groups`;
    throw new ShoalError('config', message);
  }
}

export function workerCount(topology: KVTopology): number {
  return topology.workerGroups * topology.workersPerGroup;
}

/** Worker groups are dealt to server groups in blocks: 5 groups on 2 are 0 0 0 1 1. */
export function serverGroupOf(topology: KVTopology, workerGroup: number): number {
  return Math.floor((workerGroup * topology.serverGroups) / topology.workerGroups);
}

/** The server group whose copy of a server's slices is the master. Servers differ, so that no group is all of it. */
export function masterGroupOf(topology: KVTopology, server: number): number {
  return server % topology.serverGroups;
}

/** Messages to a server; its standby is reached under the same address by another connection. */
export function serverAddress(group: number, server: number): Address {
  return makeAddress({ group, id: server, role: Role.server });
}

/** A process with workers; `id` is the number of its first worker. */
export function clientAddress(workerGroup: number, firstWorker: number): Address {
  return makeAddress({ group: workerGroup, id: firstWorker, role: Role.stub });
}

/** Workers are numbered group by group. */
export function workerGroupOf(topology: KVTopology, worker: number): number {
  return Math.floor(worker / topology.workersPerGroup);
}

/** The standby of a server, for messages between the two. */
export function standbyAddress(group: number, server: number): Address {
  return makeAddress({ group, id: server, role: Role.standby });
}

/** The participant in words: `server 3 of group 0`. */
export function nameOfAddress(address: Address): string {
  const name = Object.entries(Role).find(([, code]) => code === roleOf(address))?.[0] ?? `role ${roleOf(address)}`;
  return `${name} ${idOf(address)} of group ${groupOf(address)}`;
}
