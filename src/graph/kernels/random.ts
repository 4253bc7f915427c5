/** Kernels of random numbers: the numbers of a run follow from the seed and the number of the run. */
import { seededRandom, type Random } from '../../base/random.ts';
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import { countOf, elementsOf, elementsValue, emptyElements } from '../structure/elements.ts';
import type { Node } from '../structure/graph-node.ts';

/** Box & Muller, "A note on the generation of random normal deviates", 1958. */
function normal(random: Random): number {
  return Math.sqrt(-2 * Math.log(1 - random.next())) * Math.cos(2 * Math.PI * random.next());
}

function truncatedNormal(random: Random): number {
  let drawn = normal(random);
  while (Math.abs(drawn) > 2) drawn = normal(random);
  return drawn;
}

export function randomKernels(): KernelTable {
  const runs = new WeakMap<Node, number>();
  const kernel = (draw: (random: Random) => number): Kernel => {
    return ({ node, inputs: [given] }) => {
      const run = runs.get(node) ?? 0;
      runs.set(node, run + 1);
      const { seed, scale, offset, dtype } = node.attributes as { seed: number; scale: number; offset: number; dtype: string };
      const random = seededRandom((seed ^ Math.imul(run, 0x632be5ab)) >>> 0);
      const shape = Array.from(elementsOf(given) as ArrayLike<number>, Number);
      const numbers = emptyElements(dtype, countOf(shape)) as Float64Array;
      for (let k = 0; k < numbers.length; k++) numbers[k] = offset + scale * draw(random);
      return [elementsValue(dtype, shape, numbers)];
    };
  };
  return {
    RandomUniform: kernel((random) => random.next()),
    RandomStandardNormal: kernel(normal),
    TruncatedNormal: kernel(truncatedNormal),
  };
}
