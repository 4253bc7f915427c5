/** The loss of a model on text that it was not trained on. */
import { numpy as np, tree } from '@jax-js/jax';
import { windowCount, windows, type Corpus } from './corpus.ts';
import type { Model, Parameters } from './model.ts';

/** Nats per character, the mean over whole batches of the held-out text. Keeps `parameters`. */
export async function heldOutLossOf(
  model: Model,
  parameters: Parameters,
  { heldOut }: Corpus,
  { batch, context }: { readonly batch: number; readonly context: number },
): Promise<number> {
  const blocks = Math.floor(windowCount(heldOut, context) / batch);
  let sum = 0;
  for (let block = 0; block < blocks; block++) {
    const items = Array.from({ length: batch }, (_, i) => block * batch + i);
    const [inputs, targets] = windows(heldOut, items, context).map((tokens) => np.array(tokens, { shape: [batch, context] }));
    const [loss] = await model.loss(tree.ref(parameters), inputs, targets).data();
    sum += loss / blocks;
  }
  return sum;
}
