/** Kernels of a parameter server: updates of parameters by gradients, and lossy encodings of gradients. Two implementations,
 *  `native` (the addon) and `js` (its twin), give the same bits, NaN payloads excepted: every operation rounds to the
 *  element type, in the order written here, without contraction. They must not know keys, versions or messages. */
import { ShoalError } from '../base/errors.ts';
import { overlap } from './kernels/check.ts';

export type Reals = Float32Array | Float64Array;

/** Rules of updates. They add `g = clip(rescale · gradient)`, and `d = g + decay · value`; `d` is computed before `value` changes.
 *
 *      rule      states           update                                                               parameters from [4]
 *      sgd       –                value −= rate · d
 *      momentum  velocity         velocity = mu · velocity − rate · d;  value += velocity              mu
 *      nesterov  velocity         velocity = mu · velocity − rate · d;  value += mu · velocity − rate · d   mu
 *      adam      mean, variance   mean = b1 · mean + r1 · d;  variance = b2 · variance + r2 · d · d;
 *                                 value −= rate · mean / (√variance + epsilon)                         b1 r1 b2 r2 epsilon
 *      adagrad   history          history += d · d;  value −= rate · d / (√history + epsilon)          epsilon
 *      ftrl      z, n             z += g − (√(n + g²) − √n) / rate · value;  n += g²;
 *                                 value = |z| ≤ l1 ? 0 : (sign(z) · l1 − z) / ((beta + √n) / rate + decay)   l1 beta
 *
 *  Parameters [0…3] of all rules: rescale, clip (Infinity: none), decay, rate. */
export type UpdateRule = 'sgd' | 'momentum' | 'nesterov' | 'adam' | 'adagrad' | 'ftrl';

/** Hyperparameters of the rules, by the names of the table above. */
export interface RuleNumbers {
  readonly rate: number;
  /** Default 1. */
  readonly rescale?: number | undefined;
  /** Default: no clipping. */
  readonly clip?: number | undefined;
  /** Default 0. */
  readonly decay?: number | undefined;
  readonly mu?: number;
  readonly b1?: number;
  readonly b2?: number;
  readonly epsilon?: number;
  readonly l1?: number;
  readonly beta?: number;
}

export interface UpdateRuleInfo {
  readonly name: UpdateRule;
  /** Names of the arrays of state. */
  readonly states: readonly string[];
  /** Hyperparameters from [4] on; `r1` and `r2` are what `b1` and `b2` leave of 1. */
  readonly own: readonly (keyof RuleNumbers | 'r1' | 'r2')[];
}

/** Rules by code, as in the addon: append only. */
export const updateRules: readonly UpdateRuleInfo[] = [
  { name: 'sgd', states: [], own: [] },
  { name: 'momentum', states: ['velocity'], own: ['mu'] },
  { name: 'nesterov', states: ['velocity'], own: ['mu'] },
  { name: 'adam', states: ['mean', 'variance'], own: ['b1', 'r1', 'b2', 'r2', 'epsilon'] },
  { name: 'adagrad', states: ['history'], own: ['epsilon'] },
  { name: 'ftrl', states: ['z', 'n'], own: ['l1', 'beta'] },
];

/** The rule of this name. @throws ShoalError `usage` when there is none. */
export function updateRule(rule: UpdateRule): UpdateRuleInfo {
  const info = updateRules.find(({ name }) => name === rule);
  if (info === undefined) throw misuse(`there is no rule '${rule}'; use one of ${updateRules.map(({ name }) => name).join(', ')}`);
  return info;
}

/** The parameters of a rule as its kernel takes them. */
export function ruleParameters(rule: UpdateRule, numbers: RuleNumbers): Float64Array {
  const { rescale = 1, clip = Infinity, decay = 0, rate, b1 = 0, b2 = 0 } = numbers;
  const all: Readonly<Record<string, number | undefined>> = { ...numbers, r1: 1 - b1, r2: 1 - b2 };
  return Float64Array.of(rescale, clip, decay, rate, ...updateRule(rule).own.map((name) => all[name] ?? Number.NaN));
}

/** Adam's rate of an update, counted from 1, with the correction of the bias of both moments. Epsilon stays uncorrected, as at the end of
 *  section 2 of Kingma & Ba, "Adam: a method for stochastic optimization", ICLR 2015. */
export function adamRate(rate: number, b1: number, b2: number, step: number): number {
  return (rate * Math.sqrt(1 - b2 ** step)) / (1 - b1 ** step);
}

export interface ParameterKernels {
  /** Updates `value` and `states` in place; all are of one type and length, none overlapping another. Parameters are rounded to that type.
   *  @throws ShoalError `usage`. */
  update(rule: UpdateRule, value: Reals, gradient: Reals, states: readonly Reals[], parameters: Float64Array): void;
  /** Index of the first NaN or infinity; −1 when there is none. */
  firstNonFinite(values: Reals): number;
  /** Encodes sixteen elements to a word of four bytes; see compression/two-bit.ts. `sum = residual + gradient` is sent as +threshold, 0 or
   *  −threshold, and the rest of it is the new residual. A sum that is not finite is sent as such and leaves 0. */
  encodeTwoBit(target: Uint8Array, gradient: Float32Array, residual: Float32Array, threshold: number): void;
  decodeTwoBit(target: Float32Array, source: Uint8Array, threshold: number): void;
  /** Encodes as float16, the target aligned to 2 bytes. Sums beyond ±65504 are sent as that; the rest stays in the residual. */
  encodeHalf(target: Uint8Array, gradient: Float32Array, residual: Float32Array): void;
  decodeHalf(target: Float32Array, source: Uint8Array): void;
}

/** Bytes of `count` elements at two bits: whole words. */
export function twoBitBytes(count: number): number {
  return Math.ceil(count / 16) * 4;
}

/** @throws ShoalError `usage` describing the fault of the operands. */
export function checkUpdate(rule: UpdateRule, value: Reals, gradient: Reals, states: readonly Reals[], parameters: Float64Array): void {
  const info = updateRule(rule);
  const wanted = 4 + info.own.length;
  if (states.length !== info.states.length || parameters.length !== wanted) {
    throw misuse(`${rule} needs ${info.states.length} states and ${wanted} parameters, not ${states.length} and ${parameters.length}`);
  }
  if (!(value instanceof Float32Array || value instanceof Float64Array)) {
    throw misuse(`${rule}: values are Float32Array or Float64Array, not ${(value as Uint8Array).constructor.name}`);
  }
  const operands = [value, gradient, ...states];
  for (let a = 0; a < operands.length; a++) {
    if (operands[a].constructor !== value.constructor || operands[a].length !== value.length) {
      throw misuse(`${rule}: ${describe(operands[a])} beside a value of ${describe(value)}; all must be of one type and length`);
    }
    for (let b = 0; b < a; b++) if (overlap(operands[a], operands[b])) throw misuse(`${rule}: two of the arrays overlap`);
  }
}

/** @throws ShoalError `usage` when lengths do not fit one another. */
export function checkEncoding(bytes: number, encoded: Uint8Array, elements: Float32Array, residual?: Float32Array): void {
  if (encoded.length !== bytes) throw misuse(`${elements.length} elements are encoded in ${bytes} bytes, not ${encoded.length}`);
  if (residual === undefined) return;
  if (residual.length !== elements.length) throw misuse(`a residual of ${residual.length} elements for ${elements.length}`);
  if (overlap(residual, elements)) throw misuse('the residual overlaps the gradient');
}

function describe(array: Reals): string {
  return `${array.length} × ${array instanceof Float32Array ? 'float32' : 'float64'}`;
}

function misuse(message: string): ShoalError {
  return new ShoalError('usage', `parameter kernels: ${message}`);
}
