/** `shoal report`: what a run left behind, as one page. */
import { Command } from 'commander';

const examples = `
Examples:
  shoal run --report -n 4 train.ts       runs a script and writes runs/<time>/report.html
  shoal report runs/2026-11-20T12-00-00  writes the page of a run that is over

The page is one file that needs no network: timeline of ranks and threads, who waited for whom, operations, and after a failure its cause.`;

export function reportCommand(setExitCode: (code: number) => void): Command {
  return new Command('report')
    .summary('one page about a run: timeline, waits, operations, failures')
    .description('Writes a self-contained HTML page from the traces and flight records in a folder.')
    .argument('<folder>', 'what shoal run --report, or SHOAL_TRACE and SHOAL_FLIGHT_RECORDER_DIR, named')
    .option('-o, --output <file>', 'where to write; default: <folder>/report.html')
    .option('--json', 'the data of the page on standard output instead, for programs')
    .addHelpText('after', examples)
    .action(async (folder: string, flags: { output?: string; json?: true }) => {
      setExitCode(0);
      if (flags.json === true) {
        const [{ buildReport }, { readRunFolder }] = await Promise.all([
          import('../../report/build-report.ts'),
          import('../../report/read-folder.ts'),
        ]);
        process.stdout.write(`${JSON.stringify(buildReport(folder, readRunFolder(folder)))}\n`);
        return;
      }
      const { writeReport } = await import('../../report/write-report.ts');
      process.stdout.write(`${writeReport(folder, flags.output)}\n`);
    });
}
