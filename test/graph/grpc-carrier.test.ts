/** The benchmarks' gRPC carrier, a foreign implementation of the carrier interface: rendezvous' suite runs on it, and graphs. */
import { describe, expect, it } from 'vitest';
import { GrpcTaskTensors } from '../../bench/grpc/graph.ts';
import { GrpcWorker } from '../../bench/grpc/worker.ts';
import { loopsOverTasks } from '../../src/graph/testing/loops-over-tasks.ts';
import { recordedTcp } from '../../src/graph/testing/recorded-fabric.ts';
import type { TcpFabric } from '../../src/fabric/providers/tcp.ts';
import { describeRendezvous, dense, type RendezvousWorld } from '../../src/rendezvous/carriers/conformance.ts';

async function world(): Promise<RendezvousWorld> {
  const workers = await Promise.all([0, 1].map((rank) => GrpcWorker.start(rank, '127.0.0.1')));
  const [a, b] = workers;
  await Promise.all([a.connect(b.address), b.connect(a.address)]);
  return {
    a: a.core,
    b: b.core,
    crash: () => a.crash(),
    close: async () => void (await Promise.all(workers.map((worker) => worker.close()))),
  };
}

describeRendezvous('grpc', world, {
  skips: [
    {
      test: 'gives up a receive by its signal, after which the key may be asked for again',
      reason: 'calls and their cancellations have no order in gRPC: the repeated call may come first',
    },
    {
      test: 'fails what was sent to a worker that dies, now and in later steps, and nothing else',
      reason: 'calls come and go in gRPC: who would ask has no connection that ends',
    },
    ...[
      'asks again over the next connection when one breaks',
      'gives again what had not left when the connection broke, and says of the rest that it is lost',
      'fails what waits for a process that was killed, and goes on with the next one',
    ].map((test) => ({ test, reason: 'calls are not repeated in gRPC' })),
  ],
});

describe('gRPC', () => {
  it.each([false, true])('carries loops on several tasks, fused %s', async (doFuseRecv) => {
    const createFabric = (rank: number): TcpFabric => recordedTcp([], rank, new Uint8Array(16));
    await loopsOverTasks({ createFabric, Tensors: GrpcTaskTensors }, { doFuseRecv, seeds: 8 });
  });

  it('gives back the tensors of a request that was given up before it had all', async () => {
    const { a, b, close } = await world();
    const [sender, receiver] = [a, b].map((core) => core.beginStep(1));
    const [x, y] = ['x', 'y'].map((name) => a.key(name, a.self, b.self));
    const over = new AbortController();
    let released = 0;
    sender.send(x, { ...dense([1, 2]), release: () => void released++ });
    const both = receiver.recvFused([x, y], { signal: over.signal });
    // The request is there, and has x.
    await expect.poll(() => sender.awaited).toEqual([y]);
    expect(released).toBe(0);
    over.abort();
    await expect(both).rejects.toMatchObject({ code: 'aborted' });
    await expect.poll(() => released, { timeout: 60_000 }).toBe(1);
    await close();
  });
});
