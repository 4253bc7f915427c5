/** Completion as users have it: each shell loads the output of `shoal completion` by the line of its help, and completes typed words. */
import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { missing, ShellHome, ShellSession } from '../fixtures/typed-completion.ts';

/** Files of the folder in which the test types; one folder is called as a command is. */
const files = { 'train.ts': '', 'two words.json': '', 'bench/x': '' };

/** Words that are offered for the last word of each line. Shells may end a folder's name with a slash, and escape blanks. */
const cases: readonly (readonly [line: string, offered: readonly string[]])[] = [
  ['shoal be', ['bench']],
  ['shoal r', ['run', 'report']],
  ['shoal help ru', ['run']],
  ['shoal completion ', ['bash', 'zsh', 'fish']],
  ['shoal bench all-', ['all-reduce', 'all-gather', 'all-gather-v', 'all-to-all', 'all-to-all-v']],
  ['shoal plan ga', ['gather']],
  ['shoal trace m', ['merge']],
  ['shoal run --nproc', ['--nproc-per-node']],
  ['shoal run -n 2 --max', ['--max-restarts']],
  ['shoal bench all-reduce --da', ['--datatype']],
  ['shoal bench --touch ', ['each', 'once']],
  ['shoal bench --touch=', ['each', 'once']],
  ['shoal bench all-reduce -o b', ['band', 'bor', 'bxor']],
  ['shoal bench -d floa', ['float']],
  ['shoal tune --scheduler --model v', ['vgg16']],
  ['shoal tune --exchange=p', ['parameter-server']],
  ['shoal simulate --preset gpu-cluster-', ['gpu-cluster-device']],
  ['shoal plan --algorithm halv', ['halving-doubling']],
  ['shoal graph --policy d', ['dest-wave']],
  // Paths are offered where there are paths, and nowhere else.
  ['shoal run tr', ['train.ts']],
  ['shoal run -n 2 tr', ['train.ts']],
  ['shoal run --nproc-per-node=2 tr', ['train.ts']],
  ['shoal bench all-reduce --json tw', ['two words.json']],
  ['shoal report be', ['bench']],
  ['shoal bench --iters t', []],
  ['shoal bench all-reduce t', []],
  // Arguments behind the script are the script's.
  ['shoal run train.ts --nproc', []],
  ['shoal run train.ts tr', ['train.ts']],
  ['shoal run train.ts bench tw', ['two words.json']],
];

function expectOffered(offered: ReadonlyMap<string, readonly string[]>): void {
  const plain = (words: readonly string[]): string[] =>
    words
      .map((word) =>
        word
          .replace(/^--[\w-]+=/, '')
          .replaceAll('\\ ', ' ')
          .replace(/\/$/, ''),
      )
      .sort();
  expect(Object.fromEntries([...offered].map(([line, words]) => [line, plain(words)]))).toEqual(
    Object.fromEntries(cases.map(([line, words]) => [line, [...words].sort()])),
  );
}

describe('bash', () => {
  it('loads it in .bashrc, and completes', async (context) => {
    const reason = missing('bash', 'script');
    if (reason !== undefined) context.skip(reason);
    using home = new ShellHome({
      ...files,
      '.bashrc': `eval "$(shoal completion bash)"
marks=0
mark() { echo "<mark $marks>"; ((marks++)); }
shoal() { printf '%s\\n' "$@" > ~/offered; mark; }
bind '"\\C-x": insert-completions'
PS1='$ '
mark\n`,
    });
    await using session = new ShellSession('bash', home);
    expect(await session.started()).not.toMatch(/not found|error|syntax/i);
    const offered = new Map<string, readonly string[]>();
    for (const [line] of cases) {
      const typed = line.split(' ').slice(1);
      const words = await session.type(`${line}\u0018\r`);
      const last = words.slice(typed.length - 1);
      offered.set(line, last.length === 1 && last[0] === typed.at(-1) ? [] : last);
    }
    expectOffered(offered);
  });
});

describe('zsh', () => {
  const capture = `
compadd() {
  if [[ \${@[1,(i)(-|--)]} != *-[a-zA-Z]#[OAD]* ]]; then
    local -a offered
    builtin compadd -O offered "$@"
    (( $#offered )) && print -rl -- $offered >> ~/offered
  fi
  builtin compadd "$@"
}
marks=0
mark() { print "<mark $((marks++))>" }
next() { BUFFER=mark; zle accept-line }
zle -N next
# Alone, and not the beginning of others.
bindkey -rp '^X'
bindkey '^X' next
unsetopt auto_list beep
# Keys after a TAB are no paste.
zstyle ':completion:*' insert-tab false
setopt extended_glob
PROMPT='%% '
mark\n`;
  it.for([
    ['in .zshrc', { '.zshrc': `source <(shoal completion zsh)\n${capture}` }],
    ['in .zshrc, after compinit', { '.zshrc': `autoload -Uz compinit && compinit -i\nsource <(shoal completion zsh)\n${capture}` }],
    [
      'as a file of fpath',
      {
        '.zshrc': `shoal completion zsh > ~/functions/_shoal\nfpath=(~/functions $fpath)\nautoload -Uz compinit && compinit -i\n${capture}`,
        'functions/README': '',
      },
    ],
  ] as const)('loads it %s, and completes', async ([, configuration], context) => {
    const reason = missing('zsh', 'script');
    if (reason !== undefined) context.skip(reason);
    using home = new ShellHome({ ...files, ...configuration });
    await using session = new ShellSession('zsh', home);
    expect(await session.started()).not.toMatch(/not found|error|bad/i);
    const offered = new Map<string, readonly string[]>();
    for (const [line] of cases) offered.set(line, await session.type(`${line}\t\u0018`));
    expectOffered(offered);
  });
});

describe('fish', () => {
  it('loads it in config.fish, and completes', (context) => {
    const reason = missing('fish');
    if (reason !== undefined) context.skip(reason);
    using home = new ShellHome({ ...files, '.config/fish/config.fish': 'shoal completion fish | source\n' });
    const program = 'for line in $argv; echo "= $line"; complete -C $line; end';
    const { stdout, stderr } = spawnSync('fish', ['-c', program, ...cases.map(([line]) => line)], {
      cwd: home.path,
      env: home.environment,
      encoding: 'utf8',
    });
    expect(stderr).toBe('');
    const offered = new Map<string, string[]>();
    for (const said of stdout.split('\n').filter((each) => each !== '')) {
      if (said.startsWith('= ')) offered.set(said.slice(2), []);
      else [...offered.values()].at(-1)?.push(said.split('\t')[0]);
    }
    expectOffered(offered);
  });
});
