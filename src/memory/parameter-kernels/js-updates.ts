/** The update rules in JavaScript, operation by operation as in native/optimizers_loops.h. Each loop exists once for both
 *  precisions: `round` is Math.fround for float32, where a product or sum of doubles rounded to single is the single
 *  operation's result, and the identity for float64. */
import { unreachable } from '../../base/assert.ts';
import type { Reals, UpdateRule } from '../parameter-kernels.ts';

type Round = (x: number) => number;

const exactly: Round = (x) => x;

export function updateJs(rule: UpdateRule, value: Reals, gradient: Reals, states: readonly Reals[], parameters: Float64Array): void {
  const round = value instanceof Float32Array ? Math.fround : exactly;
  const p = Array.from(parameters, round);
  if (rule === 'sgd') sgd(round, value, gradient, p);
  else if (rule === 'momentum') momentum(round, value, gradient, states[0], p);
  else if (rule === 'nesterov') nesterov(round, value, gradient, states[0], p);
  else if (rule === 'adam') adam(round, value, gradient, states[0], states[1], p);
  else if (rule === 'adagrad') adagrad(round, value, gradient, states[0], p);
  else if (rule === 'ftrl') ftrl(round, value, gradient, states[0], states[1], p);
  else unreachable(rule);
}

/** The gradient, rescaled and clipped; NaN stays NaN. */
function plain(round: Round, gradient: number, rescale: number, clip: number): number {
  const g = round(rescale * gradient);
  const least = g < -clip ? -clip : g;
  return least > clip ? clip : least;
}

function sgd(round: Round, value: Reals, gradient: Reals, [rescale, clip, decay, rate]: readonly number[]): void {
  for (let i = 0; i < value.length; i++) {
    const d = round(plain(round, gradient[i], rescale, clip) + round(decay * value[i]));
    value[i] = value[i] - round(rate * d);
  }
}

function momentum(round: Round, value: Reals, gradient: Reals, velocity: Reals, [rescale, clip, decay, rate, mu]: readonly number[]): void {
  for (let i = 0; i < value.length; i++) {
    const d = round(plain(round, gradient[i], rescale, clip) + round(decay * value[i]));
    velocity[i] = round(mu * velocity[i]) - round(rate * d);
    value[i] = value[i] + velocity[i];
  }
}

function nesterov(round: Round, value: Reals, gradient: Reals, velocity: Reals, [rescale, clip, decay, rate, mu]: readonly number[]): void {
  for (let i = 0; i < value.length; i++) {
    const pull = round(rate * round(plain(round, gradient[i], rescale, clip) + round(decay * value[i])));
    velocity[i] = round(mu * velocity[i]) - pull;
    value[i] = value[i] + round(round(mu * velocity[i]) - pull);
  }
}

function adam(
  round: Round,
  value: Reals,
  gradient: Reals,
  mean: Reals,
  variance: Reals,
  [rescale, clip, decay, rate, beta1, rest1, beta2, rest2, epsilon]: readonly number[],
): void {
  for (let i = 0; i < value.length; i++) {
    const d = round(plain(round, gradient[i], rescale, clip) + round(decay * value[i]));
    mean[i] = round(beta1 * mean[i]) + round(rest1 * d);
    variance[i] = round(beta2 * variance[i]) + round(round(rest2 * d) * d);
    value[i] = value[i] - round(round(rate * mean[i]) / round(round(Math.sqrt(variance[i])) + epsilon));
  }
}

function adagrad(
  round: Round,
  value: Reals,
  gradient: Reals,
  history: Reals,
  [rescale, clip, decay, rate, epsilon]: readonly number[],
): void {
  for (let i = 0; i < value.length; i++) {
    const d = round(plain(round, gradient[i], rescale, clip) + round(decay * value[i]));
    history[i] = history[i] + round(d * d);
    value[i] = value[i] - round(round(rate * d) / round(round(Math.sqrt(history[i])) + epsilon));
  }
}

function ftrl(
  round: Round,
  value: Reals,
  gradient: Reals,
  z: Reals,
  n: Reals,
  [rescale, clip, decay, rate, lambda1, beta]: readonly number[],
): void {
  for (let i = 0; i < value.length; i++) {
    const g = plain(round, gradient[i], rescale, clip);
    const root = round(Math.sqrt(n[i]));
    n[i] = n[i] + round(g * g);
    const newRoot = round(Math.sqrt(n[i]));
    const sigma = round(round(newRoot - root) / rate);
    z[i] = z[i] + round(g - round(sigma * value[i]));
    const shrunk = round((z[i] > 0 ? lambda1 : -lambda1) - z[i]);
    const moved = shrunk / round(round(round(beta + newRoot) / rate) + decay);
    value[i] = Math.abs(z[i]) <= lambda1 ? 0 : moved;
  }
}
