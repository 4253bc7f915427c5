// Times the first all-reduce of 85 MiB in plain arrays in each of ten groups of all ranks, made one after the other, and one more in the last:
//
//   node dist/tools/cli/main.js run -q -n 3 bench/elastic/first-large-call.mjs
//
// Rank 0 prints milliseconds. To compare commits, run it in a built clone of each, in turns.
import { initProcessGroup, ReduceOp } from 'shoal';

const world = await initProcessGroup();
const gradient = new Float32Array(22_369_621).fill(1);
const ranks = [...Array(world.size).keys()];
const firstMs = [];
for (let round = 0; round < 10; round++) {
  const group = await world.newGroup(ranks);
  firstMs.push(await timed(group));
  if (round === 9) firstMs.push(await timed(group));
  await group.destroy();
}
if (world.rank === 0) console.log(firstMs.join(' '));
await world.destroy();

async function timed(group) {
  await group.barrier();
  const beganMs = performance.now();
  await group.allReduce(gradient, { op: ReduceOp.Avg });
  return Math.round(performance.now() - beganMs);
}
