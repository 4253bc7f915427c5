/** A server and a worker that share no memory, over real connections: counts the bytes that are copied between the worker's
 *  tensors and the server's values. Both are in this process, each with sockets and fabric of its own. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import type { Environment } from '../../src/base/settings/settings.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { openNode, type NodeContext } from '../../src/ps/job/node-context.ts';
import type { ValueCounters } from '../../src/ps/protocol/value-space.ts';
import { ServerNode } from '../../src/ps/server/server-node.ts';
import type { KVStore } from '../../src/kvstore/calls/types.ts';
import { openInlineStore } from '../../src/kvstore/testing/inline-store.ts';
import type { FrameCounters } from '../../src/messaging/backends/fabric/frame-places.ts';
import { StoreServer } from '../../src/store/store-server.ts';

const secret = 'a secret for tests';
const [keys, count] = [6, 300_000];
const bytes = keys * count * 4;

type Counted = NodeContext & { readonly counters: ValueCounters };

/** One process of the job, with only the parts that it needs. */
async function open(environment: Environment): Promise<Counted> {
  return { ...(await openNode(environment)), counters: { bytesCopied: 0 } };
}

const noLibfabric = libfabricUnavailable({ provider: 'tcp;ofi_rxm' });
const planes = [
  { plane: 'tcp', more: { SHOAL_KV_CARRIER: 'fabric' }, missing: undefined },
  {
    plane: 'libfabric',
    more: { SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: 'tcp;ofi_rxm' },
    missing: noLibfabric,
  },
];

describe.each(planes)('values over $plane', ({ more, missing }) => {
  const skipped = missing === undefined ? '' : ` (skipped: ${missing})`;
  let store: StoreServer;
  let [client, server]: (Counted | undefined)[] = [];
  let serving: ServerNode;
  let kv: KVStore;

  beforeEach(async (context) => {
    if (missing !== undefined) return context.skip(missing);
    const world = `test-${systemRandom.integer(2 ** 32)}`;
    // Writes of libfabric cannot be encrypted.
    const encryption = 'SHOAL_FABRICS' in more ? 'off' : 'on';
    const settings = { encryption, hostId: '' } as const;
    store = await StoreServer.listen({
      clock: systemClock,
      random: systemRandom,
      settings,
      secret: new TextEncoder().encode(secret),
      world,
    });
    const environment = (role: string): Environment => ({
      RANK: '0',
      WORLD_SIZE: '1',
      LOCAL_RANK: '0',
      LOCAL_WORLD_SIZE: '1',
      MASTER_ADDR: '127.0.0.1',
      MASTER_PORT: String(store.port),
      SHOAL_JOB: world,
      SHOAL_SECRET: secret,
      SHOAL_ROLE: role,
      SHOAL_WORKERS: '1',
      SHOAL_SERVERS: '1',
      SHOAL_SERVER: '0',
      SHOAL_HOST_ID: role,
      SHOAL_KV_SILENCE_MS: '60000',
      SHOAL_ENCRYPTION: encryption,
      ...more,
    });
    client = await open(environment('worker'));
    const starting = ServerNode.start(environment('server'), {
      open: async (of) => {
        server = await open(of);
        return server;
      },
    });
    const node = client;
    kv = await openInlineStore({ ...node, environment: environment('worker'), open: async () => node });
    serving = await starting;
  });

  afterEach(async () => {
    if (missing !== undefined) return;
    await kv.close();
    await serving.ended;
    await store.close();
  });

  const counters = (): [ValueCounters, FrameCounters, ValueCounters, FrameCounters] => [
    { ...client!.counters },
    { ...client!.messaging.places!.counters },
    { ...server!.counters },
    { ...server!.messaging.places!.counters },
  ];

  it.each([
    ['sums', undefined],
    ['an optimiser', { name: 'sgd', learningRate: 1 }],
  ] as const)(`go from tensor to tensor, and nobody copies them: %s${skipped}`, async (_, optimizer) => {
    const names = Array.from({ length: keys }, (_name, k) => `key${k}`);
    const [gradients, values] = [0, 1].map(() => names.map(() => kv.tensor('float32', [count])));
    await kv.init(names, gradients);
    if (optimizer !== undefined) await kv.setOptimizer(optimizer);
    // The first large frame makes the memory into which the later ones go.
    await kv.pushPull(names, gradients, values);
    const before = counters();
    for (let round = 1; round <= 3; round++) {
      for (const { data } of gradients) data.fill(round);
      await kv.pushPull(names, gradients, values);
      const expected = optimizer === undefined ? round : -(round * (round + 1)) / 2;
      for (const { data } of values) expect(new Set(data)).toEqual(new Set([expected]));
    }
    const [ofClient, framesHere, ofServer, framesThere] = counters();
    expect(ofClient.bytesCopied - before[0].bytesCopied).toBe(0);
    expect(framesHere).toEqual({ ...before[1], bytesPlaced: before[1].bytesPlaced + 3 * bytes });
    expect(ofServer.bytesCopied - before[2].bytesCopied).toBe(0);
    expect(framesThere).toEqual({ ...before[3], bytesLent: before[3].bytesLent + 3 * bytes });
  });
});
