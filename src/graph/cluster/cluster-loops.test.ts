/** Loops whose bodies are on several tasks: the values of one process, however tensors are received, and connections that break. */
import { describe, expect, it } from 'vitest';
import { abortConnection } from '../../fabric/abortable.ts';
import type { Connection } from '../../fabric/fabric.ts';
import type { TcpFabric } from '../../fabric/providers/tcp.ts';
import { constant, placeholder } from '../ops/array.ts';
import { call } from '../ops/call.ts';
import { whileLoop } from '../ops/control-flow.ts';
import { add, less } from '../ops/math.ts';
import { GraphBuilder } from '../structure/builder.ts';
import type { Output } from '../structure/graph-node.ts';
import type { Value } from '../structure/value.ts';
import { numbersOf, scalarOf } from '../testing/kernels.ts';
import { startLocalCluster } from '../testing/local-cluster.ts';
import { loopsOverTasks } from '../testing/loops-over-tasks.ts';
import { recordedTcp } from '../testing/recorded-fabric.ts';

type Floats = Output<'float32'>;

/** Counts to n: each value goes to a function of a server and comes back. */
function counting(name: string): { g: GraphBuilder; n: Floats; after: Output } {
  const g = new GraphBuilder();
  const n = placeholder(g, 'float32', []);
  const scalar = (value: number): Floats => constant(g, { ...scalarOf(value), dtype: 'float32' });
  const [after] = whileLoop(
    g,
    [scalar(0)],
    {
      cond: ([i], [end]) => less(g, i as Floats, end as Floats),
      body: ([i]) => {
        const [far] = call(g, name, [i], [{ dtype: 'float32', shape: [] }], { name, device: '/job:ps/task:0' });
        return [add(g, far as Floats, scalar(1))];
      },
    },
    { invariants: [n] },
  );
  return { g, n, after };
}

describe('loops on several tasks', () => {
  it.each([
    ['a request for every tensor', {}, false],
    ['fused requests', {}, true],
    ['fusion at run time', { recvSome: true }, false],
  ] as const)('compute random loops as one process does, by %s', (_, options, doFuseRecv) =>
    loopsOverTasks(options, { doFuseRecv, seeds: 12 }),
  );

  it('go on over the next connection when one breaks', async () => {
    const connections: Connection[] = [];
    let calls = 0;
    const functions = {
      breaking: (values: readonly Value[]) => {
        if (++calls % 20 === 10) connections.splice(0).forEach((each) => abortConnection(each));
        return values;
      },
    };
    const createFabric = (rank: number): TcpFabric => recordedTcp(connections, rank, new Uint8Array(16));
    await using cluster = await startLocalCluster({ worker: 1, ps: 1 }, { functions, createFabric, reconnectMs: 60_000 });
    const { g, n, after } = counting('breaking');
    const session = await cluster.tasks.worker0.session(g.finish());
    expect(numbersOf((await session.run([[n, scalarOf(50)]], [after]))[0])).toEqual([50]);
    expect(calls).toBe(50);
  });

  it('end on all tasks when one fails, and when one closes', async () => {
    let calls = 0;
    const functions = {
      failing: async (values: readonly Value[]) => {
        if (++calls === 5) throw new Error('no fifth time');
        if (calls === 8) void cluster.tasks.ps0.close();
        return values;
      },
    };
    await using cluster = await startLocalCluster({ worker: 1, ps: 1 }, { functions });
    const { g, n, after } = counting('failing');
    const session = await cluster.tasks.worker0.session(g.finish());
    const run = (): Promise<readonly unknown[]> => session.run([[n, scalarOf(1e6)]], [after]);
    await expect(run()).rejects.toMatchObject({
      message: expect.stringMatching(/Call 'while\/failing' on \/job:ps\S+ no fifth time/) as string,
    });
    await expect(run()).rejects.toMatchObject({ message: expect.stringMatching(/\/job:ps\/task:0/) as string });
  });
});
