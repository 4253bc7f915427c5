/** Texts of options as the values they stand for, for commander. Whoever needs a tighter bound checks it where it is known
 *  why. */
import { InvalidArgumentError, Option } from 'commander';
import { bytesSyntax, formatBytes, parseBytes } from '../../base/settings/quantity.ts';

/** Reads values of an option: those for which `read` is not undefined. @param expected them, for the message: `a whole number`. */
export function valueOf<T>(expected: string, read: (text: string) => T | undefined): (text: string) => T {
  return (text) => {
    const value = read(text);
    if (value === undefined) throw new InvalidArgumentError(`Expected ${expected}.`);
    return value;
  };
}

/** Reads numbers that are written like `pattern` and lie within the bounds. */
export function numberOf(expected: string, pattern: RegExp, [least, most] = [0, Infinity]): (text: string) => number {
  return valueOf(expected, (text) => (pattern.test(text) && Number(text) >= least && Number(text) <= most ? Number(text) : undefined));
}

export const natural = numberOf('a whole number from 0', /^\d{1,9}$/);
export const positive = numberOf('a whole number from 1', /^[1-9]\d{0,8}$/);

/** Bytes. */
export const size = valueOf(bytesSyntax, parseBytes);

/** An option in bytes whose default is shown as people write it. */
export function sizeOption(flags: string, about: string, fallback: number, parse: (text: string) => number = size): Option {
  return new Option(flags, about).argParser(parse).default(fallback, formatBytes(fallback));
}

/** Values of an option that may be repeated. */
export function collect(text: string, before: readonly string[]): readonly string[] {
  return [...before, text];
}
