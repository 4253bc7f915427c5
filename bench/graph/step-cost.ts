/** CPU time of a step of the wide & deep example at its worker and at its parameter server, unfused and with FuseRecv, over gRPC:
 *  two processes, steps of both kinds in turn. The cost of a request follows from the difference. CPU time hardly depends on
 *  other load of the machine. Started by many-workers.ts as ranks 0 (worker) and 1 (server); the worker prints JSON. */
import * as tf from '@tensorflow/tfjs';
import { elementsOf, GraphBuilder, call, type Session, type Value } from 'shoal/graph';
import { tensorflowKernels } from 'shoal/graph/tfjs';
import { generator } from '../../examples/wide-deep/data.ts';
import type { RankingModel } from '../../examples/ranking/train.ts';
import { wideDeep } from '../../examples/wide-deep/model.ts';
import { startGrpcGraphServer } from '../grpc/graph.ts';
import { cpuMs } from './machine.ts';

/** CPU milliseconds of a step. */
export interface StepCost {
  readonly worker: number;
  readonly server: number;
  /** Requests for tensors, both ways. */
  readonly requests: number;
}

const [columns, vocabulary, dense, batch] = [104, 40, 13, 128];
const [warmup, rounds] = [3, Number(process.argv[2] ?? 12)];

export function model(servers: number): { g: GraphBuilder; made: RankingModel } {
  const g = new GraphBuilder();
  const made = wideDeep(g, {
    vocabularies: Array.from({ length: columns }, () => vocabulary),
    denseCount: dense,
    embedding: 4,
    hidden: [16],
    batch,
    servers: Array.from({ length: servers }, (_, task) => `/job:ps/task:${task}`),
    parts: 2,
    workers: ['/job:worker/task:0'],
    random: () => 0.5,
  });
  return { g, made };
}

export { batch };

if (process.env.SHOAL_PS !== undefined) await measure();

async function measure(): Promise<void> {
  await tf.setBackend('cpu');
  const source = generator({ columns, vocabulary, dense, truth: 1, stream: 1 });
  const server = await startGrpcGraphServer({
    kernels: tensorflowKernels(tf),
    functions: {
      nextBatch: (): Value[] => {
        const { labels, dense: numbers, ids } = source.batch(batch);
        return [
          { dtype: 'float32', shape: [batch, 1], data: labels },
          { dtype: 'float32', shape: [batch, dense], data: numbers },
          ...ids.map((data): Value => ({ dtype: 'int32', shape: [batch], data })),
        ];
      },
      cpu: () => [{ dtype: 'float64', shape: [], data: Float64Array.of(cpuMs()) }],
    },
  });
  if (server.job === 'ps') {
    await server.join();
    await server.close();
    process.exit(0);
  }
  const { g, made } = model(1);
  const [serverCpu] = call(g, 'cpu', [], [{ dtype: 'float64', shape: [] }], { device: '/job:ps/task:0' });
  const graph = g.finish();
  const kinds = await Promise.all([false, true].map((doFuseRecv) => server.session(graph, { doFuseRecv })));
  await kinds[0].run([], [made.init]);
  const costs: StepCost[][] = [[], []];
  for (let number = -warmup; number < rounds; number++) {
    for (const [kind, session] of kinds.entries()) {
      const before = { ...(await readings(session)), requests: session.stats.requests };
      await session.run([], [made.towers[0].loss, made.train]);
      const after = await readings(session);
      if (number < 0) continue;
      const requests = session.stats.requests - before.requests;
      costs[kind].push({ worker: after.worker - before.worker, server: after.server - before.server, requests });
    }
  }
  console.log(JSON.stringify(costs.map(medians)));
  await server.close();

  async function readings(session: Session): Promise<{ worker: number; server: number }> {
    const [value] = await session.run([], [serverCpu]);
    return { server: (elementsOf(value) as Float64Array)[0], worker: cpuMs() };
  }
}

function medians(costs: readonly StepCost[]): StepCost {
  const middle = (key: keyof StepCost): number => costs.map((each) => each[key]).toSorted((a, b) => a - b)[costs.length >> 1];
  return { worker: middle('worker'), server: middle('server'), requests: middle('requests') };
}
