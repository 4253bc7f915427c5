/** Hosts made of network namespaces: the group's conformance checks over a real network stack, and the removal of everything. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, it, vi } from 'vitest';
import { createNetwork, namespacesOf, networkUnavailable, relayUnavailable, type NetworkOptions } from '../../bench/network/network.ts';
import type { OverlapReport } from '../../bench/overlap/report.ts';
import { networkPlace } from '../../bench/network/network-place.ts';
import { overlapTable } from '../../scripts/performance-tables.ts';
import { plannedChecks } from '../../src/group/conformance.ts';
import { fixtureCommand } from '../support/fixtures.ts';

// The timeout is generous: every test starts several processes, on machines that may be busy.
vi.setConfig({ testTimeout: 240_000 });

const reason = networkUnavailable();
const noRelay = relayUnavailable();
const script = fileURLToPath(new URL('../../bench/network/run.ts', import.meta.url));
const node = [process.execPath, '--import', import.meta.resolve('tsx')];

const conformance = ['env', 'CHECKS=planned', ...fixtureCommand('conformance')];
const allPassed = `${JSON.stringify({ world: 'of the environment', passed: plannedChecks.map(({ name }) => name) })}\n`;

async function run(options: NetworkOptions, command: readonly string[], ranksPerHost = 1): Promise<string> {
  using network = await createNetwork(options);
  return await networkPlace({ network, ranksPerHost, secret: 'a secret for tests', timeoutMs: 200_000 }).run({ command });
}

describe.skipIf(reason !== undefined)(`a network of namespaces${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
  it('carries every collective between 2 hosts', async () => {
    expect(await run({ hosts: 2, rateMbit: 1000 }, conformance)).toBe(allPassed);
  });

  it.skipIf(noRelay !== undefined)(
    `carries every collective with delay and loss${noRelay === undefined ? '' : ` (skipped: ${noRelay})`}`,
    async () => {
      expect(await run({ hosts: 2, delayUs: 200, jitterUs: 50, lossPercent: 0.5 }, conformance, 2)).toBe(allPassed);
    },
  );

  it('lends its hosts to graphs over the fabric and over gRPC', async () => {
    const program = fileURLToPath(new URL('../../bench/graph/run.ts', import.meta.url));
    const flags = ['--network', '--workers', '1', '--rounds', '1', '--steps', '2', '--columns', '4', '--ways', 'gRPC static,fabric static'];
    const { stdout } = await promisify(execFile)(process.execPath, [...node.slice(1), program, ...flags]);
    const [grpc, fabric] = ['gRPC', 'fabric'].map((carrier) => new RegExp(`^${carrier} static +([\\d.]+)`, 'm').exec(stdout)?.[1]);
    expect(Number(fabric)).toBeGreaterThan(0);
    expect(grpc).toBe(fabric);
  });

  it('gives ranks their place and hosts their names', async () => {
    const show =
      'console.log([process.env.RANK,process.env.LOCAL_RANK,process.env.WORLD_SIZE,process.env.MASTER_ADDR,os.hostname()].join(" "))';
    expect(await run({ hosts: 2 }, [process.execPath, '-e', show], 2)).toBe('0 0 4 10.77.0.1 host-0\n');
  });

  it('lends its hosts to the measurement of overlap, whose results are right', async () => {
    const program = fileURLToPath(new URL('../../bench/overlap/run.ts', import.meta.url));
    const flags = ['--hosts', '2', '--rate-mbit', '0', '--delay-us', '0', '--bytes', '64KiB', '--buckets', '4'];
    const sweep = ['--in-flight', '2', '--series', 'staging,slices', '--rounds', '1', '--samples', '1'];
    const child = spawn(process.execPath, [...node.slice(1), program, ...flags, ...sweep], { stdio: ['ignore', 'pipe', 'inherit'] });
    let text = '';
    child.stdout.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
    const [code] = (await once(child, 'close')) as [number | null];
    expect(code).toBe(0);
    const report = JSON.parse(text) as OverlapReport;
    expect(report.points.map(({ series, inFlight, stagingBytes }) => [series, inFlight, stagingBytes])).toEqual([
      ['staging', 2, 2 * 32 * 1024],
      ['slices', 2, 2 * 32 * 1024],
    ]);
    for (const { medianUs } of report.points) expect(medianUs).toBeGreaterThan(0);
    expect(overlapTable(report)).toContain('| in flight | 4 × 64 KiB, all started, staging for this many |');
  });

  it('is gone after a failure', async () => {
    const before = namespacesOf(`shoal-${process.pid}`);
    await expect(run({ hosts: 2 }, [process.execPath, '-e', 'process.exit(7)'])).rejects.toThrow(/code 7/);
    await expect(run({ hosts: 1 }, ['true'])).rejects.toThrow(/2 to 64 hosts/);
    await expect(run({ hosts: 2, lossPercent: Number.NaN }, ['true'])).rejects.toThrow(/lossPercent/);
    expect(namespacesOf(`shoal-${process.pid}`)).toEqual(before);
  });

  it.each(['SIGINT', 'SIGTERM'] as const)('is gone after %s, with the processes that ran in it', async (signal) => {
    const child = spawn(
      process.execPath,
      [...node.slice(1), script, '--hosts', '2', '--', process.execPath, '-e', 'setInterval(() => {}, 1000)'],
      {
        stdio: ['ignore', 'ignore', 'pipe'],
      },
    );
    const name = `shoal-${child.pid}`;
    await vi.waitFor(() => expect(namespacesOf(name)).toHaveLength(3), { timeout: 60_000 });
    child.kill(signal);
    const [code] = (await once(child, 'exit')) as [number | null];
    expect(code).toBe(1);
    expect(namespacesOf(name)).toEqual([]);
  });

  it('removes networks that a killed process left', async () => {
    const child = spawn(
      process.execPath,
      [...node.slice(1), script, '--hosts', '2', '--', process.execPath, '-e', 'setInterval(() => {}, 1000)'],
      {
        stdio: 'ignore',
      },
    );
    const name = `shoal-${child.pid}`;
    await vi.waitFor(() => expect(namespacesOf(name)).toHaveLength(3), { timeout: 60_000 });
    child.kill('SIGKILL');
    await once(child, 'exit');
    await run({ hosts: 2 }, ['true']);
    expect(namespacesOf(name)).toEqual([]);
  });
});
