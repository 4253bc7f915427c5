/** `shoal info`: what this machine offers and what is in force, for people or as JSON. */
import { Command } from 'commander';

export function infoCommand(setExitCode: (code: number) => void): Command {
  return new Command('info')
    .summary('show what ranks on this machine run on')
    .description(
      'Shows this host, its processors, the native addon, data planes and why some are not available, interfaces, and the settings in force.',
    )
    .option('--json', 'as JSON, for programs')
    .action(async (flags: { json?: true }) => {
      const [{ gatherInfo }, { formatInfo }] = await Promise.all([import('../info/gather-info.ts'), import('../info/format-info.ts')]);
      const info = gatherInfo(process.env);
      process.stdout.write(flags.json === true ? `${JSON.stringify(info, null, 2)}\n` : formatInfo(info));
      setExitCode(0);
    });
}
