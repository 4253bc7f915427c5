// A worker of a parameter server: pushes and pulls values of several sizes, while V8 still compiles, and in turns with other builds.
import { create } from 'shoal/kvstore';
import { median, takeTurns, timed } from './turns.mjs';

const cases = [
  { bytes: 1024, keys: 100, atFirst: 60, warmUps: 2000, times: 12 },
  { bytes: 65_536, keys: 20, atFirst: 60, warmUps: 1000, times: 10 },
  { bytes: 4 << 20, keys: 4, atFirst: 30, warmUps: 60, times: 4 },
];

const kv = await create('dist_sync');
const atStart = {};
const later = [];
for (const { bytes, keys: count, atFirst, ...turns } of cases) {
  const keys = Array.from({ length: count }, (_, k) => `${bytes}/${k}`);
  const tensors = keys.map(() => kv.tensor('float32', [bytes / 4]));
  await kv.init(keys, tensors);
  await kv.barrier();
  const step = () => kv.pushPull(keys, tensors);
  const name = `${count} values of ${bytes} bytes pushed and pulled`;
  const first = await timed(10 + atFirst, step);
  if (later.length === 0) atStart[`${10 + atFirst} rounds, from the start of the process`] = performance.now() * 1000;
  atStart[name] = median(first.slice(10));
  later.push({ name: `${name}, in turns`, ...turns, run: (times) => timed(times, step) });
}
await takeTurns(later, atStart);
await kv.close();
