/** The addresses where fabrics over TCP listen, and the candidates that tell peers. */
import net from 'node:net';
import os from 'node:os';
import { ShoalError } from '../../base/errors.ts';
import { offeredAddresses } from '../interfaces.ts';

const wildcards: readonly string[] = ['0.0.0.0', '::'];

export interface ListenHost {
  readonly host: string;
  readonly addresses: readonly string[];
}

/** The hosts to bind, and the addresses to offer for each. A wildcard without an address of its family is left out; where there
 *  is no network at all, peers can only be on this host. */
export function hostsToListenOn(listenHosts: readonly string[], filter: readonly string[] | undefined): ListenHost[] {
  if (!listenHosts.some((host) => wildcards.includes(host))) return listenHosts.map((host) => ({ host, addresses: [host] }));
  const offered = offeredAddresses(os.networkInterfaces(), filter);
  const hosts = listenHosts.map((host) => {
    if (!wildcards.includes(host)) return { host, addresses: [host] };
    const family = host === '::' ? 'IPv6' : 'IPv4';
    return { host, addresses: offered.filter((each) => each.family === family).map(({ address }) => address) };
  });
  const usable = hosts.filter(({ addresses }) => addresses.length > 0);
  return usable.length > 0 ? usable : [{ host: '127.0.0.1', addresses: ['127.0.0.1'] }];
}

/** The candidate as text: `tcp://10.0.0.4:41234`. */
export function candidateText(scheme: string, address: string, port: number): string {
  return net.isIP(address) === 6 ? `${scheme}://[${address}]:${port}` : `${scheme}://${address}:${port}`;
}

/** @throws ShoalError `config`. */
export function parseCandidate(scheme: string, candidate: string): { host: string; port: number } {
  const parts = /^(\w+):\/\/(?:\[([^\]]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(candidate);
  const port = Number(parts?.[4]);
  const host = parts?.[2] ?? parts?.[3];
  if (parts?.[1] !== scheme || host === undefined || port < 1 || port > 65_535)
    throw new ShoalError('config', `'${candidate}' is not an address like ${scheme}://10.0.0.4:41234`);
  return { host, port };
}
