/** A rank of the benchmark of metrics: one world without, one with metrics, in the same two processes, in blocks that take turns. Rank 0
 *  writes the times of its blocks, and of pages. */
import { writeFileSync } from 'node:fs';
import { initProcessGroup } from 'shoal';

const [rounds, portOff, portOn, portPage] = process.argv.slice(2).map(Number);
const [rank, worldSize] = [Number(process.env.RANK), Number(process.env.WORLD_SIZE)];

function world(port, metrics) {
  const environment = { SHOAL_SECRET: 'of the benchmark', SHOAL_METRICS: metrics, SHOAL_LOG_LEVEL: 'error' };
  return initProcessGroup({ initMethod: `tcp://127.0.0.1:${port}`, rank, worldSize, environment });
}

const worlds = [await world(portOff, ''), await world(portOn, String(portPage))];
const times = {};
for (const [bytes, calls] of [
  [8, 400],
  [2 ** 20, 10],
]) {
  const tensors = worlds.map((group) => group.tensor('float32', [bytes / 4]));
  const blocks = [[], []];
  for (let round = -3; round < rounds; round++) {
    // The one that comes second may profit from the first: they take turns.
    for (const at of round % 2 === 0 ? [0, 1] : [1, 0]) {
      await worlds[at].barrier();
      const began = performance.now();
      for (let call = 0; call < calls; call++) await worlds[at].allReduce(tensors[at]);
      if (round >= 0) blocks[at].push(((performance.now() - began) * 1000) / calls);
    }
  }
  times[bytes] = { calls, offUs: blocks[0], onUs: blocks[1] };
}
const pagesMs = [];
if (rank === 0) {
  for (let page = 0; page < 20; page++) {
    const began = performance.now();
    await (await fetch(`http://127.0.0.1:${portPage}/metrics`)).text();
    pagesMs.push(performance.now() - began);
  }
  writeFileSync(process.argv[6], JSON.stringify({ times, pagesMs }));
}
for (const group of worlds) {
  await group.barrier();
  await group.destroy();
}
