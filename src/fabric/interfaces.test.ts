import type { NetworkInterfaceInfo } from 'node:os';
import { describe, expect, it } from 'vitest';
import { offeredAddresses, type Interfaces } from './interfaces.ts';

const entry = (address: string, internal = false): NetworkInterfaceInfo => {
  const family = address.includes(':') ? 'IPv6' : 'IPv4';
  return { address, netmask: '', mac: '', internal, cidr: null, family, scopeid: 0 };
};
const host: Interfaces = {
  lo: [entry('127.0.0.1', true), entry('::1', true)],
  docker0: [entry('172.17.0.1')],
  eth0: [entry('10.0.0.4'), entry('fd00::4'), entry('fe80::1')],
  ib0: [entry('10.1.0.4')],
};
const addresses = (...filter: string[]): string[] => offeredAddresses(host, filter).map(({ address }) => address);

describe('offered addresses', () => {
  it('are all but loopback and link-local, physical before virtual, IPv4 before IPv6', () => {
    expect(addresses()).toEqual(['10.0.0.4', '10.1.0.4', 'fd00::4', '172.17.0.1']);
  });

  it.each([
    [['eth0'], ['10.0.0.4', 'fd00::4']],
    [['^docker0', '^eth*'], ['10.1.0.4']],
    [['10.0.0.0/15'], ['10.0.0.4', '10.1.0.4']],
    [['10.0.0.0/8', '^10.1.0.4'], ['10.0.0.4']],
    [['fd00::/8'], ['fd00::4']],
    [['lo', '^::1'], ['127.0.0.1']],
    [['i*'], ['10.1.0.4']],
  ])('filter %j gives %j', (filter, expected) => {
    expect(addresses(...filter)).toEqual(expected);
  });

  it('a filter that leaves nothing or is malformed is a config error that says what there is', () => {
    expect(() => addresses('wlan0')).toThrow(
      expect.objectContaining({ code: 'config', message: expect.stringMatching(/wlan0.*eth0 \(10\.0\.0\.4/) }),
    );
    for (const term of ['10.0.0.0/33', '10.0.0.0/', 'eth0/24', '^', '']) {
      expect(() => addresses(term)).toThrow(expect.objectContaining({ code: 'config' }));
    }
  });
});
