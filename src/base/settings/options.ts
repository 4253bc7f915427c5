/** What scripts without a type check pass to the public API: an option that is misspelt, of the wrong kind or not where options
 *  belong is refused with `usage` before anything is done. It is never ignored.
 *
 *  Every options type has one table that names its keys and what their values are; the type makes a forgotten key an error. A check
 *  walks over the keys that are there: it costs no allocation, and nothing where no options are given. */
import { ShoalError } from '../errors.ts';
import { nearestName } from './nearest-name.ts';

/** What a value is, before its own check: `number` is not NaN, `list` is an array, `object` is one of named fields; `any` has a
 *  check of its own. */
export type ValueKind = 'number' | 'string' | 'boolean' | 'function' | 'object' | 'list' | 'bytes' | 'bigint' | 'signal' | 'any';

/** The keys of an options type. */
export type OptionTable<Options> = ReadonlyMap<keyof Options & string, ValueKind>;

export function optionTable<Options>(kinds: { readonly [Key in keyof Required<Options>]: ValueKind }): OptionTable<Options> {
  return new Map(Object.entries<ValueKind>(kinds) as [keyof Options & string, ValueKind][]);
}

/** What a call takes for its options when it is given none. */
export const noOptions = Object.freeze({});

/** @param call for the message: `allReduce`.
 *  @throws ShoalError `usage` for anything but an object with known keys, whose values are of their kind or undefined. */
export function checkOptions<Options extends object>(call: string, options: Options | undefined, known: OptionTable<Options>): void {
  if (options === noOptions || options === undefined) return;
  if (!isPlainObject(options)) throw notOptions(call, options, [...known.keys()]);
  for (const key in options) {
    const kind = known.get(key);
    if (kind === undefined) throw unknownOption(call, key, [...known.keys()]);
    const value = options[key];
    if (value !== undefined && !isOfKind(value, kind)) throw wrongKind(`${call}: option '${key}'`, value, kind);
  }
}

/** As `checkOptions`, for an object that must be there. */
export function checkFields<Fields extends object>(call: string, given: Fields, known: OptionTable<Fields>): void {
  if (given === undefined) throw notOptions(call, given, [...known.keys()]);
  checkOptions(call, given, known);
}

/** An argument that is no option. @throws ShoalError `usage` when it is of another kind. */
export function checkKind(role: string, value: unknown, kind: ValueKind): void {
  if (!isOfKind(value, kind)) throw wrongKind(role, value, kind);
}

/** For a call without options that is likely to be given some. @throws ShoalError `usage` when it is. */
export function checkNoOptions(call: string, given: readonly unknown[]): void {
  if (given[0] !== undefined) throw new ShoalError('usage', `${call} takes no options, but was given ${describeValue(given[0])}`);
}

/** An object that holds options: not a list, a promise, a map or the like, which hold something else or nothing to read. */
export function isPlainObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && Object.prototype.toString.call(value) === '[object Object]';
}

/** For messages: what was passed instead. */
export function describeValue(value: unknown): string {
  if (typeof value === 'string') return `'${value}'`;
  if (typeof value === 'function') return 'a function';
  if (Array.isArray(value)) return 'a list';
  if (typeof value !== 'object' || value === null) return String(value);
  const name = (value.constructor as { name?: string } | undefined)?.name ?? 'Object';
  return name === 'Object' ? 'an object' : `${/^[AEIOU]/.test(name) ? 'an' : 'a'} ${name}`;
}

function isOfKind(value: unknown, kind: ValueKind): boolean {
  switch (kind) {
    case 'number':
      return typeof value === 'number' && !Number.isNaN(value);
    case 'object':
      return isPlainObject(value);
    case 'list':
      return Array.isArray(value);
    case 'bytes':
      return value instanceof Uint8Array;
    case 'signal':
      return value instanceof AbortSignal;
    case 'any':
      return true;
    default:
      return typeof value === kind;
  }
}

const kindNames: { readonly [Kind in ValueKind]: string } = {
  number: 'a number',
  string: 'a string',
  boolean: 'true or false',
  function: 'a function',
  object: 'an object',
  list: 'a list',
  bytes: 'a Uint8Array',
  bigint: 'a bigint',
  signal: 'an AbortSignal',
  any: 'given',
};

function wrongKind(role: string, value: unknown, kind: ValueKind): ShoalError {
  return new ShoalError('usage', `${role} must be ${kindNames[kind]}, not ${describeValue(value)}`);
}

function notOptions(call: string, value: unknown, known: readonly string[]): ShoalError {
  return new ShoalError('usage', `${call} needs an object with ${known.join(', ')}, not ${describeValue(value)}`);
}

function unknownOption(call: string, key: string, known: readonly string[]): ShoalError {
  const nearest = nearestName(key, known);
  const hint = nearest === undefined ? '' : `; did you mean '${nearest}'?`;
  return new ShoalError('usage', `${call} has no option '${key}'${hint} (options: ${known.join(', ')})`);
}
