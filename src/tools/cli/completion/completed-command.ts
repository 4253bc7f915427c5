/** The facts about a command that completion scripts need, read out of its declaration. */
import type { KnownCommand } from '../habits.ts';
import { knownWords } from './known-words.ts';

/** The part of commander's commands that is read here. */
export interface DeclaredCommand extends KnownCommand {
  readonly summary: () => string;
  readonly options: readonly (KnownCommand['options'][number] & {
    readonly flags: string;
    readonly description: string;
    readonly argChoices?: readonly string[];
  })[];
  readonly registeredArguments: readonly { readonly name: () => string }[];
  readonly commands: readonly Pick<DeclaredCommand, 'name' | 'registeredArguments'>[];
}

/** The words that may stand in a place: one of a list, a path, or anything (undefined). */
export type Place = readonly string[] | 'path' | undefined;

export interface CompletedOption {
  /** `-n`, `--ranks`. */
  readonly flags: readonly string[];
  readonly about: string;
  /** Whether a value follows: always, if somebody gives one, or never. */
  readonly takes: 'value' | 'optional value' | 'nothing';
  readonly value: Place;
  readonly isRepeated: boolean;
}

export interface CompletedCommand {
  readonly name: string;
  readonly about: string;
  readonly options: readonly CompletedOption[];
  /** The first argument, and those after it. */
  readonly first: Place;
  readonly rest: Place;
  /** Words after the first argument, options too, belong to another program. */
  readonly passesOn: boolean;
}

export function completed(command: DeclaredCommand): CompletedCommand {
  const name = command.name();
  const options = command.options.map((option): CompletedOption => {
    const { short, long = '', flags, description, argChoices } = option;
    const [, bracket, placeholder = ''] = /([<[])(\w+)/.exec(flags) ?? [];
    return {
      flags: [short, long].filter((flag) => flag !== undefined && flag !== '') as string[],
      about: description,
      takes: bracket === undefined ? 'nothing' : bracket === '<' ? 'value' : 'optional value',
      value: argChoices ?? placeOf(placeholder, knownWords(name, long)),
      isRepeated: /may be repeated/.test(description),
    };
  });
  const help: CompletedOption = {
    flags: ['-h', '--help'],
    about: 'display help for command',
    takes: 'nothing',
    value: undefined,
    isRepeated: false,
  };
  const [parts, passesOn] = [command.commands.filter((each) => each.name() !== 'help'), name === 'run'];
  const names = [...parts.map((each) => each.name()), ...knownWords(name)];
  const argument = placeOf(command.registeredArguments[0]?.name(), names);
  const rest = passesOn ? 'path' : placeOf(parts[0]?.registeredArguments[0]?.name(), []);
  return { name, about: command.summary(), options: [...options, help], first: argument, rest, passesOn };
}

/** @param placeholder as declared: `<file>`. */
function placeOf(placeholder: string | undefined, words: readonly string[]): Place {
  if (words.length > 0) return words;
  return /^(file|folder|path|script)$/.test(placeholder ?? '') ? 'path' : undefined;
}
