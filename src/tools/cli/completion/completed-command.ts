/** What completion scripts need of a command, read out of its declaration. */
import type { KnownCommand } from '../habits.ts';
import { knownWords } from './known-words.ts';

/** What is read of commander's commands. */
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

/** What a word may be: one of a list, a path, or what nobody can guess: undefined. */
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
  /** What follows the first argument is somebody else's, options too. */
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
