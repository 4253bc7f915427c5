/** Selects the addresses of this host that are offered to peers: a pure function over the result of `os.networkInterfaces()`.
 *
 *  A filter is a list of terms. A term is an interface name (`eth0`), a name prefix (`ib*`), an address or a network in CIDR form
 *  (`10.1.0.0/16`, `fd00::/8`); a leading `^` excludes. Without including terms everything not excluded is offered, best first:
 *  other than loopback, then virtual bridges, IPv4 before IPv6. */
import net from 'node:net';
import type { NetworkInterfaceInfo } from 'node:os';
import { ShoalError } from '../base/errors.ts';

export type Interfaces = NodeJS.Dict<readonly NetworkInterfaceInfo[]>;

export interface OfferedAddress {
  readonly interface: string;
  readonly address: string;
  readonly family: 'IPv4' | 'IPv6';
}

/** Interfaces that rarely lead to other hosts; offered last. */
const virtualNames = /^(docker|br-|virbr|veth|cni|flannel|kube|lxc|lxd|podman|vmnet|tailscale|tun|tap)/;

/** Usable addresses, best first. Loopback addresses are used only when a term names them, link-local IPv6 never: it needs a zone.
 *  @throws ShoalError `config` for a term that is not valid, or when the filter leaves nothing. */
export function offeredAddresses(interfaces: Interfaces, filter: readonly string[] = []): OfferedAddress[] {
  const terms = filter.map(parseTerm);
  const includes = terms.filter((term) => !term.excludes);
  const excludes = terms.filter((term) => term.excludes);
  const offered: (OfferedAddress & { rank: number })[] = [];
  for (const [name, addresses = []] of Object.entries(interfaces)) {
    for (const { address, family, internal } of addresses) {
      if (address.startsWith('fe80:')) continue;
      const included = includes.length === 0 ? !internal : includes.some((term) => term.matches(name, address));
      if (!included || excludes.some((term) => term.matches(name, address))) continue;
      offered.push({ interface: name, address, family, rank: (virtualNames.test(name) ? 2 : 0) + (family === 'IPv6' ? 1 : 0) });
    }
  }
  if (offered.length === 0 && filter.length > 0) {
    throw new ShoalError('config', `no interface matches '${filter.join(',')}'; this host has ${describeInterfaces(interfaces)}`);
  }
  return offered.sort((a, b) => a.rank - b.rank).map(({ interface: name, address, family }) => ({ interface: name, address, family }));
}

/** Text for messages: `eth0 (10.0.0.4), lo (127.0.0.1)`. */
export function describeInterfaces(interfaces: Interfaces): string {
  const parts = Object.entries(interfaces).map(
    ([name, addresses = []]) => `${name} (${addresses.map(({ address }) => address).join(', ')})`,
  );
  return parts.length === 0 ? 'none' : parts.join(', ');
}

interface Term {
  readonly excludes: boolean;
  matches(name: string, address: string): boolean;
}

function parseTerm(text: string): Term {
  const excludes = text.startsWith('^');
  const body = (excludes ? text.slice(1) : text).trim();
  if (body === '') throw new ShoalError('config', `interface filter has an empty term: '${text}'`);
  const [address, prefixText] = body.split('/') as [string, string?];
  const version = net.isIP(address);
  if (version !== 0) {
    const bits = version === 4 ? 32 : 128;
    const prefix = prefixText === undefined ? bits : Number(prefixText);
    if (!Number.isInteger(prefix) || prefix < 0 || prefix > bits || prefixText === '') {
      throw new ShoalError('config', `interface filter '${text}' is not a network: its prefix is a number from 0 to ${bits}`);
    }
    const family = version === 4 ? 'ipv4' : 'ipv6';
    const list = new net.BlockList();
    list.addSubnet(address, prefix, family);
    return { excludes, matches: (_name, candidate) => net.isIP(candidate) === version && list.check(candidate, family) };
  }
  if (body.includes('/')) throw new ShoalError('config', `interface filter '${text}' is neither a name nor a network`);
  if (body.endsWith('*')) return { excludes, matches: (name) => name.startsWith(body.slice(0, -1)) };
  return { excludes, matches: (name) => name === body };
}
