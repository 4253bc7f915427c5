/** Users who look at items of one category for a while, and click on what belongs to what they looked at last. A seeded generator, synthetic, whose
 *  best possible AUC is known. */
import { seededRandom } from 'shoal/ddp';
import { normal, type Random } from '../ranking/random.ts';

export interface Batch {
  /** [size] 0 or 1 */
  readonly labels: Float32Array;
  /** Items and their categories: [length, size], the oldest first. */
  readonly history: readonly Int32Array[];
  /** The item that was shown, and its category: [size] */
  readonly target: readonly Int32Array[];
  /** The logit each label was drawn by. */
  readonly logits: Float32Array;
}

export interface Source {
  /** Items, categories. */
  readonly vocabularies: readonly number[];
  batch(size: number): Batch;
}

const [loyalty, decay, strength, bias] = [0.7, 0.6, 2.2, -2.2];

/** @param truth seed of what is true of items, the same for all workers. @param stream seed of the examples. */
export function generator(options: { items: number; categories: number; length: number; truth: number; stream: number }): Source {
  const { items, categories, length, truth, stream } = options;
  const weights = seededRandom(truth);
  const quality = Float64Array.from({ length: items }, () => 0.5 * normal(weights));
  const random = seededRandom(stream);
  const some = (count: number): number => Math.floor(count * random.next());
  /** Item i is of category i mod categories. */
  const itemOf = (category: number): number => category + categories * some(Math.ceil((items - category) / categories));
  const batch = (size: number): Batch => {
    const sequences = (): Int32Array[] => [new Int32Array(length * size), new Int32Array(length * size)];
    const made = {
      labels: new Float32Array(size),
      history: sequences(),
      target: [new Int32Array(size), new Int32Array(size)],
      logits: new Float32Array(size),
    };
    for (let row = 0; row < size; row++) {
      const seen: number[] = [];
      let interest = some(categories);
      for (let step = 0; step < length; step++) {
        interest = changed(random, loyalty, interest, () => some(categories));
        seen.push(interest);
        made.history[0][step * size + row] = itemOf(interest);
        made.history[1][step * size + row] = interest;
      }
      const shown = changed(random, 0.4, interest, () => some(categories));
      const item = itemOf(shown);
      made.target[0][row] = item;
      made.target[1][row] = shown;
      const affinity = seen.reduce((sum, each, step) => sum + (each === shown ? decay ** (length - 1 - step) : 0), 0);
      const logit = bias + strength * affinity + quality[item];
      made.logits[row] = logit;
      made.labels[row] = Number(random.next() < 1 / (1 + Math.exp(-logit)));
    }
    return made;
  };
  return { vocabularies: [items, categories], batch };
}

function changed(random: Random, stays: number, value: number, next: () => number): number {
  return random.next() < stays ? value : next();
}
