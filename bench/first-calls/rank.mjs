// Every rank of the benchmark: all-reduces 8 bytes again and again, from the first call of the process on; rank 0 prints the time of
// each thousand calls, in microseconds a call, and the median of the first thousand.
import { initProcessGroup } from 'shoal';

const group = await initProcessGroup();
const data = process.env.FIRST_CALLS_ARRAYS === 'plain' ? new Float32Array(2) : group.tensor('float32', [2]);
const us = [];
const first = [];
for (let thousand = 0; thousand < 60; thousand++) {
  const start = process.hrtime.bigint();
  for (let call = 0; call < 1000; call++) {
    const callStart = thousand === 0 ? performance.now() : 0;
    group.allReduce(data).waitSync();
    if (thousand === 0) first.push(1000 * (performance.now() - callStart));
  }
  us.push(Number(process.hrtime.bigint() - start) / 1e6);
}
if (group.rank === 0) console.log(JSON.stringify([...us, first.sort((a, b) => a - b)[500]]));
await group.destroy();
