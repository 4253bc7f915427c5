/** A small causal transformer over characters and its loss, written for jax-js.
 *
 *  tokens [B, T] ─ embed ─▶ (norm → attention → + ; norm → MLP → +) × layers ─ norm ─▶ logits [B, T, V]
 *
 *  Pre-norm blocks as in GPT-2 (Radford et al., 2019); RMS norm (Zhang & Sennrich, 2019).
 *  It knows nothing about other processes.
 *
 *  Ownership, as everywhere in jax-js: a call consumes the arrays it is given; `.ref` keeps one for another use. */
import { jit, nn, numpy as np, valueAndGrad } from '@jax-js/jax';
import type { Random } from 'shoal/ddp';

export type Block = { norm1: np.Array; qkv: np.Array; out: np.Array; norm2: np.Array; up: np.Array; down: np.Array };
export type Parameters = { embed: np.Array; blocks: Block[]; norm: np.Array; head: np.Array };

export interface ModelConfig {
  /** Distinct tokens. */
  readonly vocabulary: number;
  /** Tokens the model sees at once (T). */
  readonly context: number;
  /** Width of the residual stream; divisible by `heads`. */
  readonly width: number;
  readonly layers: number;
  readonly heads: number;
}

/** Normal(0, 1/√fanIn) weights, the same for the same random stream. Projections back into the residual stream start at
 *  1/√(2·layers) of that, so that its variance does not grow with depth. */
export function createParameters({ vocabulary, width, layers }: ModelConfig, random: Random): Parameters {
  const normal = (shape: number[], deviation: number): np.Array => {
    const values = new Float32Array(shape.reduce((a, b) => a * b, 1));
    for (let i = 0; i < values.length; i++) {
      values[i] = deviation * Math.sqrt(-2 * Math.log(1 - random.next())) * Math.cos(2 * Math.PI * random.next());
    }
    return np.array(values, { shape });
  };
  const residual = 1 / Math.sqrt(2 * layers);
  return {
    embed: normal([vocabulary, width], 0.1),
    blocks: Array.from({ length: layers }, () => ({
      norm1: np.ones([width]),
      qkv: normal([width, 3 * width], width ** -0.5),
      out: normal([width, width], residual * width ** -0.5),
      norm2: np.ones([width]),
      up: normal([width, 4 * width], width ** -0.5),
      down: normal([4 * width, width], residual * (4 * width) ** -0.5),
    })),
    norm: np.ones([width]),
    head: normal([width, vocabulary], 0.5 * width ** -0.5),
  };
}

/** x / rms(x) · scale over the last axis. */
function rmsNorm(x: np.Array, scale: np.Array): np.Array {
  const meanSquare = np.square(x.ref).mean(-1, { keepdims: true });
  return x.mul(np.reciprocal(np.sqrt(meanSquare.add(1e-5)))).mul(scale);
}

/** Added to the scores, [H, T, T]: −1e9 where the key comes after the query, else −slope · distance, so that heads look near
 *  and far from the first step on (ALiBi; Press et al., 2022). Slopes 1, 1/4, 1/16, …
 *
 *       key  0   1   2
 *   query 0  0  −∞  −∞
 *         1 −s   0  −∞
 *         2 −2s −s   0 */
function attentionBias({ heads, context }: ModelConfig): np.Array {
  const bias = new Float32Array(heads * context * context);
  for (let i = 0; i < bias.length; i++) {
    const [head, query, key] = [Math.floor(i / context / context), Math.floor(i / context) % context, i % context];
    bias[i] = key > query ? -1e9 : (key - query) * 4 ** -head;
  }
  return np.array(bias, { shape: [heads, context, context] });
}

/** [B, T, C] → [B, T, C]. */
function attention(x: np.Array, { qkv, out }: Pick<Block, 'qkv' | 'out'>, bias: np.Array, heads: number): np.Array {
  const [batch, context, width] = x.shape as [number, number, number];
  const size = width / heads;
  // [B·T, 3C] → three of [B, H, T, C/H]
  const projected = np.matmul(x.reshape([batch * context, width]), qkv).reshape([batch, context, 3, heads, size]);
  const [q, k, v] = np.split(projected.transpose([2, 0, 3, 1, 4]), 3, 0).map((part) => part.reshape([batch * heads, context, size]));
  const scores = np.matmul(q, k.transpose([0, 2, 1])).mul(size ** -0.5);
  const weights = nn.softmax(scores.reshape([batch, heads, context, context]).add(bias), -1).reshape([batch * heads, context, context]);
  const mixed = np.matmul(weights, v).reshape([batch, heads, context, size]).transpose([0, 2, 1, 3]);
  return np.matmul(mixed.reshape([batch * context, width]), out).reshape([batch, context, width]);
}

/** tokens int32 [B, T] → logits float32 [B·T, V]. */
function forward(parameters: Parameters, tokens: np.Array, config: ModelConfig): np.Array {
  const { vocabulary, width, heads } = config;
  const [batch, context] = tokens.shape as [number, number];
  // A lookup as a product with one-hot rows: its gradient is a product too, where the gradient of a gather is a scatter.
  const rows = nn.oneHot(tokens.reshape([batch * context]), vocabulary);
  let x = np.matmul(rows, parameters.embed).reshape([batch, context, width]);
  const bias = attentionBias(config);
  for (const { norm1, norm2, up, down, ...projections } of parameters.blocks) {
    x = x.ref.add(attention(rmsNorm(x, norm1), projections, bias.ref, heads));
    const hidden = nn.relu(np.matmul(rmsNorm(x.ref, norm2).reshape([batch * context, width]), up));
    x = x.add(np.matmul(hidden, down).reshape([batch, context, width]));
  }
  bias.dispose();
  return np.matmul(rmsNorm(x, parameters.norm).reshape([batch * context, width]), parameters.head);
}

/** Mean cross-entropy in nats per character. */
function lossOf(parameters: Parameters, tokens: np.Array, targets: np.Array, config: ModelConfig): np.Array {
  const [batch, context] = targets.shape as [number, number];
  const logProbabilities = nn.logSoftmax(forward(parameters, tokens, config), -1);
  const rows = nn.oneHot(targets.reshape([batch * context]), config.vocabulary);
  return logProbabilities
    .mul(rows)
    .sum()
    .mul(-1 / (batch * context));
}

/** Compiled functions of one model. Each compiles at its first call for a shape, which takes seconds. */
export interface Model {
  /** (parameters, tokens [B, T], targets [B, T]) → [loss, gradients]. */
  gradients(parameters: Parameters, tokens: np.Array, targets: np.Array): [np.Array, Parameters];
  /** (parameters, tokens [B, T], targets [B, T]) → loss. */
  loss(parameters: Parameters, tokens: np.Array, targets: np.Array): np.Array;
  /** (parameters, tokens [1, T]) → logits [T, V]. */
  logits(parameters: Parameters, tokens: np.Array): np.Array;
}

export function createModel(config: ModelConfig): Model {
  const loss = (parameters: Parameters, tokens: np.Array, targets: np.Array): np.Array => lossOf(parameters, tokens, targets, config);
  return {
    gradients: jit(valueAndGrad(loss)),
    loss: jit(loss),
    logits: jit((parameters: Parameters, tokens: np.Array) => forward(parameters, tokens, config)),
  };
}
