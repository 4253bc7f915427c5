/** The demonstration over libfabric: two processes in two network namespaces, with the bits that it has over TCP. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { createNetwork, networkUnavailable, type Network } from '../../bench/network/network.ts';
import { rankVariables } from '../../bench/peers/place.ts';
import { runTogether } from '../../bench/peers/processes.ts';
import { builtEntry } from '../../src/base/packages/package-root.ts';
import { openNode } from '../../src/ps/job/node-context.ts';
import { Router } from '../../src/messaging/index.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';

const reason = libfabricUnavailable({ provider: 'tcp;ofi_rxm' }) ?? networkUnavailable();
const folder = temporaryFolder('libfabric', afterAll);
const text = join(folder, 'text.txt');
const example = (path: string): string[] => [
  process.execPath,
  '--import',
  'tsx',
  fileURLToPath(new URL(`../../examples/${path}`, import.meta.url)),
];
const planes = {
  tcp: { SHOAL_FABRICS: 'tcp' },
  libfabric: { SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: 'tcp;ofi_rxm' },
} as const;
let network: Network | undefined;

beforeAll(async () => {
  writeFileSync(text, 'she sells sea shells by the sea shore. '.repeat(1000));
  if (reason === undefined) network = await createNetwork({ hosts: 2 });
}, 120_000);
afterAll(() => {
  network?.[Symbol.dispose]();
});

/** Runs one program per host. */
async function run(
  plane: keyof typeof planes,
  programs: readonly { command: readonly string[]; env?: Record<string, string> }[],
): Promise<void> {
  const { hosts, name } = network!;
  await runTogether(
    programs.map(({ command, env }, rank) => ({
      command: [...hosts[rank].enter, ...command],
      environment: {
        ...rankVariables({ rank, ranks: 2, localRank: 0, localRanks: 1, masterAddress: hosts[0].address, masterPort: 29400 }),
        SHOAL_HOST_ID: `${name}-host-${rank}`,
        SHOAL_SECRET: 'a secret for tests',
        SHOAL_ENCRYPTION: plane === 'tcp' ? 'on' : 'off',
        ...planes[plane],
        ...env,
      },
    })),
    { timeoutMs: 200_000 },
  );
}

function resultOf(path: string): Record<string, unknown> {
  return JSON.parse(readFileSync(join(folder, path), 'utf8')) as Record<string, unknown>;
}

const noLibrary = libfabricUnavailable({ provider: 'tcp;ofi_rxm' });

it.skipIf(noLibrary !== undefined)(
  `a store of parameter servers is on the fabric that comes first${noLibrary === undefined ? '' : ` (skipped: ${noLibrary})`}`,
  async () => {
    const node = await openNode({ ...planes.libfabric });
    const router = new Router(node.messaging);
    expect(await router.bind(node.bindUrl)).toMatch(/^fabric:\/\/libfabric\/.*tcp%253Bofi_rxm/);
    await router.close();
    await node.close();
    await expect(openNode({ ...planes.libfabric, SHOAL_LIBFABRIC_PROVIDER: 'nowhere' })).rejects.toMatchObject({ code: 'unsupported' });
  },
);

describe.skipIf(reason !== undefined)(`the demonstration over libfabric${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
  it('trains by all-reduce, with the bits of tcp', { timeout: 480_000 }, async () => {
    const trained = async (plane: keyof typeof planes): Promise<unknown> => {
      const out = join(folder, `all-reduce-${plane}`);
      const command = [...example('char-lm/train.ts'), '--text', text, '--steps', '6', '--batch', '4', '--out', out];
      await run(plane, [{ command }, { command }]);
      const [first, second] = [0, 1].map((rank) => resultOf(`all-reduce-${plane}/rank-${rank}.json`));
      expect(first.checksum).toBe(second.checksum);
      const { losses, heldOutLoss, checksum } = first;
      expect(losses).toHaveLength(3);
      return { losses, heldOutLoss, checksum };
    };
    expect(await trained('libfabric')).toEqual(await trained('tcp'));
  });

  it('trains by parameter server, with the bits of ZeroMQ over tcp', { timeout: 480_000 }, async () => {
    const trained = async (plane: keyof typeof planes): Promise<unknown> => {
      const out = join(folder, `server-${plane}`);
      const job = { SHOAL_WORKERS: '1', SHOAL_SERVERS: '1', SHOAL_KV_SILENCE_MS: '60000' };
      await run(plane, [
        {
          command: [...example('parameter-server/train.ts'), '--text', text, '--steps', '6', '--batch', '4', '--out', out],
          env: { ...job, SHOAL_ROLE: 'worker' },
        },
        {
          command: [process.execPath, builtEntry('ps/server/server-entry.js')],
          env: { ...job, SHOAL_ROLE: 'server', SHOAL_SERVER: '0' },
        },
      ]);
      const { losses, heldOutLoss } = resultOf(`server-${plane}/worker-0.json`);
      expect(losses).toHaveLength(6);
      return { losses, heldOutLoss };
    };
    expect(await trained('libfabric')).toEqual(await trained('tcp'));
  });
});
