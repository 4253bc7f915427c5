/** Devices of a Vulkan driver, in processes of their own: SwiftShader's, where chromium has brought it. */
import { spawnSync } from 'node:child_process';
import { describe, expect, it, vi } from 'vitest';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { shmUnavailable } from '../../src/fabric/providers/shm.ts';
import { softwareDriver } from '../../src/memory/device/software-driver.ts';
import { exampleScript, fixtureCommand } from '../support/fixtures.ts';
import { startRanks } from '../support/ranks.ts';

// The timeout is generous: every test starts several processes, on machines that may be busy.
vi.setConfig({ testTimeout: 240_000 });

const driver = softwareDriver();
const why = driver === undefined ? " (skipped: SwiftShader's driver is not installed: apt-get install chromium)" : '';

describe.skipIf(driver === undefined)(`collectives on buffers of WebGPU${why}`, () => {
  it.each([2, 3])('have the bits of the host between %i ranks, and fail on all of them when a device is lost', async (n) => {
    await using world = await startRanks({ fixture: 'device-collectives', n, env: { ...driver } });
    for (const [rank, { lines, code, stderr }] of (await world.outcomes()).entries()) {
      const same = ['all-reduce of 4', 'all-reduce of 1000', `all-reduce of ${4 * 2 ** 20 + 12}`, 'all-gather', 'reduce-scatter'];
      expect(lines.slice(0, -2), stderr).toEqual([{ adapter: 'swiftshader' }, ...same.map((what) => ({ what, same: true }))]);
      expect(lines.at(-2)).toMatchObject({ what: 'lost', ok: false, message: expect.stringContaining('rank 0: all-reduce of group') });
      expect(lines.at(-1)).toEqual({ ended: true });
      expect([code, rank]).toEqual([0, rank]);
    }
  });
});

describe.skipIf(driver === undefined)(`tensors between buffers of WebGPU, by rendezvous${why}`, () => {
  for (const [carrier, reason] of [['tcp'], ['shm', shmUnavailable()], ['libfabric', libfabricUnavailable()]] as const) {
    const skipped = reason === undefined ? '' : ` (skipped: ${reason})`;
    it.skipIf(reason !== undefined)(
      `come as they were over ${carrier}, and fail for both ends when the device is lost${skipped}`,
      async () => {
        await using world = await startRanks({ fixture: 'rendezvous-device', n: 2, env: { ...driver, CARRIER: carrier } });
        for (const [rank, { lines, code, stderr }] of (await world.outcomes()).entries()) {
          const came = [1, 1000, 3 * 2 ** 20 + 5].map((count) => ({ count, same: [true, true], into: true }));
          expect(lines.slice(0, 4), stderr).toEqual([{ adapter: 'swiftshader' }, ...came]);
          expect(lines[4]).toMatchObject({
            what: 'lost',
            ok: false,
            code: 'closed',
            message: expect.stringContaining('destroyed') as string,
          });
          expect(lines.slice(5)).toEqual([...(rank === 0 ? [] : [{ host: 7 }]), { ended: true }]);
          expect(code).toBe(0);
        }
      },
    );
  }
});

describe.skipIf(driver === undefined)(`graphs that compute on buffers of WebGPU${why}`, () => {
  it('send them from the device of one task to that of another', async () => {
    await using world = await startRanks({ fixture: 'graph-device', n: 2, env: { ...driver } });
    for (const [rank, { lines, code, stderr }] of (await world.outcomes()).entries()) {
      const came = [1, 1000, 3 * 2 ** 20 + 5].map((count) => ({ count, same: true }));
      expect(lines, stderr).toEqual([{ adapter: 'swiftshader' }, ...(rank === 0 ? came : []), { ended: true }]);
      expect(code).toBe(0);
    }
  });
});

describe.skipIf(driver === undefined)(`jax-js on device webgpu${why}`, () => {
  it.each([
    ['with the addon', {}],
    ['without the addon', { SHOAL_NATIVE: '0' }],
  ])('has its gradients averaged %s', async (_, native) => {
    await using world = await startRanks({ fixture: 'ddp-webgpu', n: 2, env: { ...driver, ...native } });
    // Means of twice 1 and twice 2, the values of the ranks.
    const averages = [[3, 5, 7, 9], [3], [3, 3, 3, 3]];
    for (const { lines, code, stderr } of await world.outcomes()) {
      const [first, ...rest] = lines as Record<string, unknown>[];
      expect(first, stderr).toEqual({ device: 'webgpu', params: expect.arrayContaining([[1, 2, 3, 4], [1], [1, 1, 1, 1]]) as unknown });
      for (const step of rest.slice(0, 2))
        expect(step).toEqual({ device: 'webgpu', averaged: expect.arrayContaining(averages) as unknown });
      expect(rest.slice(2)).toEqual([{ averageSync: 'usage', accumulate: 'usage' }, { checksum: 16 }]);
      expect(code).toBe(0);
    }
  });
});

describe('openDevice without a driver', () => {
  it('names the missing part, and the next step', () => {
    const [program, ...args] = fixtureCommand('device-collectives');
    const env = { PATH: process.env.PATH, VK_ICD_FILENAMES: '/nonexistent.json' };
    const { stderr, status } = spawnSync(program, args, { encoding: 'utf8', env });
    expect(stderr).toContain("code: 'unsupported'");
    expect(stderr).toMatch(
      /no WebGPU adapter: it needs a Vulkan driver and the loader libvulkan1 \(VK_ICD_FILENAMES is \/nonexistent.json\); .*SwiftShader/s,
    );
    expect(status).toBe(1);
  });
});

it('the character model names the missing part when --device webgpu has no driver', () => {
  const args = [exampleScript('char-lm'), '--device', 'webgpu'];
  const env = { PATH: process.env.PATH, VK_ICD_FILENAMES: '/nonexistent.json' };
  const { stderr, status } = spawnSync(process.execPath, args, { encoding: 'utf8', env });
  expect(stderr).toContain('no WebGPU adapter');
  expect(status).toBe(1);
});

it('shoal info shows the adapter, or the reason why there is none', () => {
  const info = (env: NodeJS.ProcessEnv): unknown =>
    JSON.parse(
      spawnSync(process.execPath, ['dist/tools/cli/main.js', 'info', '--json'], {
        encoding: 'utf8',
        env: { PATH: process.env.PATH, ...env },
      }).stdout,
    );
  expect(info({ VK_ICD_FILENAMES: '/nonexistent.json' })).toMatchObject({
    webgpu: { adapter: null, reason: expect.stringContaining('no WebGPU adapter') as unknown },
  });
  if (driver)
    expect(info({ ...driver })).toMatchObject({ webgpu: { adapter: expect.stringContaining('SwiftShader') as unknown, reason: null } });
});
