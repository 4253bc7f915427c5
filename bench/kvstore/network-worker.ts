/** The worker of network.ts: pushes, pulls and both at once, in turn, with tensors of the store. Prints its times.
 *
 *    network-worker.ts <keys> <bytes of each> <iterations> */
import { systemStopwatch } from '../../src/base/clock.ts';
import { create } from '../../src/kvstore/stores/create.ts';

const [count, bytes, iterations] = process.argv.slice(2).map(Number);
const warmUps = 2;

const kv = await create('dist_sync');
const keys = Array.from({ length: count }, (_, k) => `key${k}`);
const [gradients, values] = [0, 1].map(() => keys.map(() => kv.tensor('float32', [bytes / 4])));
await kv.init(keys, gradients);

const ways = {
  push: () => kv.push(keys, gradients),
  pull: () => kv.pull(keys, values),
  pushPull: () => kv.pushPull(keys, gradients, values),
} as const;
const samples = Object.fromEntries(Object.keys(ways).map((way) => [way, [] as { ms: number; cpuMs: number }[]]));
let pushed = 0;
for (let i = -warmUps; i < iterations; i++) {
  for (const [way, run] of Object.entries(ways)) {
    if (way !== 'pull') {
      pushed = i + warmUps + (way === 'push' ? 0.25 : 0.5);
      for (const { data } of gradients) data.fill(pushed);
    }
    await kv.barrier();
    const startUs = systemStopwatch.nowUs();
    const before = process.cpuUsage();
    await run();
    const ms = (systemStopwatch.nowUs() - startUs) / 1000;
    const { user, system } = process.cpuUsage(before);
    if (i >= 0) samples[way].push({ ms, cpuMs: (user + system) / 1000 });
    if (way !== 'push') for (const [k, { data }] of values.entries()) check(k, data);
  }
}
await kv.barrier();
await kv.close();
process.stdout.write(`${JSON.stringify(samples)}\n`);

/** Checks a result: with one worker the value is the one that was pushed last. */
function check(k: number, data: ArrayLike<number | bigint>): void {
  for (const at of [0, data.length >> 1, data.length - 1]) {
    if (data[at] !== pushed) throw new Error(`key ${k}, element ${at} is ${data[at]}, not ${pushed}`);
  }
}
