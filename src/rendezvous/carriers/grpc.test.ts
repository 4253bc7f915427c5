/** The suite over gRPC, and what only gRPC has. */
import { afterEach, describe, expect, it } from 'vitest';
import { systemClock } from '../../base/clock.ts';
import { describeRendezvous, dense, plain } from './conformance.ts';
import { GrpcCarrier, GrpcWorkerService, loadGrpc } from './grpc.ts';
import type { WorkerIdentity } from './tensor-channel.ts';
import { WorkerCore } from './worker-core.ts';

const packages = await loadGrpc();
const shared = { ...packages, world: 'w', secret: Buffer.from('s') };

async function pair() {
  const cores = [0, 1].map(
    (rank) =>
      new WorkerCore({ rank, device: `/job:worker/task:${rank}/device:CPU:0`, incarnation: BigInt(rank + 1) } satisfies WorkerIdentity),
  );
  const services = cores.map(({ self, steps }) => new GrpcWorkerService({ ...shared, self, steps }));
  const addresses = await Promise.all(services.map((service) => service.listen('127.0.0.1:0')));
  for (const [k, core] of cores.entries()) {
    const { carrier, peer } = await GrpcCarrier.connect(addresses[1 - k], { ...shared, clock: systemClock, timeoutMs: 120_000 });
    core.attach(peer, carrier);
  }
  const [a, b] = cores;
  return {
    a,
    b,
    addresses,
    crash: () => services[0].close(),
    async close() {
      await Promise.all(cores.map((core) => core.close()));
      for (const service of services) service.close();
    },
  };
}

describeRendezvous('grpc', pair, {
  skips: [
    {
      test: 'gives up a receive by its signal, after which the key may be asked for again',
      reason: 'calls and their cancellations have no order in gRPC: the repeated call may come first',
    },
    {
      test: 'fails what was sent to a worker that dies, now and in later steps, and nothing else',
      reason: 'calls come and go in gRPC: who would ask has no connection that ends',
    },
  ],
});

describe('gRPC', () => {
  const closers: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const close of closers.splice(0)) await close();
  });

  it('turns away callers who do not know the secret', async () => {
    const { addresses, close } = await pair();
    closers.push(close);
    const stranger = GrpcCarrier.connect(addresses[0], { ...shared, secret: Buffer.from('guess'), clock: systemClock, timeoutMs: 120_000 });
    await expect(stranger).rejects.toMatchObject({ code: 'auth' });
  });

  it('gives back what a request has got that was given up before it had all', async () => {
    const { a, b, close } = await pair();
    closers.push(close);
    const [sender, receiver] = [a, b].map((core) => core.beginStep(1));
    const [x, y] = ['x', 'y'].map((name) => a.key(name, a.self, b.self));
    const over = new AbortController();
    let released = 0;
    sender.send(x, { ...dense([1, 2]), release: () => void released++ });
    const both = receiver.recvFused([x, y], { signal: over.signal });
    // The request is there, and has x.
    await expect.poll(() => a.steps.find(1)?.awaited).toEqual([y]);
    expect(released).toBe(0);
    over.abort();
    await expect(both).rejects.toMatchObject({ code: 'aborted' });
    await expect.poll(() => released, { timeout: 60_000 }).toBe(1);
    // As is what was sent and not asked for.
    sender.send(y, { ...dense([3]), release: () => void released++ });
    a.endStep(1);
    expect(released).toBe(2);
  });

  it('refuses answers that are not what was asked for', () => {
    const { messages } = packages;
    const good = messages.encodeOutcomes([{ value: dense([1, 2]) }, { value: undefined }]);
    expect(messages.decodeOutcomes(good, 2).map((outcome) => plain('value' in outcome ? outcome.value : undefined))).toEqual([
      plain(dense([1, 2])),
      undefined,
    ]);
    for (const bad of [good.subarray(0, 3), good.subarray(0, 10), good.subarray(0, -1)])
      expect(() => messages.decodeOutcomes(bad, 2)).toThrow();
    expect(() => messages.decodeOutcomes(good, 3)).toThrow(/2 slots; 3 were asked for/);
  });
});
