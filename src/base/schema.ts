/** What values from outside look like, for the few shapes that every rank reads while it starts: a library of schemas costs a process more
 *  to load and set up than all of its parsing. A shape gives back what it has looked at and nothing else, or undefined: it does not fit. */
import { isPlainObject } from './settings/options.ts';

/** Undefined: the value does not fit. A value that fits is never undefined, but for `optional`. */
export interface Shape<T> {
  readonly read: (value: unknown) => { readonly value: T } | undefined;
}

export type ValueOf<S> = S extends Shape<infer T> ? T : never;

interface Range {
  readonly min?: number;
  readonly max?: number;
}

/** Finite. */
export function number({ min = -Infinity, max = Infinity }: Range = {}): Shape<number> {
  return that((value): value is number => typeof value === 'number' && Number.isFinite(value) && value >= min && value <= max);
}

/** Which a double holds exactly. */
export function integer({ min = -Infinity, max = Infinity }: Range = {}): Shape<number> {
  return that((value): value is number => Number.isSafeInteger(value) && Number(value) >= min && Number(value) <= max);
}

/** @param max characters. */
export function text(max = Infinity): Shape<string> {
  return that((value): value is string => typeof value === 'string' && value.length <= max);
}

export function flag(): Shape<boolean> {
  return that((value): value is boolean => typeof value === 'boolean');
}

export function literal<const T extends string>(...known: readonly T[]): Shape<T> {
  return that((value): value is T => known.includes(value as T));
}

/** @param max elements. */
export function list<T>(element: Shape<T>, max = Infinity): Shape<T[]> {
  return {
    read(value) {
      if (!Array.isArray(value) || value.length > max) return undefined;
      const read: T[] = [];
      for (const each of value) {
        const found = element.read(each);
        if (!found) return undefined;
        read.push(found.value);
      }
      return { value: read };
    },
  };
}

/** Any keys. */
export function record<T>(element: Shape<T>): Shape<Record<string, T>> {
  return {
    read(value) {
      if (!isPlainObject(value)) return undefined;
      const entries: [string, T][] = [];
      for (const [key, each] of Object.entries(value)) {
        const found = element.read(each);
        if (!found) return undefined;
        entries.push([key, found.value]);
      }
      return { value: Object.fromEntries(entries) };
    },
  };
}

/** A field that may be left out. */
export interface OptionalShape<T> extends Shape<T | undefined> {
  readonly isOptional: true;
}

export function optional<T>(shape: Shape<T>): OptionalShape<T> {
  return { isOptional: true, read: (value) => (value === undefined ? { value: undefined } : shape.read(value)) };
}

type Fields = Readonly<Record<string, Shape<unknown>>>;
type OptionalKeys<F extends Fields> = { [K in keyof F]: F[K] extends { readonly isOptional: true } ? K : never }[keyof F];
type Flat<T> = { [K in keyof T]: T[K] };
export type FieldsOf<F extends Fields> = Flat<
  { [K in Exclude<keyof F, OptionalKeys<F>>]: ValueOf<F[K]> } & { [K in OptionalKeys<F>]?: ValueOf<F[K]> }
>;

/** Named fields; others are left out. */
export function object<F extends Fields>(fields: F): Shape<FieldsOf<F>> {
  const shapes = Object.entries(fields);
  return {
    read(value) {
      if (!isPlainObject(value)) return undefined;
      const read: Record<string, unknown> = {};
      for (const [key, shape] of shapes) {
        const given = Object.hasOwn(value, key) ? (value as Record<string, unknown>)[key] : undefined;
        const found = shape.read(given);
        if (!found) return undefined;
        if (found.value !== undefined) read[key] = found.value;
      }
      return { value: read as FieldsOf<F> };
    },
  };
}

/** One of several objects, which their `type` tells apart. */
export function tagged<const Variants extends Readonly<Record<string, Fields>>>(
  variants: Variants,
): Shape<{ [Type in keyof Variants & string]: Flat<{ type: Type } & FieldsOf<Variants[Type]>> }[keyof Variants & string]> {
  const shapes = new Map(Object.entries(variants).map(([type, fields]) => [type, object(fields)]));
  return {
    read(value) {
      if (!isPlainObject(value)) return undefined;
      const { type } = value as { type?: unknown };
      const found = typeof type === 'string' ? shapes.get(type)?.read(value) : undefined;
      return found && ({ value: { type, ...found.value } } as never);
    },
  };
}

function that<T>(fits: (value: unknown) => value is T): Shape<T> {
  return { read: (value) => (fits(value) ? { value } : undefined) };
}
