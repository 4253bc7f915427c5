// A worker and a parameter server of a graph: steps that read variables of the server and update them.
import { add, assign, assignSub, constant, GraphBuilder, startGraphServer, variable } from 'shoal/graph';
import { takeTurns, timed } from './turns.mjs';

const cases = [
  { variables: 2, elements: 16, fuse: false, times: 40, warmUps: 1000 },
  { variables: 40, elements: 16, fuse: true, times: 12, warmUps: 500 },
  { variables: 2, elements: 1 << 20, fuse: false, times: 4, warmUps: 60 },
];

function sums(a, b) {
  const result = new Float32Array(a.length);
  for (let k = 0; k < result.length; k++) result[k] = a[k] + b[k];
  return result;
}

/** The only operation that computes here, so that the time is that of the transfers. */
const AddV2 = ({ inputs: [a, b] }) => [{ dtype: a.dtype, shape: a.shape, data: sums(a.data, b.data) }];

const server = await startGraphServer({ kernels: { AddV2 } });
if (server.job === 'ps') await server.join();
else {
  const turns = [];
  for (const { variables, elements, fuse, times, warmUps } of cases) {
    const g = new GraphBuilder();
    const ps = '/job:ps/task:0';
    const ones = () => constant(g, { dtype: 'float32', shape: [elements], data: new Float32Array(elements).fill(1) });
    const all = Array.from({ length: variables }, (_, k) =>
      variable(g, 'float32', [elements], { name: `v${elements}_${variables}_${k}`, device: ps }),
    );
    const init = all.map((each) => g.withDevice(ps, () => assign(g, each, ones())).node);
    const updates = all.map(
      (each) =>
        assignSub(
          g,
          each,
          g.withDevice('/job:worker/task:0', () => add(g, each, ones())),
        ).node,
    );
    const session = await server.session(g.finish(), { doFuseRecv: fuse });
    await session.run([], init);
    const name = `a step that reads and updates ${variables} variables of ${elements} elements${fuse ? ', fused' : ''}`;
    turns.push({ name, times, warmUps, run: (count) => timed(count, () => session.run([], updates)) });
  }
  await takeTurns(turns);
}
await server[Symbol.asyncDispose]();
