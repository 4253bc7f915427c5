/** The script that completes the commands in fish. */
import { quoted } from './quoted.ts';
import type { CompletedCommand, Place } from './completed-command.ts';

export function fishScript(commands: readonly CompletedCommand[]): string {
  const lines = commands.flatMap(linesOf);
  return `# fish completion of shoal: shoal completion fish | source
# Whether this command is being typed and, with a number, its next word is an argument after so many; with a plus, after at least so many.
# options: whether its options may come, and their values.
function __shoal_at -a command position
    set -l words (commandline -opc)
    test "$words[2]" = "$command"; or return 1
    test -n "$position"; or return 0
    set -e words[1..2]
    set -l values __shoal_values_$command
    set -l count 0
    set -l skips 0
    for word in $words
        if test $skips -eq 1
            set skips 0
        else if contains -- $word $$values
            set skips 1
        else if not string match -q -- '-*' $word
            set count (math $count + 1)
        end
    end
    if test $position = options
        test $count -eq 0
        return
    end
    test $skips -eq 0; or return 1
    if string match -q '*+' $position
        test $count -ge (string trim -r -c + $position)
    else
        test $count -eq $position
    end
end
complete -c shoal -f
complete -c shoal -n __fish_use_subcommand -s V -l version -d 'output the version number'
complete -c shoal -n __fish_use_subcommand -s h -l help -d 'display help for command'
complete -c shoal -n __fish_use_subcommand -a help -d 'display help for command'
${lines.join('\n')}
complete -c shoal -n '__shoal_at help 0' -a ${quoted(commands.map(({ name }) => name).join(' '))}
`;
}

function linesOf({ name, about, options, first, rest, passesOn }: CompletedCommand): string[] {
  const valued = options.flatMap(({ flags, takes }) => (takes === 'value' ? flags : []));
  const lines = [
    `complete -c shoal -n __fish_use_subcommand -a ${name} -d ${quoted(about)}`,
    `set -g __shoal_values_${name} ${valued.join(' ')}`,
  ];
  const at = (position: string): string => `complete -c shoal -n ${quoted(`__shoal_at ${name} ${position}`.trim())}`;
  for (const { flags, about: text, takes, value } of options) {
    const spelled = flags.map((flag) => (flag.startsWith('--') ? `-l ${flag.slice(2)}` : `-s ${flag.slice(1)}`)).join(' ');
    // -x: a value follows, which is no file.
    const follows = takes === 'nothing' ? '' : value === 'path' ? (takes === 'value' ? ' -r -F' : ' -F') : ' -x';
    lines.push(`${at(passesOn ? 'options' : '')} ${spelled}${follows}${listOf(value)} -d ${quoted(text)}`);
  }
  for (const [position, place] of [
    ['0', first],
    ['1+', rest],
  ] as const)
    if (place !== undefined) lines.push(`${at(position)}${place === 'path' ? ' -F' : listOf(place)}`);
  return lines;
}

function listOf(place: Place): string {
  return place === undefined || place === 'path' ? '' : ` -a ${quoted(place.join(' '))}`;
}
