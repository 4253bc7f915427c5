/** A rank of the benchmark of metrics: pairs of worlds, one without and one with metrics, in the same two processes, in blocks that take
 *  turns; and as many pairs that are both without, as the control. Rank 0 writes the times of the blocks of each pair, and of pages. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { initProcessGroup } from 'shoal';

const [pairs, rounds, portPage] = process.argv.slice(2, 5).map(Number);
const [folder] = process.argv.slice(5);
const [rank, worldSize] = [Number(process.env.RANK), Number(process.env.WORLD_SIZE)];

function world(name, metrics) {
  const environment = { SHOAL_SECRET: 'of the benchmark', SHOAL_METRICS: metrics, SHOAL_LOG_LEVEL: 'error' };
  return initProcessGroup({ initMethod: `file://${join(folder, name)}`, rank, worldSize, environment });
}

/** Microseconds of a call in each block, of each world. */
async function blocksOf(worlds, { bytes, calls, rounds }) {
  const tensors = worlds.map((group) => group.tensor('float32', [bytes / 4]));
  const blocks = worlds.map(() => []);
  for (let round = -3; round < rounds; round++) {
    // The one that comes second may profit from the first: they take turns.
    for (const at of round % 2 === 0 ? [0, 1] : [1, 0]) {
      await worlds[at].barrier();
      const began = performance.now();
      for (let call = 0; call < calls; call++) await worlds[at].allReduce(tensors[at]);
      if (round >= 0) blocks[at].push(((performance.now() - began) * 1000) / calls);
    }
  }
  return blocks;
}

async function pageMs() {
  const began = performance.now();
  await (await fetch(`http://127.0.0.1:${portPage}/metrics`)).text();
  return performance.now() - began;
}

const results = [];
const pagesMs = [];
// The first pair warms the process up.
for (let pair = -1; pair < 2 * pairs; pair++) {
  const control = pair % 2 !== 0;
  // Where its memory lies makes a world faster or slower, in the order of opening too: pairs take turns in it.
  const onFirst = (pair >> 1) % 2 === 0;
  const ofWorld = (on) => (on && !control ? String(portPage) : '');
  const opened = [await world(`${pair}-first`, ofWorld(onFirst)), await world(`${pair}-second`, ofWorld(!onFirst))];
  const [off, on] = onFirst ? opened.toReversed() : opened;
  for (const [bytes, calls] of [
    [8, 400],
    [2 ** 20, 10],
  ]) {
    const [offUs, onUs] = await blocksOf([off, on], { bytes, calls, rounds });
    if (pair >= 0) results.push({ bytes, calls, control, offUs, onUs });
  }
  if (rank === 0 && !control) pagesMs.push(await pageMs());
  for (const group of opened) {
    await group.barrier();
    await group.destroy();
  }
}
if (rank === 0) writeFileSync(join(folder, 'times.json'), JSON.stringify({ results, pagesMs }));
