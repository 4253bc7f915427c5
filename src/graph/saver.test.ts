/** Variables in files: there and back on several tasks, also on tasks that were started anew; damaged files, other graphs. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { constant } from './ops/array.ts';
import { assign, scatterAdd, variable } from './ops/state.ts';
import { Saver } from './saver.ts';
import { GraphBuilder } from './structure/builder.ts';
import { elementsOf } from './structure/elements.ts';
import type { Graph } from './structure/graph.ts';
import type { Node, Output } from './structure/graph-node.ts';
import { dense } from './testing/kernels.ts';
import { startLocalCluster } from './testing/local-cluster.ts';

const folder = temporaryFolder('saver', afterAll);

function model(rows = 3): { graph: Graph; saver: Saver; init: Node[]; step: Node; variables: Output[] } {
  const g = new GraphBuilder();
  const made = [0, 1].map((k) => variable(g, 'float32', [rows, 2], { name: `table_${k}`, device: `/job:ps/task:${k}` }));
  const init = made.map(
    (each) => assign(g, each, constant(g, { ...dense([rows, 2], Array<number>(rows * 2).fill(1)), dtype: 'float32' })).node,
  );
  const ids = constant(g, { ...dense([1], [2], 'int32'), dtype: 'int32' });
  const step = scatterAdd(g, made[0], ids, constant(g, { ...dense([1, 2], [5, 6]), dtype: 'float32' })).node;
  const saver = new Saver(g);
  return { graph: g.finish(), saver, init, step, variables: made };
}

describe('saved variables', () => {
  it('are what training goes on from, on tasks that were started anew', async () => {
    const path = join(folder, 'variables');
    {
      await using cluster = await startLocalCluster({ worker: 1, ps: 2 });
      const { graph, saver, init, step } = model();
      const session = await cluster.tasks.worker0.session(graph);
      await expect(saver.save(session, path)).rejects.toThrow(/'table_\d' on \S+ has no value yet/);
      await session.run([], init);
      await session.run([], [step]);
      await saver.save(session, path);
      await session.run([], [step]);
      await saver.restore(session, path);
      await session.run([], [step]);
      await saver.save(session, path);
    }
    await using cluster = await startLocalCluster({ worker: 1, ps: 2 });
    const { graph, saver, variables } = model();
    const session = await cluster.tasks.worker0.session(graph);
    await saver.restore(session, path);
    const values = await session.run([], variables);
    expect(values.map((value) => [...elementsOf(value)])).toEqual([
      [1, 1, 1, 1, 11, 13],
      [1, 1, 1, 1, 1, 1],
    ]);
  });

  it('are assigned to a server that was started anew while others went on', async () => {
    const path = join(folder, 'kept');
    await using cluster = await startLocalCluster({ worker: 1, ps: 2 });
    const { worker0 } = cluster.tasks;
    const first = model();
    const session = await worker0.session(first.graph);
    await session.run([], first.init);
    await session.run([], [first.step]);
    await first.saver.save(session, path);
    await cluster.restart('ps0');
    await expect(session.run([], [first.step])).rejects.toMatchObject({
      code: 'peer-lost',
      message: expect.stringContaining('/job:ps/task:0') as string,
    });
    session.close();
    const again = model();
    const second = await worker0.session(again.graph);
    await expect(second.run([], again.variables)).rejects.toThrow(/'table_0' on \S+ has no value yet/);
    await again.saver.restore(second, path);
    await second.run([], [again.step]);
    expect([...elementsOf((await second.run([], again.variables))[0])]).toEqual([1, 1, 1, 1, 11, 13]);
  });

  it('of a damaged file, or of another graph, are refused', async () => {
    const path = join(folder, 'other');
    await using cluster = await startLocalCluster({ worker: 1, ps: 2 });
    const { graph, saver, init } = model();
    const session = await cluster.tasks.worker0.session(graph);
    await session.run([], init);
    await saver.save(session, path);
    const other = model(4);
    const second = await cluster.tasks.worker0.session(other.graph);
    await expect(other.saver.restore(second, path)).rejects.toThrow(/feed 'save\/Placeholder:0' must be float32\[4, 2\]/);
    const bytes = readFileSync(path);
    bytes[bytes.length - 3] ^= 1;
    writeFileSync(path, bytes);
    await expect(saver.restore(session, path)).rejects.toMatchObject({ code: 'protocol', message: `${path} is damaged` });
    await expect(saver.restore(session, join(folder, 'none'))).rejects.toMatchObject({ code: 'system' });
    await expect(saver.save(session, join(folder, 'no', 'where'))).rejects.toMatchObject({ code: 'system' });
  });
});
