/** Environment of hosts that processes of one machine play. */

/** Variables that tell a rank its host. @param hosts one letter per rank. */
export function hostEnvironment(hosts: string, rank: number): Record<string, string> {
  const same = Array.from(hosts).flatMap((host, each) => (host === hosts[rank] ? [each] : []));
  return { SHOAL_HOST_ID: hosts[rank], LOCAL_RANK: String(same.indexOf(rank)), LOCAL_WORLD_SIZE: String(same.length) };
}
