// A rank that all-reduces float32 sums of the sizes in BENCH_SIZES, in tensors and in plain arrays. Sizes that end with `:1` are
// timed once more together with the writing of the tensor, as in a step of training: builds differ in the time of both.
import { initProcessGroup } from 'shoal';
import { takeTurns } from './turns.mjs';

const group = await initProcessGroup();
const sizes = process.env.BENCH_SIZES.split(',').map((each) => each.split(':').map(Number));
const written = 'shared tensors, written and summed';
const sum = (group.size * (group.size + 1)) / 2;

await takeTurns(
  sizes.flatMap(([bytes, times, warmUps, writes]) =>
    ['shared tensors', ...(writes ? [written] : []), 'plain arrays'].map((title) => {
      const value = title === 'plain arrays' ? new Float32Array(bytes / 4) : group.tensor('float32', [bytes / 4]);
      const data = value.data ?? value;
      const run = (count) => {
        const took = [];
        for (let k = -1; k < count; k++) {
          const writeMs = performance.now();
          data.fill(group.rank + 1);
          const startMs = title === written ? writeMs : performance.now();
          group.allReduce(value).waitSync();
          // The first call does not count: ranks wait in it until all are there.
          if (k >= 0) took.push((performance.now() - startMs) * 1000);
        }
        if (data.some((each) => each !== sum)) throw new Error(`a sum of ${bytes} bytes is wrong`);
        return took;
      };
      return { name: `${bytes} bytes, ${title}`, times, warmUps, run };
    }),
  ),
);
await group[Symbol.asyncDispose]();
