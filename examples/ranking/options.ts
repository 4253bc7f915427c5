/** Options of a script. What is wrong with them is one line, and exit code 2. */
import { parseArgs, type ParseArgsConfig } from 'node:util';

type Options = NonNullable<ParseArgsConfig['options']>;
type Values<O extends Options> = ReturnType<typeof parseArgs<{ options: O }>>['values'];

/** @param least of options that are whole numbers, their least values. */
export function readOptions<const O extends Options, N extends keyof O & string>(
  options: O,
  least: Readonly<Record<N, number>>,
): { readonly values: Values<O>; readonly numbers: Readonly<Record<N, number>> } {
  try {
    const { values } = parseArgs({ options });
    const names = Object.keys(least) as N[];
    const read = names.map((name) => [name, wholeNumber(name, String((values as Readonly<Record<string, unknown>>)[name]), least[name])]);
    return { values, numbers: Object.fromEntries(read) as Record<N, number> };
  } catch (thrown) {
    refuse((thrown as Error).message);
  }
}

/** One line, and exit code 2. */
export function refuse(why: string): never {
  console.error(why);
  process.exit(2);
}

/** @throws Error that names the option. */
function wholeNumber(name: string, text: string, least: number): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && Number.isSafeInteger(value) && value >= least) return value;
  throw new Error(`--${name} is a whole number from ${least}, not '${text}'`);
}
