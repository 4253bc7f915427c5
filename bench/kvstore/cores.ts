/** The cost of the cores alone: two clients and two servers on one thread, messages handed over as they are, push-pull of all
 *  keys. No sockets, no threads: the share of the work that is the protocol's.
 *
 *    npx tsx bench/kvstore/cores.ts */
import { ServerCore } from '../../src/ps/server/server-core.ts';
import { ClientCore } from '../../src/ps/client/client-core.ts';
import { addingOptimizer, clientSettings, serverSettings, SimulatedDisk } from '../../src/ps/testing/simulated-cluster.ts';
import { MappedValues, MemoryValues, type RegionRegistry } from '../../src/ps/testing/memory-values.ts';
import { systemClock } from '../../src/base/clock.ts';
import { createKernels } from '../../src/memory/kernels/create-kernels.ts';
import { createParameterKernels } from '../../src/memory/parameter-kernels/create-parameter-kernels.ts';
import { loadNative } from '../../src/memory/native.ts';
import { idOf, roleOf, type Address } from '../../src/messaging/address.ts';
import type { Msg } from '../../src/messaging/msg.ts';
import { Role } from '../../src/ps/protocol/singa.ts';

const topology = { workerGroups: 1, workersPerGroup: 2, serverGroups: 1, serversPerGroup: 2, replicas: 1 } as const;
const cases = [
  { name: '10,000 keys of 256 B, neighbours', keys: 10_000, bytes: 256, stride: 256 },
  { name: '10,000 keys of 256 B, apart', keys: 10_000, bytes: 256, stride: 320 },
  { name: '25 keys of 4 MiB', keys: 25, bytes: 4 * 2 ** 20, stride: 4 * 2 ** 20 },
] as const;
const rounds = 30;

async function measure({ name, keys, bytes, stride }: (typeof cases)[number]): Promise<void> {
  const native = loadNative({ enabled: true });
  const kernels = createKernels({ native });
  const parameterKernels = createParameterKernels({ native });
  const registry: RegionRegistry = new Map();
  const queue: { to: { receive(msg: Msg): void }; msg: Msg }[] = [];
  const servers: ServerCore[] = [];
  const clients: ClientCore[] = [];
  const send = (address: Address, msg: Msg): void => {
    queue.push({ to: roleOf(address) === Role.server ? servers[idOf(address)] : clients[idOf(address)], msg });
  };
  for (const server of [0, 1]) {
    const remotes = new Map<Address, MappedValues>();
    const valuesOf = (source: Address): MappedValues => {
      const remote = remotes.get(source) ?? new MappedValues(registry);
      remotes.set(source, remote);
      return remote;
    };
    const place = { topology, group: 0, server, incarnation: 1 + server, mode: 'primary', term: 1 } as const;
    const parts = { clock: systemClock, kernels, parameterKernels, createOptimizer: addingOptimizer, codecOf: () => undefined };
    const storeAt = (): SimulatedDisk => new SimulatedDisk();
    servers.push(await ServerCore.start({ ...serverSettings, ...place, ...parts, send, valuesOf, storeAt }));
  }
  const memory = [0, 1].map((worker) => new MemoryValues(`client ${worker}`, registry, { mappable: true }));
  for (const [firstWorker, values] of memory.entries()) {
    const place = { topology, workerGroup: 0, firstWorker, localWorkers: 1 };
    clients.push(new ClientCore({ ...clientSettings, ...place, clock: systemClock, kernels, parameterKernels, values, send }));
  }
  for (const client of clients) for (const server of [0, 1]) client.serverUp(server);
  const blocks = memory.map((values) => values.allocate(keys * stride));
  const entries = blocks.map(({ ref: { region } }) =>
    Array.from({ length: keys }, (_, k) => {
      const ref = { region, offset: k * stride, bytes };
      return { key: `key${k}`, push: ref, out: ref };
    }),
  );
  const both = async (begin: (worker: number, done: () => void) => void): Promise<number> => {
    const startMs = performance.now();
    let open = clients.length;
    for (const worker of clients.keys()) begin(worker, () => open--);
    while (open > 0) {
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) next.to.receive(next.msg);
      await Promise.resolve();
    }
    return performance.now() - startMs;
  };
  await both((worker, done) => {
    const parameters = entries[worker].map(({ key, push }) => ({ key, dtype: 'float32', shape: [bytes / 4], value: push }) as const);
    clients[worker].init(worker, parameters, (error) => {
      if (error) throw error;
      done();
    });
  });
  const times: number[] = [];
  for (let round = 0; round < rounds; round++) {
    for (const { view } of blocks) new Float32Array(view.buffer).fill(1);
    const elapsedMs = await both((worker, done) => {
      clients[worker].transfer(worker, { entries: entries[worker], priority: 0 }, (error) => {
        if (error) throw error;
        done();
      });
    });
    times.push(elapsedMs);
    const last = ((keys - 1) * stride) / 4;
    if (blocks.some(({ view }) => new Float32Array(view.buffer)[last] !== 2)) throw new Error('a sum is wrong');
  }
  for (const client of clients) client.close();
  const medianMs = times.toSorted((a, b) => a - b)[rounds >> 1];
  const keysPerSecond = Math.round((1000 * keys) / medianMs);
  // Traffic per byte of parameters: two gradients are read; the server's value and two outputs are written.
  const traffic = (5 * keys * bytes) / medianMs / 1e6;
  console.log(`${name}: ${medianMs.toFixed(2)} ms, ${keysPerSecond.toLocaleString('en')} keys/s, ${traffic.toFixed(1)} GB/s of traffic`);
}

for (const each of cases) await measure(each);
