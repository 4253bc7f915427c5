/** Shapes of values from outside: options of the public API, messages and files of other processes.
 *
 *  A shape says which values fit, in words for messages. Checking a value that fits allocates nothing, and shapes cost nothing to
 *  load, which matters to every rank while it starts. Options are refused with `usage` before anything is done: a misspelt one is
 *  never ignored. */
import { ShoalError } from './errors.ts';
import { nearestName } from './settings/nearest-name.ts';

export interface Shape<T> {
  /** A noun phrase for messages: "a number from 0". */
  readonly words: string;
  /** Undefined when `value` fits; otherwise the text that follows the value's name: "[2].from must be a number from 0, not -1". */
  problem(value: unknown): string | undefined;
  /** Carries the type; never set. */
  readonly value?: T;
}

export type ValueOf<S> = S extends Shape<infer T> ? T : never;

// ── single values ───────────────────────────────────────────────────────────────────────────────────────────────────

/** The values for which `test` holds. */
export function that<T>(words: string, test: (value: unknown) => boolean): Shape<T> {
  return { words, problem: (value) => (test(value) ? undefined : ` must be ${words}, not ${describeValue(value)}`) };
}

export const anything = that<unknown>('given', () => true);
/** Any number but NaN; infinity is one. */
export const anyNumber = that<number>('a number', (value) => typeof value === 'number' && !Number.isNaN(value));
export const anyText = that<string>('a string', (value) => typeof value === 'string');
export const flag = that<boolean>('true or false', (value) => typeof value === 'boolean');
export const bigInteger = that<bigint>('a bigint', (value) => typeof value === 'bigint');
export const byteArray = that<Uint8Array>('a Uint8Array', (value) => value instanceof Uint8Array);
export const callback = that<(...args: never[]) => unknown>('a function', (value) => typeof value === 'function');
export const abortSignal = that<AbortSignal>('an AbortSignal', (value) => value instanceof AbortSignal);
export const anyObject = that<object>('an object', isPlainObject);
export const anyList = that<readonly unknown[]>('a list', Array.isArray);

interface Range {
  readonly min?: number;
  readonly max?: number;
  /** Lower bound, itself excluded. */
  readonly above?: number;
  /** Upper bound, itself excluded. */
  readonly below?: number;
}

/** A finite number. */
export function number(range: Range = {}): Shape<number> {
  return inRange('a finite number', 'a number', Number.isFinite, range);
}

/** A whole number that a double holds exactly. */
export function integer(range: Range = {}): Shape<number> {
  return inRange('a whole number', 'a whole number', Number.isSafeInteger, range);
}

/** A whole number from 0. */
export const count = integer({ min: 0 });

function inRange(unbounded: string, kind: string, test: (value: unknown) => boolean, range: Range): Shape<number> {
  const { min = -Infinity, max = Infinity, above = -Infinity, below = Infinity } = range;
  const low = min > -Infinity ? ` from ${min}` : above > -Infinity ? ` above ${above}` : '';
  const high = max < Infinity ? ` to ${max}` : below < Infinity ? `${low === '' ? '' : ' and'} below ${below}` : '';
  return that(low + high === '' ? unbounded : kind + low + high, (value) => {
    const given = value as number;
    return test(value) && given >= min && given <= max && (above === -Infinity || given > above) && (below === Infinity || given < below);
  });
}

/** @param max number of characters. */
export function text(max: number): Shape<string> {
  return that(`a string of at most ${max} characters`, (value) => typeof value === 'string' && value.length <= max);
}

export function literal<const T extends string | number>(...known: readonly T[]): Shape<T> {
  const words = known.map((each) => (typeof each === 'string' ? `'${each}'` : String(each))).join(', ');
  return that(known.length === 1 ? words : `one of ${words}`, (value) => known.includes(value as T));
}

// ── values made of others ───────────────────────────────────────────────────────────────────────────────────────────

/** @param max number of elements. */
export function list<T>(element: Shape<T>, { min = 0, max = Infinity }: { readonly min?: number; readonly max?: number } = {}): Shape<T[]> {
  const words = min > 0 ? `a list of ${min} elements or more` : max < Infinity ? `a list of at most ${max} elements` : 'a list';
  return {
    words,
    problem(value) {
      if (!Array.isArray(value)) return ` must be ${words}, not ${describeValue(value)}`;
      if (value.length < min || value.length > max) return ` must be ${words}, not of ${value.length}`;
      for (const [index, each] of (value as unknown[]).entries()) {
        const problem = element.problem(each);
        if (problem !== undefined) return `[${index}]${problem}`;
      }
      return undefined;
    },
  };
}

/** An object with any keys. */
export function record<T>(element: Shape<T>): Shape<Record<string, T>> {
  return {
    words: 'an object',
    problem(value) {
      const misfit = anyObject.problem(value);
      if (misfit !== undefined) return misfit;
      for (const [key, each] of Object.entries(value as object)) {
        const problem = element.problem(each);
        if (problem !== undefined) return `.${key}${problem}`;
      }
      return undefined;
    },
  };
}

/** A field that may be left out. */
export interface OptionalShape<T> extends Shape<T | undefined> {
  readonly isOptional: true;
}

export function optional<T>(shape: Shape<T>): OptionalShape<T> {
  return { isOptional: true, words: shape.words, problem: (value) => (value === undefined ? undefined : shape.problem(value)) };
}

export function nullable<T>(shape: Shape<T>): Shape<T | null> {
  return { words: `${shape.words} or null`, problem: (value) => (value === null ? undefined : shape.problem(value)) };
}

type Fields = Readonly<Record<string, Shape<unknown>>>;
type OptionalKeys<F extends Fields> = { [K in keyof F]: F[K] extends { readonly isOptional: true } ? K : never }[keyof F];
type Flat<T> = { [K in keyof T]: T[K] };
export type FieldsOf<F extends Fields> = Flat<
  { [K in Exclude<keyof F, OptionalKeys<F>>]: ValueOf<F[K]> } & { [K in OptionalKeys<F>]?: ValueOf<F[K]> }
>;

/** An object with these fields. `strict` refuses further fields, which are ignored otherwise. */
export function object<F extends Fields>(fields: F, { strict = false }: { readonly strict?: boolean } = {}): Shape<FieldsOf<F>> {
  const shapes = Object.entries(fields);
  return {
    words: 'an object',
    problem(value) {
      const misfit = anyObject.problem(value);
      if (misfit !== undefined) return misfit;
      for (const [key, shape] of shapes) {
        const problem = shape.problem(Object.hasOwn(value as object, key) ? (value as Record<string, unknown>)[key] : undefined);
        if (problem !== undefined) return `.${key}${problem}`;
      }
      if (strict) for (const key in value as object) if (!Object.hasOwn(fields, key)) return `.${key} is not known`;
      return undefined;
    },
  };
}

/** One of several objects, which their `type` tells apart. */
export function tagged<const Variants extends Readonly<Record<string, Fields>>>(
  variants: Variants,
): Shape<{ [Type in keyof Variants & string]: Flat<{ type: Type } & FieldsOf<Variants[Type]>> }[keyof Variants & string]> {
  const shapes = new Map(Object.entries(variants).map(([type, fields]) => [type, object(fields)]));
  const known = object({ type: literal(...shapes.keys()) });
  return { words: 'an object', problem: (value) => known.problem(value) ?? shapes.get((value as { type: string }).type)!.problem(value) };
}

/** Returns `value` itself; nothing is copied.
 *  @param what for the message: `the answer of rank 3`.
 *  @throws ShoalError `protocol` that names the field which does not fit. */
export function parse<T>(what: string, shape: Shape<T>, value: unknown): T {
  const problem = shape.problem(value);
  if (problem === undefined) return value as T;
  throw new ShoalError('protocol', `${what} is not well formed: ${nameOf(problem)}`);
}

/** The subject of a problem, at the beginning of a sentence. */
export function nameOf(problem: string): string {
  return problem.startsWith(' ') ? `it${problem}` : problem.replace(/^\./, '');
}

// ── options and arguments ───────────────────────────────────────────────────────────────────────────────────────────

/** The keys of an options type, with the shapes of their values. */
export type OptionTable<Options> = ReadonlyMap<keyof Options & string, Shape<unknown>>;

/** A table with every key of `Options`: the type makes a forgotten one an error. */
export function optionTable<Options>(shapes: { readonly [Key in keyof Required<Options>]: Shape<unknown> }): OptionTable<Options> {
  return new Map(Object.entries<Shape<unknown>>(shapes) as [keyof Options & string, Shape<unknown>][]);
}

/** The options of a call that is given none. */
export const noOptions = Object.freeze({});

/** Checks options. @param call for the message: `allReduce`.
 *  @throws ShoalError `usage` for anything but an object with known keys, whose values fit or are undefined. */
export function checkOptions<Options extends object>(call: string, options: Options | undefined, known: OptionTable<Options>): void {
  if (options === noOptions || options === undefined) return;
  if (!isPlainObject(options)) throw notOptions(call, options, [...known.keys()]);
  for (const key in options) {
    const shape = known.get(key);
    if (shape === undefined) throw unknownOption(call, key, [...known.keys()]);
    const value = options[key];
    if (value !== undefined) checkValue(call, key, value, shape);
  }
}

function checkValue(call: string, key: string, value: unknown, shape: Shape<unknown>): void {
  const problem = shape.problem(value);
  if (problem !== undefined) throw new ShoalError('usage', `${call}: option '${key}'${problem}`);
}

/** Checks an object that must be there, like `checkOptions`. */
export function checkFields<Given extends object>(call: string, given: Given, known: OptionTable<Given>): void {
  if (given === undefined) throw notOptions(call, given, [...known.keys()]);
  checkOptions(call, given, known);
}

/** Checks an argument that is not an option. @throws ShoalError `usage` when it does not fit. */
export function checkArgument(role: string, value: unknown, shape: Shape<unknown>): void {
  const problem = shape.problem(value);
  if (problem !== undefined) throw new ShoalError('usage', `${role}${problem}`);
}

const positive = that<number>('a positive integer', (value) => Number.isSafeInteger(value) && (value as number) > 0);

/** Returns an argument that is a positive integer. @throws ShoalError `usage` for anything else. */
export function checkPositive(role: string, value: number): number {
  checkArgument(role, value, positive);
  return value;
}

/** Refuses options of a call that has none but is likely to be given some. @throws ShoalError `usage`. */
export function checkNoOptions(call: string, given: readonly unknown[]): void {
  if (given[0] !== undefined) throw new ShoalError('usage', `${call} takes no options, but was given ${describeValue(given[0])}`);
}

/** An object that holds options: not a list, a promise, a map or the like, which hold something else or nothing to read. */
export function isPlainObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && Object.prototype.toString.call(value) === '[object Object]';
}

/** Text for messages that describes the value passed instead. */
export function describeValue(value: unknown): string {
  if (typeof value === 'string') return `'${value}'`;
  if (typeof value === 'function') return 'a function';
  if (Array.isArray(value)) return 'a list';
  if (typeof value !== 'object' || value === null) return String(value);
  const name = (value.constructor as { name?: string } | undefined)?.name ?? 'Object';
  return name === 'Object' ? 'an object' : `${/^[AEIOU]/.test(name) ? 'an' : 'a'} ${name}`;
}

function notOptions(call: string, value: unknown, known: readonly string[]): ShoalError {
  return new ShoalError('usage', `${call} needs an object with ${known.join(', ')}, not ${describeValue(value)}`);
}

function unknownOption(call: string, key: string, known: readonly string[]): ShoalError {
  const nearest = nearestName(key, known);
  const hint = nearest === undefined ? '' : `; did you mean '${nearest}'?`;
  return new ShoalError('usage', `${call} has no option '${key}'${hint} (options: ${known.join(', ')})`);
}
