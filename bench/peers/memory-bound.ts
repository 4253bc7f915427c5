/** The bound by memory: every rank adds one private vector to another, all at once. Run on as many ranks as there are processors;
 *  rank 0 prints a JSON object per size.
 *
 *    a += b   reads a and b, writes a: 3 bytes of traffic per byte of vector
 *
 *  An all-reduce of S bytes over n ranks that reads and writes every tensor once moves 2·n·S bytes. The vectors are sized so that
 *  all ranks together touch as much memory, n·S: caches then help both alike.
 *
 *    memory-bound.ts <ranks of the all-reduce> <bytes>:<iterations>,… */
import { systemStopwatch } from '../../src/base/clock.ts';
import { statisticsOf } from '../../src/tools/timing/statistics.ts';
import { initProcessGroup } from '../../src/index.ts';
import { createKernels } from '../../src/memory/kernels/create-kernels.ts';
import { loadNative } from '../../src/memory/native.ts';

const [ranksText, sizes] = process.argv.slice(2);
const kernels = createKernels({ native: loadNative({ enabled: true }) });
const group = await initProcessGroup();
for (const item of sizes.split(',')) {
  const [bytes, iterations] = item.split(':').map(Number);
  const vectorBytes = Math.max(8, Math.floor((bytes * Number(ranksText)) / (2 * group.size) / 8) * 8);
  // The vectors are written, so that each has pages of its own: memory never written reads as one shared page of zeros, from the cache.
  const a = new Uint8Array(vectorBytes).fill(1);
  const b = new Uint8Array(vectorBytes).fill(1);
  const times = new Float64Array(iterations);
  group.barrier().waitSync();
  for (let i = -Math.ceil(iterations / 10); i < iterations; i++) {
    const startUs = systemStopwatch.nowUs();
    kernels.reduce('float32', 'sum', [a], [a, b], [0, 1, -1]);
    if (i >= 0) times[i] = systemStopwatch.nowUs() - startUs;
  }
  const slowest = Float64Array.of(statisticsOf(times).median);
  group.allReduce(slowest, { op: 'max' }).waitSync();
  const gigabytesPerSecond = (3 * vectorBytes * group.size) / slowest[0] / 1000;
  const boundUs = (2 * Number(ranksText) * bytes) / gigabytesPerSecond / 1000;
  if (group.rank === 0) process.stdout.write(`${JSON.stringify({ bytes, gigabytesPerSecond, boundUs })}\n`);
}
await group.destroy();
