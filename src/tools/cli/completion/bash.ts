/** The script that completes the commands in bash. */
import type { CompletedCommand, Place } from './completed-command.ts';

export function bashScript(commands: readonly CompletedCommand[]): string {
  const names = commands.map(({ name }) => name).join(' ');
  return `# bash completion of shoal: eval "$(shoal completion bash)"
_shoal() {
  local current="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD-1]}" position=0 at
  # Words, or / for a path.
  local flags="" values="" value="" first="" rest="" words="" passes=""
  COMPREPLY=()
  # bash takes = for a word of its own.
  if [ "$current" = = ]; then current=""; elif [ "$previous" = = ]; then previous="\${COMP_WORDS[COMP_CWORD-2]}"; fi
  case "\${COMP_WORDS[1]}" in
${commands.map(caseOf).join('\n')}
    help)
      first="${names}" ;;
  esac
  for ((at = 2; at < COMP_CWORD; at++)); do
    case "\${COMP_WORDS[at]}" in
      -*) case " $values " in *" \${COMP_WORDS[at]} "*) ((at++)); if [ "\${COMP_WORDS[at]}" = = ]; then ((at++)); fi ;; esac ;;
      *) ((position++)) ;;
    esac
  done
  if [ "$COMP_CWORD" -eq 1 ]; then words="${names} help --version --help"
  elif [ "$position" -gt 0 ] && [ -n "$passes" ]; then words=$rest
  elif [ -n "$value" ]; then words=$value
  elif [[ " $values " == *" $previous "* ]]; then words=""
  elif [[ "$current" == -* ]]; then words=$flags
  elif [ "$position" -eq 0 ]; then words=$first
  else words=$rest
  fi
  if [ "$words" = / ]; then
    local IFS=$'\\n'
    compopt -o filenames 2> /dev/null
    COMPREPLY=($(compgen -f -- "$current"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}
complete -F _shoal shoal
`;
}

function caseOf({ name, options, first, rest, passesOn }: CompletedCommand): string {
  const flags = options.flatMap((option) => option.flags).join(' ');
  const values = options.flatMap((option) => (option.takes === 'value' ? option.flags : [])).join(' ');
  const guessed = options.filter(({ value }) => value !== undefined);
  // After an optional value's option another option may come.
  const cases = guessed.map(
    ({ flags, takes, value }) =>
      `        ${flags.join('|')}) ${takes === 'value' ? '' : '[[ "$current" == -* ]] || '}value="${wordsOf(value)}" ;;`,
  );
  const inner = cases.length === 0 ? '' : `\n      case "$previous" in\n${cases.join('\n')}\n      esac`;
  return `    ${name})
      flags="${flags}"
      values="${values}"
      first="${wordsOf(first)}" rest="${wordsOf(rest)}" passes="${passesOn ? 'on' : ''}"${inner} ;;`;
}

function wordsOf(place: Place): string {
  return place === undefined ? '' : place === 'path' ? '/' : place.join(' ');
}
