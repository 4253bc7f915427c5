/** The cost of one late tensor in a step: a parameter server gives 16 tensors, one of them 50 ms late; the worker needs 40 ms for the other
 *  15, then takes the late one. Steps of all ways to receive in turn, over tcp; nothing computes, so that a busy machine disturbs little.
 *
 *      server   │ 15 tensors                      late│
 *      worker     ▐ 40 ms, if they are there ▌        ▐ end
 *
 *    npx tsx bench/graph/late-tensor.ts [--rounds 40] [--out out.json] */
import { writeFileSync } from 'node:fs';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { median } from '../../src/base/numbers.ts';
import { TcpFabric } from '../../src/fabric/providers/tcp.ts';
import type { Session } from '../../src/graph/execute/session.ts';
import type { FunctionTable } from '../../src/graph/execute/structural-kernels.ts';
import { call } from '../../src/graph/ops/call.ts';
import { GraphBuilder } from '../../src/graph/structure/builder.ts';
import type { Graph } from '../../src/graph/structure/graph.ts';
import type { Node } from '../../src/graph/structure/graph-node.ts';
import type { Value } from '../../src/graph/structure/value.ts';
import { startLocalCluster } from '../../src/graph/testing/local-cluster.ts';
import { programArguments } from '../arguments.ts';
import { machine, round } from './machine.ts';

const { values } = programArguments(import.meta.url, { options: { rounds: { type: 'string', default: '40' }, out: { type: 'string' } } });
const [tensors, lateMs, workMs] = [16, 50, 40];
const value: Value = { dtype: 'float32', shape: [256], data: new Float32Array(256) };
const after = async (ms: number): Promise<Value[]> => {
  await sleep(systemClock, ms);
  return [value];
};

/** Start of the step, and the time in it at which the worker had the 15. */
let startMs = 0;
let heldMs = 0;
const functions: FunctionTable = {
  give: async () => [value],
  giveLate: () => after(lateMs),
  work: () => {
    heldMs = systemClock.now() - startMs;
    return after(workMs);
  },
  finish: async () => [value],
};

function model(): { graph: Graph; end: Node } {
  const g = new GraphBuilder();
  const one = [{ dtype: 'float32', shape: [256] }] as const;
  const [first, ...others] = Array.from({ length: tensors }, (_, k) => {
    const [given] = call(g, k === 0 ? 'giveLate' : 'give', [], one, { name: `tensor_${k}`, device: '/job:ps/task:0' });
    return given;
  });
  const [worked] = call(g, 'work', others, one);
  const [end] = call(g, 'finish', [worked, first], one);
  return { graph: g.finish(), end: end.node };
}

async function start(recvSome: boolean) {
  const secret = systemRandom.bytes(16);
  return startLocalCluster(
    { worker: 1, ps: 1 },
    {
      recvSome,
      functions,
      createFabric: (rank) =>
        new TcpFabric({
          identity: { world: 'w', rank },
          secret,
          clock: systemClock,
          random: systemRandom,
          listenHosts: ['127.0.0.1'],
        }),
    },
  );
}

await using plain = await start(false);
await using gathering = await start(true);
const { graph, end } = model();
const ways: readonly { name: string; session: Session; stepMs: number[]; heldMs: number[] }[] = await Promise.all(
  [
    { name: 'unfused', cluster: plain, doFuseRecv: false },
    { name: 'static', cluster: plain, doFuseRecv: true },
    { name: 'run time', cluster: gathering, doFuseRecv: false },
    { name: 'static and run time', cluster: gathering, doFuseRecv: true },
  ].map(async ({ name, cluster, doFuseRecv }) => ({
    name,
    session: await cluster.tasks.worker0.session(graph, { doFuseRecv }),
    stepMs: [],
    heldMs: [],
  })),
);
const warmup = 5;
for (let number = -warmup; number < Number(values.rounds); number++) {
  for (const way of ways) {
    startMs = systemClock.now();
    await way.session.run([], [end]);
    if (number < 0) continue;
    way.stepMs.push(systemClock.now() - startMs);
    way.heldMs.push(heldMs);
  }
}

const [unfused] = ways;
const rows = ways.map(({ name, session, stepMs, heldMs: held }) => ({
  name,
  stepMs: round(median(stepMs)),
  bestStepMs: round(Math.min(...stepMs)),
  /** Ratio to a step by the first way, in the same round. */
  stepRatio: round(median(stepMs.map((ms, k) => ms / unfused.stepMs[k]))),
  othersHeldMs: round(median(held)),
  requestsPerStep: session.stats.requests / session.stats.steps,
}));
console.log('                       step ms     best   of unfused   15 tensors there after ms   requests');
for (const { name, stepMs, bestStepMs, stepRatio, othersHeldMs, requestsPerStep } of rows) {
  const cells = [stepMs.toFixed(1).padStart(10), bestStepMs.toFixed(1).padStart(8), `× ${stepRatio.toFixed(2)}`.padStart(12)];
  console.log(`${name.padEnd(19)} ${cells.join(' ')} ${othersHeldMs.toFixed(1).padStart(27)} ${requestsPerStep.toFixed(1).padStart(10)}`);
}
for (const { session } of ways) session.close();
if (values.out !== undefined) {
  const options = { tensors, lateMs, workMs, rounds: Number(values.rounds) };
  writeFileSync(values.out, `${JSON.stringify({ machine: machine(), options, rows }, undefined, 2)}\n`);
}
