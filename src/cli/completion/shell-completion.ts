/** Completion scripts for shells, made of the commands as they are declared. They are static: completing starts no process. */
import type { KnownCommand } from '../habits.ts';

/** What is read of commander's commands. */
export interface CompletedCommand extends KnownCommand {
  readonly summary: () => string;
  readonly options: readonly (KnownCommand['options'][number] & {
    readonly description: string;
    readonly argChoices?: readonly string[];
  })[];
  readonly commands: readonly { readonly name: () => string }[];
}

export const shells = ['bash', 'zsh', 'fish'] as const;
export type Shell = (typeof shells)[number];

/** @param words of a command: what its first argument may be, beside files. */
export function completionScript(
  shell: Shell,
  commands: readonly CompletedCommand[],
  words: (command: string) => readonly string[],
): string {
  switch (shell) {
    case 'bash':
      return bashScript(commands, words);
    case 'zsh':
      return zshScript(commands, words);
    case 'fish':
      return fishScript(commands, words);
  }
}

const helpFlags = ['-h', '--help'];

function flagsOf({ options }: CompletedCommand): string[] {
  return [...options.flatMap(({ short, long }) => [short, long].filter((flag) => flag !== undefined)), ...helpFlags];
}

function firstWords(command: CompletedCommand, words: (command: string) => readonly string[]): string[] {
  return [...command.commands.map((each) => each.name()), ...words(command.name())];
}

function bashScript(commands: readonly CompletedCommand[], words: (command: string) => readonly string[]): string {
  const cases = commands.map(
    (command) =>
      `    ${command.name()})\n      flags="${flagsOf(command).join(' ')}"\n      values="${valuedFlags(command).join(' ')}"\n      words="${firstWords(command, words).join(' ')}" ;;`,
  );
  return `# bash completion of shoal: eval "$(shoal completion bash)"
_shoal() {
  local current="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD-1]}" flags="" values="" words="" at
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "${[...commands.map((each) => each.name()), 'help', '--version', ...helpFlags].join(' ')}" -- "$current"))
    return
  fi
  case "\${COMP_WORDS[1]}" in
${cases.join('\n')}
    help)
      words="${commands.map((each) => each.name()).join(' ')}" ;;
  esac
  if [ "\${COMP_WORDS[1]}" = run ]; then
    # What follows the script is the script's.
    for ((at = 2; at < COMP_CWORD; at++)); do
      case "\${COMP_WORDS[at]}" in
        -*) case " $values " in *" \${COMP_WORDS[at]} "*) ((at++)) ;; esac ;;
        *) COMPREPLY=($(compgen -f -- "$current")); return ;;
      esac
    done
  fi
  case " $values " in *" $previous "*) COMPREPLY=($(compgen -f -- "$current")); return ;; esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current")) ;;
  esac
}
complete -o filenames -F _shoal shoal
`;
}

/** Those that a value follows. */
function valuedFlags({ options }: CompletedCommand): string[] {
  return options.filter(({ required }) => required).flatMap(({ short, long }) => [short, long].filter((flag) => flag !== undefined));
}

function zshScript(commands: readonly CompletedCommand[], words: (command: string) => readonly string[]): string {
  const described = commands.map((each) => `    ${quoted(`${each.name()}:${each.summary()}`)}`);
  const cases = commands.map((command) => {
    const specs = command.options.map(({ short, long, description, required }) => {
      const flags = [short, long].filter((flag) => flag !== undefined);
      const text = description.replaceAll('[', '(').replaceAll(']', ')').replaceAll(':', ' -');
      const spec = flags.map((flag) => `${flag}${required && flag.startsWith('--') ? '=' : ''}`);
      const value = required ? ':value:_files' : '';
      return spec.map((flag) => `        ${quoted(`${flag}[${text}]${value}`)}`).join(' \\\n');
    });
    const first = firstWords(command, words);
    const argument = first.length === 0 ? '*:file:_files' : `1:what:(${first.join(' ')})`;
    const rest = first.length === 0 ? [] : [`        '*:file:_files'`];
    return `      ${command.name()})\n      _arguments \\\n${[...specs, `        ${quoted(argument)}`, ...rest].join(' \\\n')} ;;`;
  });
  return `#compdef shoal
# zsh completion of shoal: source <(shoal completion zsh)
_shoal() {
  local -a commands
  commands=(
${described.join('\n')}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
${cases.join('\n')}
  esac
}
compdef _shoal shoal
`;
}

function fishScript(commands: readonly CompletedCommand[], words: (command: string) => readonly string[]): string {
  const names = commands.map((each) => each.name());
  const lines = ['# fish completion of shoal: shoal completion fish | source'];
  for (const command of commands) {
    lines.push(`complete -c shoal -f -n ${quoted('__fish_use_subcommand')} -a ${command.name()} -d ${quoted(command.summary())}`);
    const condition = quoted(`__fish_seen_subcommand_from ${command.name()}`);
    for (const word of firstWords(command, words)) lines.push(`complete -c shoal -n ${condition} -a ${quoted(word)}`);
    for (const { short, long, description, required } of command.options) {
      const flags = [short?.length === 2 ? `-s ${short.slice(1)}` : '', long === undefined ? '' : `-l ${long.slice(2)}`].filter(
        (flag) => flag !== '',
      );
      lines.push(`complete -c shoal -n ${condition} ${flags.join(' ')}${required ? ' -r' : ''} -d ${quoted(description)}`);
    }
  }
  lines.push(`complete -c shoal -f -n ${quoted(`__fish_seen_subcommand_from help`)} -a ${quoted(names.join(' '))}`);
  return `${lines.join('\n')}\n`;
}

/** For a shell, as one word. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
