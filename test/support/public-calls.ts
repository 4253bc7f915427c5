/** The walk over public functions: each is called with every kind of value in the place of each argument, with unknown options,
 *  and with a bare value where options belong. Every wrong argument must be refused, as `usage` or `unsupported`. */
import { expect } from 'vitest';
import { isShoalError } from '../../src/base/errors.ts';

/** One value of every kind. */
const samples = {
  undefined: undefined,
  null: null,
  boolean: true,
  number: 7.5,
  NaN: Number.NaN,
  string: 'text',
  bigint: 5n,
  function: () => undefined,
  list: ['text'],
  object: { nonsense: 1 },
  map: new Map(),
  promise: Promise.resolve(),
};

type Sample = keyof typeof samples;

/** One argument: a valid value, and the other kinds of values that are valid. */
export interface Argument {
  readonly value: unknown;
  readonly takes: readonly Sample[];
  /** Keys of the argument, if it is an object, of which some may be left out. */
  readonly keys?: readonly string[];
}

/** A function and valid arguments. An argument that stands for an object of its own is made anew for each call. */
export interface PublicCall {
  readonly call: (...given: never[]) => unknown;
  readonly given: readonly Argument[];
}

/** The reason why a function need not refuse anything. */
export type Exempt = string;

/** An argument; required, unless `takes` has `undefined`. */
export function argument(value: unknown, ...takes: Sample[]): Argument {
  return { value, takes };
}

/** An argument with a new value for every call. */
export function fresh(make: () => unknown, ...takes: Sample[]): Argument {
  return {
    get value() {
      return make();
    },
    takes,
  };
}

/** An argument of options with these keys. */
export function options(...keys: string[]): Argument {
  return { value: undefined, takes: ['undefined'], keys };
}

/** An object that must be given, with these keys. */
export function fields(value: Readonly<Record<string, unknown>>, ...optional: string[]): Argument {
  return { value, takes: [], keys: [...Object.keys(value), ...optional] };
}

export function call(run: (...given: never[]) => unknown, ...given: Argument[]): PublicCall {
  return { call: run, given };
}

/** Names of the functions that objects of a type have. */
export type MethodsOf<T> = { [K in keyof T & string]: T[K] extends (...given: never[]) => unknown ? K : never }[keyof T & string];

/** A table of everything that can be called on an object: a missing line is an error of types. */
export type CallsOf<T> = { readonly [K in MethodsOf<T>]: PublicCall | Exempt };

/** @returns the number of wrong arguments that were refused. */
export async function refusesEverythingElse(name: string, { call: run, given }: PublicCall): Promise<number> {
  let refused = 0;
  const refuse = async (what: string, position: number, value: unknown): Promise<string> => {
    refused++;
    return messageOfRefusal(
      `${name}: ${what} as argument ${position + 1}`,
      run,
      given.map((each, index) => (index === position ? value : each.value)),
    );
  };
  for (const [position, { value, takes, keys }] of given.entries()) {
    for (const [sample, wrong] of Object.entries(samples)) {
      if (!takes.includes(sample as Sample)) await refuse(sample, position, wrong);
    }
    if (keys === undefined) continue;
    const right = typeof value === 'object' ? value : {};
    expect(await refuse('an unknown key', position, { ...right, nonsense: 1 }), name).toContain("'nonsense'");
    for (const key of keys) {
      const misspelt = `${key}${key.at(-1)}`;
      const message = await refuse(`the key ${misspelt}`, position, { ...right, [misspelt]: 1 });
      expect(message, name).toMatch(new RegExp(`'${misspelt}'; did you mean '${key}'`));
      await refuse(`a symbol for ${key}`, position, { ...right, [key]: Symbol('nonsense') });
    }
  }
  return refused;
}

async function messageOfRefusal(what: string, run: (...given: never[]) => unknown, given: readonly unknown[]): Promise<string> {
  let result: unknown;
  try {
    result = run(...(given as never[]));
    if (result instanceof Promise) result = await result;
  } catch (thrown) {
    expect(thrown, what).toSatisfy(isShoalError);
    const { code, message } = thrown as { code: string; message: string };
    expect(['usage', 'unsupported'], `${what}: ${code}: ${message}`).toContain(code);
    return message;
  }
  throw new Error(`${what} was not refused`);
}

export type Table = Readonly<Record<string, PublicCall | Exempt>>;

/** The exports of a module that can be called or constructed. */
type FunctionsOf<Module> = {
  [K in keyof Module & string]: Module[K] extends ((...given: never[]) => unknown) | (abstract new (...given: never[]) => unknown)
    ? K
    : never;
}[keyof Module & string];

export type Exports<Module> = { readonly [K in FunctionsOf<Module>]: PublicCall | Exempt };

export async function walk(name: string, table: Table): Promise<void> {
  for (const [method, each] of Object.entries(table)) {
    if (typeof each === 'string') continue;
    expect(await refusesEverythingElse(`${name}.${method}`, each), `${name}.${method}`).toBeGreaterThan(0);
  }
}

/** Checks that the table has exactly the functions of the module as it runs; the types check those that they know. */
export function hasAll(module: object, table: Table): void {
  const functions = Object.entries(module).flatMap(([name, value]) => (typeof value === 'function' ? [name] : []));
  expect(Object.keys(table).toSorted()).toEqual(functions.toSorted());
}
