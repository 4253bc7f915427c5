/** `shoal trace merge`: the ranks' trace files of one run as one file, on one clock. */
import { Command } from 'commander';
import { ShoalError } from '../../../base/errors.ts';
import { rankTraceName } from '../../../trace/chrome.ts';

/** Names of trace files: those of processes or, where there are none, of the workers of a scheduled store. */
const fileNames = [rankTraceName, /^trace-worker-\d+\.json$/];
const mergedName = 'trace.json';

export function traceCommand(setExitCode: (code: number) => void): Command {
  const trace = new Command('trace').summary('work with the timelines that SHOAL_TRACE leaves').description('Works with trace files.');
  trace
    .command('merge')
    .description(`Merges the files trace-rank-<n>.json of a folder into one that https://ui.perfetto.dev opens, all on rank 0's clock.`)
    .argument('<folder>', 'the folder SHOAL_TRACE named')
    .option('-o, --output <file>', `where to write; default: <folder>/${mergedName}`)
    .option('--json', 'what was merged as JSON, for programs')
    .exitOverride()
    .showHelpAfterError('(shoal trace merge --help lists what there is)')
    .action(async (folder: string, flags: { output?: string; json?: true }) => {
      const { join } = await import('node:path');
      const { mergeTraceFiles } = await import('../../../trace/merge.ts');
      const files = await rankFiles(folder);
      const target = flags.output ?? join(folder, mergedName);
      mergeTraceFiles(
        files.map((name) => join(folder, name)),
        target,
      );
      // A rank may have left two.
      const ranks = new Set(files.map((name) => /\d+/.exec(name)?.[0])).size;
      if (flags.json === true) process.stdout.write(`${JSON.stringify({ version: 1, ranks, output: target })}\n`);
      else process.stdout.write(`merged ${ranks} ${ranks === 1 ? 'rank' : 'ranks'} into ${target}\n`);
      setExitCode(0);
    });
  return trace;
}

/** @throws ShoalError `usage` where there is nothing to merge. */
async function rankFiles(folder: string): Promise<string[]> {
  const { readdir } = await import('node:fs/promises');
  let names: string[];
  try {
    names = await readdir(folder);
  } catch (thrown) {
    throw new ShoalError('usage', `the folder ${folder} cannot be read: ${thrown instanceof Error ? thrown.message : String(thrown)}`);
  }
  const [files = []] = fileNames.map((pattern) => names.filter((name) => pattern.test(name))).filter(({ length }) => length > 0);
  files.sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  if (files.length > 0) return files;
  throw new ShoalError('usage', `there is no trace-rank-<n>.json in ${folder}; run with SHOAL_TRACE=${folder} first`);
}
