/** Process groups on several hosts, played by processes of one machine: the conformance checks over fairring and the automatic
 *  choice, a host that dies in the middle of a transfer, a rank that stops reading. */
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { loadNative, nativeUnavailableReason } from '../../src/memory/native.ts';
import { expectConformance } from '../support/expect-conformance.ts';
import { hostEnvironment } from '../support/host-environment.ts';
import { startRanks, type RankProcess, type RanksOptions } from '../support/ranks.ts';
import { testWorlds } from '../support/start-worlds.ts';
import type { TestWorld } from '../support/worlds.ts';

const directory = temporaryFolder('hosts', afterAll);

/** Options for ranks on hosts, one letter per rank. */
function onHosts(hosts: string): Pick<RanksOptions, 'n' | 'envOf'> {
  return { n: hosts.length, envOf: (rank) => hostEnvironment(hosts, rank) };
}

/** Settings that give several slices even to the small tensors of the checks, of which few fit the staging. */
const manySlices = { SHOAL_SLICE_BYTES: '16KiB', SHOAL_STAGING_BYTES: '24KiB' };

describe('conformance over several hosts', () => {
  const worlds = (
    [
      { hosts: 'ab', backend: 'fairring', env: manySlices },
      { hosts: 'aabb', backend: 'fairring', env: manySlices },
      { hosts: 'abab', backend: 'fairring' },
      { hosts: 'aab', backend: 'auto', env: manySlices },
      { hosts: 'aabb', backend: 'auto', checks: 'all', env: { SHOAL_CALIBRATION: 'assume' } },
      { hosts: 'abc', backend: 'halving-doubling' },
      { hosts: 'abcd', backend: 'tree' },
      { hosts: 'abcde', backend: 'auto' },
      // Groups of hosts, the last shorter.
      { hosts: 'abcde', backend: 'fairring', env: { SHOAL_GROUP_HOSTS: '2' } },
      { hosts: 'aabbcc', backend: 'fairring', env: { SHOAL_GROUP_HOSTS: '2', ...manySlices } },
    ] as { hosts: string; backend: string; checks?: TestWorld['checks']; env?: Record<string, string> }[]
  ).map((world) => ({
    name: `hosts ${world.hosts}, backend ${world.backend}`,
    n: world.hosts.length,
    checks: 'planned' as const,
    ...world,
  }));
  testWorlds('conformance', worlds, expectConformance);
});

/** On these hosts ranks 1 and 2 hear of each other through rank 0 alone, and of rank 3 through rank 2. */
describe('hosts whose announcements travel along a tree', () => {
  const options = (hosts: string, scenario: string): RanksOptions => ({
    fixture: 'scenario',
    ...onHosts(hosts),
    env: { SHOAL_ALGORITHMS: 'all-reduce:tree', SCENARIO: scenario },
  });

  it('a rank that makes fewer calls: timeout that names it alone', async () => {
    await using world = await startRanks(options('abcd', 'fewer'));
    for (const rank of [0, 2, 3]) {
      const report = await world.ranks[rank].line<Call>(is('call'));
      expect(report).toMatchObject({ code: 'timeout', peer: 1 });
      expect(report.message).toMatch(/waiting for rank 1[^,\d]/);
    }
  });

  it('a rank that leaves early: mismatch, long before the timeout', async () => {
    await using world = await startRanks(options('abcd', 'leaves'));
    for (const rank of [0, 2, 3]) {
      const report = await world.ranks[rank].line<Call>(is('call'));
      expect(report).toMatchObject({ code: 'mismatch' });
    }
  });
});

/** Every algorithm there runs either whole on the calling thread, or not on it at all. */
describe('conformance on one host, by backend', () => {
  const missing = nativeUnavailableReason();
  const backends = ['tree', 'one-shot', 'direct', 'halving-doubling', 'ring', 'fairring'];
  const worlds = [...backends, ...(missing === undefined ? ['host-direct'] : [])].map((backend): TestWorld => ({
    name: backend,
    n: 3,
    backend,
    checks: 'planned',
  }));
  testWorlds('conformance', worlds, expectConformance);
  if (missing !== undefined) it(`host-direct (skipped: ${missing})`, (context) => context.skip(missing));
});

interface Call {
  readonly what: string;
  readonly code: string;
  readonly message: string;
  readonly peer: number;
  readonly megabytes: number;
}

interface Held {
  readonly descriptors: number;
  readonly mappings: number;
}

const is =
  (what: string) =>
  (line: { what?: string }): boolean =>
    line.what === what;
const isReady = (line: { ready?: number }): boolean => line.ready !== undefined;

describe.each(['fairring', 'auto'])('backend %s, two hosts of two ranks', (backend) => {
  const options = (env: Record<string, string>): RanksOptions => ({
    fixture: 'hosts-scenario',
    ...onHosts('aabb'),
    env: { BACKEND: backend, SHOAL_SLICE_BYTES: '256KiB', SHOAL_STAGING_BYTES: '1MiB', ...env },
  });

  it('a host that dies in the middle: all survivors learn its name, give memory back, and go on', async () => {
    const meeting = `file://${join(directory, `meeting-${backend}`)}`;
    await using world = await startRanks(options({ MEETING: meeting }));
    await Promise.all(world.ranks.map((rank) => rank.line(isReady)));
    const [first, second, ...host] = world.ranks as [RankProcess, RankProcess, ...RankProcess[]];
    for (const rank of host) rank.kill();
    const calls = await Promise.all([first, second].map((rank) => rank.line<Call>(is('call'))));
    for (const [k, rank] of [first, second].entries()) {
      const call = calls[k];
      expect(call).toMatchObject({ code: 'peer-lost' });
      expect([2, 3]).toContain(call.peer);
      // A rank may hear of the loss before its next call.
      expect(call.message).toMatch(/rank [23] was lost (during all-reduce|between collectives)/);
      expect(await rank.line(is('later'))).toMatchObject({ code: 'peer-lost' });
      expect(await rank.line(is('early group'))).toMatchObject({ sum: 3 });
      const { before, after } = await rank.line<{ what?: string; before: Held; after: Held }>(is('left'));
      expect(after.descriptors).toBeLessThanOrEqual(before.descriptors);
      if (loadNative({ enabled: true }) !== undefined) expect(after.mappings).toBeLessThanOrEqual(before.mappings);
      expect(await rank.line(is('anew'))).toMatchObject({ sum: 3, hosts: [[0, 1]] });
      expect(await rank.exited).toMatchObject({ code: 0, stderr: '' });
    }
  });

  it('a rank that stops reading: a timeout that names it, and memory that does not grow', async () => {
    await using world = await startRanks(options({ SCENARIO: 'stopped' }));
    const ready = await Promise.all(world.ranks.map((rank) => rank.line<{ ready: number; megabytes: number }>(isReady)));
    for (const rank of [0, 1, 2]) {
      const call = await world.ranks[rank].line<Call>(is('call'));
      expect(call).toMatchObject({ code: 'timeout', peer: 3 });
      expect(call.message).toMatch(/rank 3/);
      // The tensors are 128 MiB; the data that waits for the stopped rank is bounded by staging and by queues of 64 MiB per link.
      expect(call.megabytes - ready[rank].megabytes).toBeLessThan(160);
    }
  });
});
