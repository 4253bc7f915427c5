// A worker of a parameter server: pushes and pulls values of several sizes, and prints the time of each.
import { create } from 'shoal/kvstore';

const cases = [
  { bytes: 1024, keys: 100, times: 60 },
  { bytes: 65_536, keys: 20, times: 60 },
  { bytes: 4 << 20, keys: 4, times: 30 },
];

const kv = await create('dist_sync');
const rows = [];
for (const { bytes, keys: count, times } of cases) {
  const keys = Array.from({ length: count }, (_, k) => `${bytes}/${k}`);
  const tensors = keys.map(() => kv.tensor('float32', [bytes / 4]));
  await kv.init(keys, tensors);
  await kv.barrier();
  const took = [];
  for (let k = 0; k < times + 10; k++) {
    const startMs = performance.now();
    await kv.pushPull(keys, tensors);
    if (k >= 10) took.push((performance.now() - startMs) * 1000);
  }
  rows.push({ case: `${count} values of ${bytes} bytes pushed and pulled`, us: took });
  await kv.barrier();
}
if (kv.rank === 0) console.log(JSON.stringify(rows));
await kv.close();
