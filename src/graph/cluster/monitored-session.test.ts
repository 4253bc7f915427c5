/** Sessions that go on after a task was restarted: of one process, and of two that wait for each other. Real kills: test/graph. */
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../base/testing/temporary-folder.ts';
import { constant, placeholder } from '../ops/array.ts';
import { noOp } from '../ops/control-flow.ts';
import { assign, assignAdd, variable } from '../ops/state.ts';
import { Saver } from '../saver.ts';
import { GraphBuilder } from '../structure/builder.ts';
import { elementsOf } from '../structure/elements.ts';
import type { Graph } from '../structure/graph.ts';
import type { Node, Output } from '../structure/graph-node.ts';
import { dense } from '../testing/kernels.ts';
import { startLocalCluster } from '../testing/local-cluster.ts';

interface Counting {
  readonly graph: Graph;
  readonly saver: Saver;
  readonly init: Node;
  readonly amount: Output;
  readonly counters: readonly Output[];
  readonly step: Node;
}

/** A counter on each of two servers; a step adds to both. */
function counting(): Counting {
  const g = new GraphBuilder();
  const amount = placeholder(g, 'float32', [1]);
  const counters = [0, 1].map((task) => variable(g, 'float32', [1], { name: `counter_${task}`, device: `/job:ps/task:${task}` }));
  const zero = constant(g, { ...dense([1], [0]), dtype: 'float32' });
  const init = noOp(g, { controlInputs: counters.map((counter) => assign(g, counter, zero)) });
  const step = noOp(g, { controlInputs: counters.map((counter) => assignAdd(g, counter, amount)) });
  const saver = new Saver(g);
  return { graph: g.finish(), saver, init, amount, counters, step };
}

describe('a monitored session', () => {
  it('restores what a task has lost, and runs the failed step again', async () => {
    const path = join(temporaryFolder('monitored'), 'saved');
    await using cluster = await startLocalCluster({ worker: 2, ps: 2 }, { reconnectMs: 100 });
    const [chief, other] = [counting(), counting()];
    const options = ({ saver, init }: Counting) => ({ saver, init, path, saveSteps: 3 });
    const sessions = await Promise.all([
      cluster.tasks.worker0.monitoredSession(chief.graph, options(chief)),
      cluster.tasks.worker1.monitoredSession(other.graph, options(other)),
    ]);
    const step = async (k: number, { amount, counters, step }: Counting): Promise<number[]> => {
      await sessions[k].run([[amount, dense([1], [k === 0 ? 1 : 100])]], [step]);
      return (await sessions[k].run([], counters)).map((each) => Number(elementsOf(each)[0]));
    };
    expect(await step(0, chief)).toEqual([1, 1]);
    expect(await step(1, other)).toEqual([101, 101]);
    // The chief has saved before its runs 0 and 3: after the first step, of which reading is a run as well.
    expect(await step(0, chief)).toEqual([102, 102]);
    await cluster.restart('ps1');
    // Both counters go back to the last save.
    const [again, others] = await Promise.all([step(0, chief), step(1, other)]);
    const values = [...again, ...others];
    expect(again[0]).toBe(again[1]);
    for (const value of values) expect([102, 103, 202, 203]).toContain(value);
    await cluster.restart('ps0');
    await cluster.restart('ps1');
    expect((await step(0, chief)).every((each) => each >= 102)).toBe(true);
    for (const each of sessions) each.close();
  });

  it('gives up when the task does not come back, and gives other failures at once', async () => {
    const path = join(temporaryFolder('monitored'), 'saved');
    await using cluster = await startLocalCluster({ worker: 1, ps: 2 }, { reconnectMs: 100 });
    const { graph, saver, init, amount, step } = counting();
    const session = await cluster.tasks.worker0.monitoredSession(graph, { saver, init, path, recoveryMs: 300 });
    await expect(session.run([], [step])).rejects.toMatchObject({ code: 'usage' });
    await cluster.tasks.ps1.close();
    await expect(session.run([[amount, dense([1], [1])]], [step])).rejects.toMatchObject({ code: 'peer-lost' });
    await expect(cluster.tasks.worker0.monitoredSession(graph, { saver, init, path, nonsense: 1 } as never)).rejects.toThrow('nonsense');
    session.close();
  });
});
