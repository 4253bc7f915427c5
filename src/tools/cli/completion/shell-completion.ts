/** Completion scripts for shells, made of the commands as they are declared. They are static: completing starts no process. */
import { bashScript } from './bash.ts';
import { completed, type CompletedCommand, type DeclaredCommand } from './completed-command.ts';
import { fishScript } from './fish.ts';
import { zshScript } from './zsh.ts';

export const shells = ['bash', 'zsh', 'fish'] as const;
export type Shell = (typeof shells)[number];

const scripts: Readonly<Record<Shell, (commands: readonly CompletedCommand[]) => string>> = {
  bash: bashScript,
  zsh: zshScript,
  fish: fishScript,
};

export function completionScript(shell: Shell, commands: readonly DeclaredCommand[]): string {
  return scripts[shell](commands.map(completed));
}
