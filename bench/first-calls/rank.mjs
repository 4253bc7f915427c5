// Every rank of the benchmark: all-reduces 8 bytes again and again, from the first call of the process on; rank 0 prints the time of
// each thousand calls, in microseconds a call.
import { initProcessGroup } from 'shoal';

const group = await initProcessGroup();
const data = process.env.FIRST_CALLS_ARRAYS === 'plain' ? new Float32Array(2) : group.tensor('float32', [2]);
const us = [];
for (let thousand = 0; thousand < 60; thousand++) {
  const start = process.hrtime.bigint();
  for (let call = 0; call < 1000; call++) group.allReduce(data).waitSync();
  us.push(Number(process.hrtime.bigint() - start) / 1e6);
}
if (group.rank === 0) console.log(JSON.stringify(us));
await group.destroy();
