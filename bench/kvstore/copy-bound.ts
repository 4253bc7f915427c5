/** The bound by shared memory: every worker copies as many bytes into a region of its neighbour as it pushes, and as many out of
 *  it as it pulls, all workers at once. A rank of a process group; writes its times as the contestants do.
 *
 *    own source ──▶ neighbour's inbox        neighbour's outbox ──▶ own result        pieces of a key, but at least 1 MiB */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { systemRandom } from '../../src/base/random.ts';
import { systemStopwatch } from '../../src/base/clock.ts';
import { initProcessGroup } from '../../src/group/init.ts';
import { createKernels } from '../../src/memory/kernels/create-kernels.ts';
import { loadNative, nativeUnavailableReason } from '../../src/memory/native.ts';
import type { RegionShare } from '../../src/memory/region.ts';
import { createRegionAllocator } from '../../src/memory/regions/allocator.ts';
import type { Row, Times } from './workload.ts';

const native = loadNative({ enabled: true });
if (native === undefined) throw new Error(nativeUnavailableReason());
const kernels = createKernels({ native });
const regions = createRegionAllocator({ native, random: systemRandom });
const group = await initProcessGroup();
const times: Times = {};
const shareBytes = 256;
const warmUps = Number(process.env.BENCH_WARM_UPS ?? 1);
const pieceBytesLeast = 2 ** 20;

for (const { name, keys, bytes, iterations } of JSON.parse(process.env.BENCH_ROWS ?? '[]') as Row[]) {
  const total = keys * bytes;
  const piece = Math.max(bytes, pieceBytesLeast);
  const own = regions.create(4 * total);
  const neighbour = regions.open(await exchangeShares(own.share));
  const part = (buffer: ArrayBufferLike, index: number): Uint8Array => new Uint8Array(buffer, index * total, total);
  const [inboxThere, outboxThere] = [part(neighbour.buffer, 0), part(neighbour.buffer, 1)];
  const [source, result] = [part(own.buffer, 2), part(own.buffer, 3)];
  new Uint8Array(own.buffer, 0, 4 * total).fill(group.rank + 1);
  times[name] = [];
  for (let i = -warmUps; i < iterations; i++) {
    source.fill(i + warmUps);
    part(own.buffer, 1).fill(i + warmUps);
    group.barrier().waitSync();
    const startUs = systemStopwatch.nowUs();
    for (let at = 0; at < total; at += piece) {
      kernels.copy(inboxThere.subarray(at, at + piece), source.subarray(at, at + piece));
      kernels.copy(result.subarray(at, at + piece), outboxThere.subarray(at, at + piece));
    }
    if (i >= 0) times[name].push(systemStopwatch.nowUs() - startUs);
    if (result[total - 1] !== i + warmUps) throw new Error('the copy is wrong');
    group.barrier().waitSync();
  }
}
writeFileSync(join(process.env.BENCH_RESULTS ?? '.', `worker-${group.rank}.json`), JSON.stringify(times));
await group.destroy();

/** Gives this rank's share to the others, and returns the next rank's. */
async function exchangeShares(share: RegionShare): Promise<RegionShare> {
  const mine = new Uint8Array(shareBytes).fill(0x20);
  mine.set(new TextEncoder().encode(JSON.stringify(share)));
  const all = new Uint8Array(shareBytes * group.size);
  await group.allGather(all, mine);
  const next = (group.rank + 1) % group.size;
  return JSON.parse(new TextDecoder().decode(all.subarray(next * shareBytes, (next + 1) * shareBytes))) as RegionShare;
}
