/** Groups on two hosts, played by processes of one machine, whose connections are encrypted, as is the default: ranks that are killed or
 *  stopped, ends that differ, and carriers that cannot encrypt. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { describe, expect, it, vi } from 'vitest';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { mpiUnavailable } from '../../src/mpi/mpi-endpoint.ts';
import { shoal, start, type Ended } from '../fixtures/launch-harness.ts';
import { fixtureCommand, fixtureScript } from '../support/fixtures.ts';
import { hostEnvironment } from '../support/host-environment.ts';
import { mpirunFolder } from '../support/mpirun-folder.ts';
import { startRanks, type RanksOptions } from '../support/ranks.ts';

// Every test starts several processes, on machines that may be busy.
vi.setConfig({ testTimeout: 240_000 });

function onHosts(hosts: string): Pick<RanksOptions, 'n' | 'envOf'> {
  return { n: hosts.length, envOf: (rank) => hostEnvironment(hosts, rank) };
}

describe('two hosts of two ranks', () => {
  it('a killed rank: the others name it, on its host and on the other, long before a time limit', async () => {
    await using world = await startRanks({ fixture: 'hosts-scenario', ...onHosts('aabb') });
    await Promise.all(world.ranks.map((rank) => rank.line(({ ready }: { ready?: number }) => ready !== undefined)));
    world.ranks[3].kill();
    for (const rank of [0, 1, 2]) {
      const call = await world.ranks[rank].line(({ what }: { what?: string }) => what === 'call');
      // The calls' own limit is a minute, and would be code `timeout`. A rank may hear of the loss before its next call.
      const message = expect.stringMatching(/^rank 3 was lost (during all-reduce|between collectives)/) as string;
      expect(call).toMatchObject({ code: 'peer-lost', peer: 3, message });
    }
  });

  it('a rank that is stopped and continued: all go on, with the right sums', async () => {
    await using world = await startRanks({ fixture: 'paused-rank', ...onHosts('aabb') });
    const last = world.ranks[3];
    await last.line(({ stopping }: { stopping?: number }) => stopping === 3);
    while (!/^\d+ \(.*\) T/s.test(readFileSync(`/proc/${last.child.pid}/stat`, 'utf8'))) await sleep(systemClock, 10);
    // Time for the others to come to the same call, and to fill their queues to the stopped rank.
    await sleep(systemClock, 500);
    last.kill('SIGCONT');
    for (const [rank, { code, stderr, lines }] of (await world.outcomes()).entries()) {
      expect([code, stderr]).toEqual([0, '']);
      expect(lines).toContainEqual({ rank, right: 36 });
    }
  });
});

describe('ends that differ', () => {
  const withRank = (script: string): string[] => ['sh', '-c', `${script}; exec "$0" "$@"`, process.execPath, fixtureScript('private-rank')];

  it('a rank without encryption on another host is refused, with the name of the setting', async () => {
    const other = withRank('if [ $RANK = 1 ]; then export SHOAL_HOST_ID=other SHOAL_ENCRYPTION=off; fi');
    await using job = shoal(['run', '-n', '2', '--grace', '50ms', '--no-node', ...other]);
    const { code, stderr } = await job.ended;
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/demands encryption and .* has SHOAL_ENCRYPTION=off; set the same everywhere/);
    expect(stderr).not.toMatch(/timeout/);
  });

  it('on one host it is not asked', async () => {
    const other = withRank('if [ $RANK = 1 ]; then export SHOAL_ENCRYPTION=off; fi');
    await using job = shoal(['run', '-n', '2', '--grace', '50ms', '--no-node', ...other]);
    const { stderr } = await job.ended;
    expect(stderr).toMatch(/rank 1 cannot go on/);
    expect(stderr).not.toMatch(/SHOAL_ENCRYPTION/);
  });
});

const noLibfabric = libfabricUnavailable({ provider: 'tcp;ofi_rxm' });

describe.skipIf(noLibfabric !== undefined)(`libfabric${noLibfabric === undefined ? '' : ` (skipped: ${noLibfabric})`}`, () => {
  const options = (hosts: string, env: Record<string, string>): RanksOptions => ({
    fixture: 'bad-input',
    ...onHosts(hosts),
    env: { SHOAL_LIBFABRIC_PROVIDER: 'tcp;ofi_rxm', SCENARIO: 'places', ...env },
  });

  it('is refused between hosts, with the setting that allows it', async () => {
    await using world = await startRanks(options('ab', { SHOAL_FABRICS: 'libfabric' }));
    for (const { code, stderr, lines } of await world.outcomes()) {
      expect(code).not.toBe(0);
      expect(`${stderr}${JSON.stringify(lines)}`).toMatch(
        /cannot be encrypted, and leaves the host; set SHOAL_ENCRYPTION=off to allow that/,
      );
    }
  });

  it('is left aside where another carrier can encrypt', async () => {
    await using world = await startRanks(options('ab', { SHOAL_FABRICS: 'libfabric,tcp' }));
    const links = [
      ['self', 'tcp'],
      ['tcp', 'self'],
    ];
    for (const { lines } of await world.outcomes()) expect(lines.at(-1)).toMatchObject({ links });
  });
});

const mpirun = spawnSync('mpirun', ['--version'], { encoding: 'utf8' });
const noMpi = mpiUnavailable() ?? (mpirun.status === 0 && mpirun.stdout.includes('Open MPI') ? undefined : 'mpirun is not on PATH');

describe.skipIf(noMpi !== undefined)(`Open MPI${noMpi === undefined ? '' : ` (skipped: ${noMpi})`}`, () => {
  /** @param variable what tells the processes of two hosts. */
  const onTwoHosts = async (variable: string, script: string, ...args: readonly string[]): Promise<Ended> => {
    const flags = ['--allow-run-as-root', '--oversubscribe', '-n', '2'];
    const place = ['sh', '-c', `export ${variable}; exec "$0" "$@"`];
    await using job = start(['mpirun', ...flags, ...place, ...fixtureCommand(script), ...args], { env: mpirunFolder() });
    return await job.ended;
  };

  it('a group is refused between hosts, with the setting that allows it', async () => {
    const { code, stderr } = await onTwoHosts('SHOAL_HOST_ID=host$OMPI_COMM_WORLD_RANK', 'mpi-group', 'mismatch');
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/Open MPI's messages between hosts cannot be encrypted; set SHOAL_ENCRYPTION=off to allow that/);
  });

  it('messages over mpi:// are refused between hosts, with the option that allows them', async () => {
    const { code, stderr } = await onTwoHosts('OMPI_COMM_WORLD_LOCAL_SIZE=1', 'mpi-messaging');
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/mpi:\/\/ leaves this host, and MPI encrypts nothing; encryption: 'none' of the context allows that/);
  });
});
