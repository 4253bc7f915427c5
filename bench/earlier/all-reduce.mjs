// A rank that all-reduces float32 sums of the sizes in BENCH_SIZES, in tensors and in plain arrays. Sizes that end with `:1` are also
// taken apart, as builds differ in the time of the parts: a call takes as long as the slowest rank from its own start, so it has the
// time in which one rank still writes its tensor and the other already waits.
//
//     rank 0   writes ▒▒▒▒▒▒▒▒│          │ sums ████████│
//     rank 1   writes ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│ sums ████████│
//                             └ its start └ the last start
import { initProcessGroup } from 'shoal';
import { takeTurns } from './turns.mjs';

const group = await initProcessGroup();
const sizes = process.env.BENCH_SIZES.split(',').map((each) => each.split(':').map(Number));
const sum = (group.size * (group.size + 1)) / 2;
/** Added to `now()`, it gives a time of the host. */
const origin = Number(process.hrtime.bigint()) / 1000 - now();
/** Microseconds of a call. */
const parts = {
  '': ({ start, end }) => end - start,
  ', from the last start': ({ lastStart, end }) => end - lastStart,
  ', written': ({ written, start }) => start - written,
  ', written and summed': ({ written, end }) => end - written,
};

await takeTurns(
  sizes.flatMap(([bytes, times, warmUps, apart]) => [
    ...(apart ? Object.keys(parts) : ['']).map((part) => ({ ...reduction('shared tensors', bytes, part), times, warmUps })),
    { ...reduction('plain arrays', bytes, ''), times, warmUps },
  ]),
);
await group[Symbol.asyncDispose]();

/** Calls of one size of which one part is timed. */
function reduction(title, bytes, part) {
  const value = title === 'plain arrays' ? new Float32Array(bytes / 4) : group.tensor('float32', [bytes / 4]);
  const data = value.data ?? value;
  const run = (count) => {
    // The first call does not count: ranks wait in it until all are there.
    const [written, starts, ends] = [0, 0, 0].map(() => new Float64Array(count + 1));
    for (let k = 0; k <= count; k++) {
      written[k] = now();
      data.fill(group.rank + 1);
      starts[k] = now();
      group.allReduce(value).waitSync();
      ends[k] = now();
    }
    if (data.some((each) => each !== sum)) throw new Error(`a sum of ${bytes} bytes is wrong`);
    const lastStarts = part === ', from the last start' ? latest(starts) : starts;
    const call = (k) => parts[part]({ written: written[k], start: starts[k], lastStart: lastStarts[k], end: ends[k] });
    return Array.from({ length: count }, (_, k) => call(k + 1));
  };
  return { name: `${bytes} bytes, ${title}${part}`, run };
}

/** The last start of each call, by the clock of this process. */
function latest(starts) {
  const all = new Float64Array(starts.length * group.size);
  const ours = starts.map((each) => origin + each);
  group.allGather(all, ours).waitSync();
  const ranks = Array.from({ length: group.size }, (_, rank) => rank);
  return ours.map((_, k) => Math.max(...ranks.map((rank) => all[rank * ours.length + k])) - origin);
}

function now() {
  return performance.now() * 1000;
}
