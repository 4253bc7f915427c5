// A worker of a parameter server: pushes and pulls values of several sizes, and prints the time of each: among the first rounds of the
// process, while V8 compiles, and later; and the time from the start of the process until the first of these cases is over.
import { create } from 'shoal/kvstore';

const cases = [
  { bytes: 1024, keys: 100, times: 60 },
  { bytes: 65_536, keys: 20, times: 60 },
  { bytes: 4 << 20, keys: 4, times: 30 },
  { bytes: 1024, keys: 100, times: 300, after: 2000 },
  { bytes: 65_536, keys: 20, times: 300, after: 2000 },
  { bytes: 4 << 20, keys: 4, times: 60, after: 60 },
];

const kv = await create('dist_sync');
const rows = [];
for (const { bytes, keys: count, times, after = 10 } of cases) {
  const later = after > 10 ? `, after ${after} rounds` : '';
  const keys = Array.from({ length: count }, (_, k) => `${bytes}/${k}${later}`);
  const tensors = keys.map(() => kv.tensor('float32', [bytes / 4]));
  await kv.init(keys, tensors);
  await kv.barrier();
  const took = [];
  for (let k = 0; k < after + times; k++) {
    const startMs = performance.now();
    await kv.pushPull(keys, tensors);
    if (k >= after) took.push((performance.now() - startMs) * 1000);
  }
  if (rows.length === 0) rows.push({ case: `${after + times} rounds, from the start of the process`, us: [performance.now() * 1000] });
  rows.push({ case: `${count} values of ${bytes} bytes pushed and pulled${later}`, us: took });
  await kv.barrier();
}
if (kv.rank === 0) console.log(JSON.stringify(rows));
await kv.close();
