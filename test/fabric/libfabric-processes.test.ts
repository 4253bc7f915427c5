/** Process groups over libfabric, in real processes and on hosts made of network namespaces. */
import { spawnSync } from 'node:child_process';
import { describe, expect, it, vi } from 'vitest';
import { createNetwork, networkUnavailable } from '../../bench/network/network.ts';
import { networkPlace } from '../../bench/network/network-place.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { plannedChecks } from '../../src/group/conformance.ts';
import { expectConformance } from '../support/expect-conformance.ts';
import { fixtureCommand } from '../support/fixtures.ts';
import { startRanks } from '../support/ranks.ts';
import { testWorlds } from '../support/start-worlds.ts';

// The timeout is generous: every test starts several processes, on machines that may be busy.
vi.setConfig({ testTimeout: 240_000 });

for (const { provider, ...checks } of [{ provider: 'tcp;ofi_rxm' }, { provider: 'shm', checks: 'planned' }] as const) {
  const reason = libfabricUnavailable({ provider });
  const env = { SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: provider };

  describe.skipIf(reason !== undefined)(`groups over libfabric ${provider}${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
    testWorlds('conformance', [{ name: `2 ranks over ${provider}`, n: 2, env, ...checks }], expectConformance);

    it('all-reduces run while the main thread is busy', async () => {
      await using world = await startRanks({ fixture: 'overlap', n: 2, env });
      for (const { lines, stderr, code } of await world.outcomes()) {
        expect(stderr).toBe('');
        expect(lines).toMatchObject([{ overlapped: true }]);
        expect(code).toBe(0);
      }
    });

    it('is the link between ranks', async () => {
      await using world = await startRanks({ fixture: 'bad-input', n: 2, env: { ...env, SCENARIO: 'places' } });
      const links = [
        ['self', 'libfabric'],
        ['libfabric', 'self'],
      ];
      for (const { lines } of await world.outcomes()) expect(lines.at(-1)).toMatchObject({ links });
    });
  });
}

const noTcp = libfabricUnavailable({ provider: 'tcp;ofi_rxm' });

it.skipIf(noTcp !== undefined).each([2, 4, 8])(
  `with %i descriptors left, connecting says that they are used up${noTcp === undefined ? '' : ` (skipped: ${noTcp})`}`,
  (left) => {
    const [program, ...args] = fixtureCommand('libfabric-run-out');
    const command = ['-c', 'ulimit -n 200; exec "$0" "$@"', program, ...args, 'tcp;ofi_rxm', String(left)];
    const { stdout } = spawnSync('/bin/sh', command, { encoding: 'utf8' });
    expect(JSON.parse(stdout)).toMatchObject({ code: 'out-of-memory', resource: 'file descriptors' });
  },
);

const missing = libfabricUnavailable({ provider: 'tcp;ofi_rxm' }) ?? networkUnavailable();

describe.skipIf(missing !== undefined)(`libfabric between hosts${missing === undefined ? '' : ` (skipped: ${missing})`}`, () => {
  it('carries every collective between 2 network namespaces', async () => {
    using network = await createNetwork({ hosts: 2 });
    const env = { SHOAL_ENCRYPTION: 'off', SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: 'tcp;ofi_rxm', CHECKS: 'planned' };
    const place = networkPlace({ network, ranksPerHost: 1, secret: 'a secret for tests', timeoutMs: 200_000 });
    const passed = `${JSON.stringify({ world: 'of the environment', passed: plannedChecks.map(({ name }) => name) })}\n`;
    expect(
      await place.run({
        command: ['env', ...Object.entries(env).map(([name, value]) => `${name}=${value}`), ...fixtureCommand('conformance')],
      }),
    ).toBe(passed);
  });
});
