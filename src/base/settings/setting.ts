/** One setting: its name, type, default, range and meaning, and the text that stands for a value of it in the environment. The
 *  settings that there are, and their effects, are not known here. */
import { ShoalError } from '../errors.ts';
import { bytesSyntax, formatBytes, millisecondsSyntax, parseBytes, parseMilliseconds } from './quantity.ts';

export type SettingKind = 'integer' | 'bytes' | 'milliseconds' | 'flag' | 'choice' | 'text' | 'list';

export type SettingSection =
  | 'collectives'
  | 'network'
  | 'memory'
  | 'training'
  | 'scheduling'
  | 'parameter server'
  | 'diagnostics'
  | 'execution';

export type SettingValue = number | boolean | string | readonly string[];

/** Another name that a setting is read from, for users of another system. */
export interface SettingAlias {
  readonly name: string;
  /** Turns the other system's spelling into ours. Default: unchanged. */
  readonly translate?: (text: string) => string;
}

interface Limits {
  /** Inclusive range of numbers. */
  readonly least?: number;
  readonly most?: number;
  /** Factor that numbers must be multiples of. Default: 1. */
  readonly multipleOf?: number;
  /** Allows 0 below `least`, with a meaning of its own. */
  readonly orZero?: true;
}

/** One setting. `V` is the type of its value. */
export interface SettingDefinition<V extends SettingValue = SettingValue> extends Limits {
  readonly name: `SHOAL_${string}`;
  readonly kind: SettingKind;
  readonly section: SettingSection;
  readonly fallback: V;
  /** One line, for people. */
  readonly description: string;
  /** Further names, read in order, when the setting's own name is not set. */
  readonly aliases: readonly SettingAlias[];
  /** Allowed values, for kind `choice` only. */
  readonly choices?: readonly string[];
  /** The value is never printed. */
  readonly sensitive: boolean;
}

// ── definitions ─────────────────────────────────────────────────────────────────────────────────────────────────────

type Extras = Limits & Partial<Pick<SettingDefinition, 'aliases' | 'choices' | 'sensitive'>>;
type Name = SettingDefinition['name'];
export type Unplaced<V extends SettingValue> = Omit<SettingDefinition<V>, 'section'>;

/** The settings of one section. */
export function section<const D extends Readonly<Record<string, Unplaced<SettingValue>>>>(
  name: SettingSection,
  definitions: D,
): { readonly [K in keyof D]: D[K] & { readonly section: SettingSection } } {
  const placed = Object.entries(definitions).map(([key, definition]) => [key, { ...definition, section: name }]);
  return Object.fromEntries(placed) as { [K in keyof D]: D[K] & { section: SettingSection } };
}

function define<V extends SettingValue>(kind: SettingKind, name: Name, fallback: V, description: string, extras: Extras): Unplaced<V> {
  return { name, kind, fallback, description, aliases: [], sensitive: false, ...extras };
}

export const integer = (name: Name, fallback: number, description: string, extras: Extras = {}): Unplaced<number> =>
  define('integer', name, fallback, description, { least: 0, ...extras });

export const bytes = (name: Name, fallback: number, description: string, extras: Extras = {}): Unplaced<number> =>
  define('bytes', name, fallback, description, { least: 0, ...extras });

export const milliseconds = (name: Name, fallback: number, description: string, extras: Extras = {}): Unplaced<number> =>
  define('milliseconds', name, fallback, description, { least: 1, most: 0x7fffffff, ...extras });

export const flag = (name: Name, fallback: boolean, description: string, extras: Extras = {}): Unplaced<boolean> =>
  define('flag', name, fallback, description, extras);

/** Its default is empty. */
export const text = (name: Name, description: string, extras: Extras = {}): Unplaced<string> =>
  define('text', name, '', description, extras);

/** Its default is empty. */
export const list = (name: Name, description: string, extras: Extras = {}): Unplaced<readonly string[]> =>
  define<readonly string[]>('list', name, [], description, extras);

export const choice = <const C extends string>(
  name: Name,
  choices: readonly C[],
  fallback: NoInfer<C>,
  description: string,
  extras: Extras = {},
): Unplaced<C> => define('choice', name, fallback, description, { choices, ...extras });

// ── values as text ──────────────────────────────────────────────────────────────────────────────────────────────────

/** A value as it would be written in the environment; `(set)` for a sensitive one. */
export function formatSetting(definition: SettingDefinition, value: SettingValue): string {
  if (definition.sensitive && value !== '') return '(set)';
  if (definition.kind === 'bytes') return formatBytes(value as number);
  if (definition.kind === 'flag') return value === true ? '1' : '0';
  return typeof value === 'object' ? value.join(',') : String(value);
}

/** The values that a setting accepts, in words. */
export function describeAccepted(definition: SettingDefinition): string {
  const { kind } = definition;
  if (kind === 'flag') return '1, true, yes, on or 0, false, no, off';
  if (kind === 'choice') return (definition.choices ?? []).join(' | ');
  if (kind === 'list') return 'a comma-separated list';
  if (kind === 'text') return 'text';
  const syntax = kind === 'integer' ? 'a whole number' : kind === 'bytes' ? bytesSyntax : millisecondsSyntax;
  return `${syntax}${describeRange(definition)}`;
}

function describeRange({ kind, least, most, multipleOf, orZero }: SettingDefinition): string {
  const show = (value: number): string => (kind === 'bytes' ? formatBytes(value) : String(value));
  if (least === undefined) return '';
  const range = `${orZero ? ', 0 or' : ','} ${most === undefined ? `at least ${show(least)}` : `from ${show(least)} to ${show(most)}`}`;
  return multipleOf === undefined ? range : `${range}, a multiple of ${multipleOf}`;
}

/** Origin of a value: the default, the setting's own variable, or another system's. */
export interface SettingSource {
  readonly from: 'default' | 'environment' | 'alias';
  /** The variable that was read; the setting's own name for defaults. */
  readonly variable: string;
}

/** The value that the environment asks for. @throws ShoalError `config`. */
export function resolveSetting(
  definition: SettingDefinition,
  environment: Readonly<Record<string, string | undefined>>,
): { value: SettingValue; source: SettingSource } {
  const own = environment[definition.name];
  if (own) return { value: parseSetting(definition, own, definition.name), source: { from: 'environment', variable: definition.name } };
  for (const { name, translate } of definition.aliases) {
    const other = environment[name];
    if (!other) continue;
    const value = parseSetting(definition, translate === undefined ? other : translate(other), name, other);
    return { value, source: { from: 'alias', variable: name } };
  }
  return { value: definition.fallback, source: { from: 'default', variable: definition.name } };
}

/** @param written text in the environment; `text` is its meaning here. */
function parseSetting(definition: SettingDefinition, text: string, variable: string, written = text): SettingValue {
  const value = parseValue(definition, text.trim());
  if (value !== undefined) return value;
  const shown = definition.sensitive ? 'its value' : JSON.stringify(written);
  throw new ShoalError('config', `${variable}: ${shown} is not valid; expected ${describeAccepted(definition)}`);
}

function parseValue(definition: SettingDefinition, written: string): SettingValue | undefined {
  switch (definition.kind) {
    case 'flag':
      return parseFlag(written);
    case 'choice':
      return definition.choices?.find((one) => one === written.toLowerCase());
    case 'list':
      return itemsOf(written);
    case 'text':
      return written;
    case 'integer':
      return inRange(definition, /^\d+$/.test(written) ? Number(written) : undefined);
    case 'bytes':
      return inRange(definition, parseBytes(written));
    case 'milliseconds':
      return inRange(definition, parseMilliseconds(written));
  }
}

function inRange(
  { least = 0, most = Number.MAX_SAFE_INTEGER, multipleOf = 1, orZero }: SettingDefinition,
  value: number | undefined,
): number | undefined {
  if (value === 0 && orZero) return value;
  return value !== undefined && value >= least && value <= most && value % multipleOf === 0 ? value : undefined;
}

export function parseFlag(written: string): boolean | undefined {
  if (/^(1|true|yes|on)$/i.test(written)) return true;
  return /^(0|false|no|off)$/i.test(written) ? false : undefined;
}

/** The items of a comma-separated list. */
export function itemsOf(written: string): string[] {
  return written
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');
}
