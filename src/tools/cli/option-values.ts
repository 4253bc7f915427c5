/** Texts of options as the values they stand for, for commander. Whoever needs a tighter bound checks it where it is known
 *  why. */
import { InvalidArgumentError, Option } from 'commander';
import { bytesSyntax, formatBytes, parseBytes } from '../../base/settings/quantity.ts';

export function natural(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('Expected a whole number from 0.');
  return Number(text);
}

export function positive(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new InvalidArgumentError('Expected a whole number from 1.');
  return Number(text);
}

/** Seconds between two looks. */
export function watchInterval(text: string): number {
  const seconds = Number(text);
  if (!/^[\d.]+$/.test(text) || !(seconds >= 0.1 && seconds <= 86_400)) throw new InvalidArgumentError('Expected seconds, from 0.1.');
  return seconds;
}

/** Bytes. */
export function size(text: string): number {
  const bytes = parseBytes(text);
  if (bytes === undefined) throw new InvalidArgumentError(`Expected ${bytesSyntax}.`);
  return bytes;
}

/** An option in bytes whose default is shown as people write it. */
export function sizeOption(flags: string, about: string, fallback: number, parse: (text: string) => number = size): Option {
  return new Option(flags, about).argParser(parse).default(fallback, formatBytes(fallback));
}
