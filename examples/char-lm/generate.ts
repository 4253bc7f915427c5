/** Text from a trained model, one character at a time. */
import { numpy as np, tree } from '@jax-js/jax';
import type { Random } from 'shoal/ddp';
import type { Model, ModelConfig, Parameters } from './model.ts';

export interface GenerateOptions {
  readonly vocabulary: readonly string[];
  /** Text to continue. */
  readonly prompt: string;
  /** Characters to add. */
  readonly count: number;
  /** Below 1 the likelier characters are favoured. */
  readonly temperature: number;
  readonly random: Random;
}

/** The prompt and its continuation. Keeps `parameters`. */
export async function generate(model: Model, parameters: Parameters, { context }: ModelConfig, options: GenerateOptions): Promise<string> {
  const { vocabulary, prompt, count, temperature, random } = options;
  const tokens = Array.from(prompt, (character) => Math.max(0, vocabulary.indexOf(character)));
  for (let i = 0; i < count; i++) {
    const recent = tokens.slice(-context);
    // Padding lies to the right: attention is causal, so it changes nothing before it.
    const window = Int32Array.from({ length: context }, (_, at) => recent[at] ?? 0);
    const logits = await model.logits(tree.ref(parameters), np.array(window, { shape: [1, context] })).data();
    const from = (recent.length - 1) * vocabulary.length;
    tokens.push(draw(logits.subarray(from, from + vocabulary.length) as Float32Array, temperature, random));
  }
  return tokens.map((token) => vocabulary[token]).join('');
}

/** An index with probability softmax(logits / temperature). */
function draw(logits: Float32Array, temperature: number, random: Random): number {
  const peak = logits.reduce((a, b) => Math.max(a, b));
  const weights = logits.map((logit) => Math.exp((logit - peak) / temperature));
  let rest = random.next() * weights.reduce((a, b) => a + b);
  for (const [index, weight] of weights.entries()) {
    rest -= weight;
    if (rest < 0) return index;
  }
  return weights.length - 1;
}
