/** The topology of a group: the ranks that share each host. Plain data; part of a plan's request. */

export interface Topology {
  /** Global ranks per host, each list ascending, hosts in order of their first rank. */
  readonly hosts: readonly (readonly number[])[];
}

/** A topology with all ranks on one host. */
export function oneHost(n: number): Topology {
  return { hosts: [Array.from({ length: n }, (_, rank) => rank)] };
}

/** A topology with one rank per host. */
export function separateHosts(n: number): Topology {
  return { hosts: Array.from({ length: n }, (_, rank) => [rank]) };
}

/** `hosts` hosts with `ranksPerHost` consecutive ranks each. */
export function grid(hosts: number, ranksPerHost: number): Topology {
  return hostsOf(new Array<number>(hosts).fill(ranksPerHost));
}

/** Hosts with the given numbers of ranks, which are consecutive. */
export function hostsOf(counts: readonly number[]): Topology {
  let next = 0;
  return { hosts: counts.map((count) => Array.from({ length: count }, () => next++)) };
}

export function rankCount(topology: Topology): number {
  return topology.hosts.reduce((sum, host) => sum + host.length, 0);
}

/** Host index of every rank. */
export function hostOfRanks(topology: Topology): number[] {
  const hostOf: number[] = [];
  topology.hosts.forEach((host, index) => host.forEach((rank) => (hostOf[rank] = index)));
  return hostOf;
}
