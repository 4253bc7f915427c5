/** The script that completes the commands in zsh. */
import { quoted } from './quoted.ts';
import type { CompletedCommand, CompletedOption, Place } from './completed-command.ts';

/** It serves in `.zshrc`, and as a file `_shoal` in a folder of `fpath`. */
export function zshScript(commands: readonly CompletedCommand[]): string {
  return `#compdef shoal
# zsh completion of shoal: source <(shoal completion zsh)
_shoal() {
  local -a commands
  commands=(
${commands.map(({ name, about }) => `    ${quoted(`${name}:${about}`)}`).join('\n')}
    'help:display help for command'
  )
  if (( CURRENT == 2 )); then
    if [[ $words[2] == -* ]]; then
      _arguments '(-V --version)'{-V,--version}'[output the version number]' '(-h --help)'{-h,--help}'[display help for command]'
    else
      _describe -t commands command commands
    fi
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
${commands.map(caseOf).join('\n')}
      help)
      (( CURRENT == 2 )) && _describe -t commands command commands ;;
  esac
}
if [[ $funcstack[1] == _shoal ]]; then
  _shoal "$@"
else
  # Without a configuration zsh has not loaded its completion yet.
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
  compdef _shoal shoal
fi
`;
}

function caseOf({ name, options, first, rest, passesOn }: CompletedCommand): string {
  const positions = [
    ...(first === undefined ? [] : [quoted(`1:argument:${actionOf(first)}`)]),
    ...(rest === undefined ? [] : [quoted(`*:argument:${actionOf(rest)}`)]),
  ];
  const lines = [...options.flatMap(specsOf), ...positions].map((line) => `        ${line}`);
  return `      ${name})\n      _arguments -s${passesOn ? ` -A '-*'` : ''} \\\n${lines.join(' \\\n')} ;;`;
}

/** One for each spelling, which excludes the others. */
function specsOf({ flags, about, takes, value, isRepeated }: CompletedOption): string[] {
  const text = about.replaceAll('[', '(').replaceAll(']', ')').replaceAll(':', ' -');
  const before = isRepeated ? '*' : `(${flags.join(' ')})`;
  const after = takes === 'nothing' ? '' : `${takes === 'value' ? ':' : '::'}value:${actionOf(value)}`;
  const joint = (flag: string): string => (takes === 'nothing' ? '' : flag.startsWith('--') ? '=' : '+');
  return flags.map((flag) => quoted(`${before}${flag}${joint(flag)}[${text}]${after}`));
}

function actionOf(place: Place): string {
  if (place === undefined) return ' ';
  return place === 'path' ? '_files' : `(${place.join(' ')})`;
}
