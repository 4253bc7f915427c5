/** `shoal completion`: a script that completes command lines. */
import { Command } from 'commander';
import { ShoalError } from '../../../base/errors.ts';
import { nearestName } from '../../../base/settings/nearest-name.ts';

const examples = `
Examples:
  eval "$(shoal completion bash)"                 in ~/.bashrc
  source <(shoal completion zsh)                  in ~/.zshrc
  shoal completion fish | source                  in ~/.config/fish/config.fish`;

export function completionCommand(setExitCode: (code: number) => void): Command {
  const completion = new Command('completion')
    .summary('complete command lines in bash, zsh or fish')
    .description('Prints a script for the shell, which then completes commands, options and names.')
    .argument('<shell>', 'bash, zsh or fish')
    .addHelpText('after', examples)
    .action(async (name: string) => {
      const { completionScript, shells } = await import('../completion/shell-completion.ts');
      const shell = shells.find((each) => each === name);
      if (shell === undefined) {
        const nearest = nearestName(name, shells);
        const message = `there is no completion for '${name}'${nearest === undefined ? '' : `, did you mean ${nearest}?`}; use ${shells.join(', ')}`;
        throw new ShoalError('usage', message);
      }
      process.stdout.write(completionScript(shell, completion.parent?.commands ?? []));
      setExitCode(0);
    });
  return completion;
}
