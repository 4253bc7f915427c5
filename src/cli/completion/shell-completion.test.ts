/** Completion as shells do it: bash runs what it is given; of the others only what is written is looked at where they are not installed. */
import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { collectiveNames } from '../../bench/collective.ts';
import { commands } from '../commands.ts';
import { completionScript, shells, type Shell } from './shell-completion.ts';

const known = commands.map((add) => add(() => undefined));
const words = (command: string): readonly string[] => (command === 'bench' ? collectiveNames : []);
const scriptOf = (shell: Shell): string => completionScript(shell, known, words);

/** What bash offers for the last word. */
function offered(...line: string[]): string[] {
  const program = `${scriptOf('bash')}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shoal; printf '%s\\n' "\${COMPREPLY[@]}"`;
  const { stdout, stderr, status } = spawnSync('bash', ['-c', program, 'bash', 'shoal', ...line], {
    encoding: 'utf8',
    cwd: import.meta.dirname,
  });
  expect({ stderr, status }).toEqual({ stderr: '', status: 0 });
  return stdout.split('\n').filter((word) => word !== '');
}

describe('bash completes', () => {
  it.each([
    [['be'], ['bench']],
    [['r'], ['run', 'report']],
    [['run', '--nproc'], ['--nproc-per-node']],
    [['run', '--max'], ['--max-restarts']],
    [
      ['bench', 'all-'],
      ['all-reduce', 'all-gather', 'all-to-all'],
    ],
    [['trace', 'm'], ['merge']],
    [['help', 'ru'], ['run']],
    [
      ['run', '-n', '2', 'shell-completion.t'],
      ['shell-completion.ts', 'shell-completion.test.ts'],
    ],
    [['run', 'train.ts', '--nproc'], []],
    [['bench', '--json', 'shell-completion.test'], ['shell-completion.test.ts']],
  ])('%j', (line, expected) => expect(offered(...line).sort()).toEqual([...expected].sort()));
});

it.for(shells)('the script for %s has every command and its options, in its own syntax', (shell, context) => {
  const script = scriptOf(shell);
  for (const command of known) {
    expect(script).toContain(command.name());
    for (const { long = '' } of command.options) expect(script).toContain(shell === 'fish' ? `-l ${long.slice(2)}` : long);
  }
  const { status, stderr, error } = spawnSync(shell, ['-n'], { input: script, encoding: 'utf8' });
  if (error) context.skip(`${shell} is not installed: its syntax was not checked`);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
});
