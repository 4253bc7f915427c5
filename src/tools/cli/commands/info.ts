/** `shoal info`: what this machine offers and what is in force, for people or as JSON. */
import { Command } from 'commander';
import { numberOf } from '../option-values.ts';

const ranks = numberOf('a number of ranks, 1 to 999', /^[1-9]\d{0,2}$/);

export function infoCommand(setExitCode: (code: number) => void): Command {
  return new Command('info')
    .summary('show what ranks on this machine run on')
    .description(
      'Shows this host, its processors, the native addon, data planes and why some are not available, the WebGPU adapter, interfaces, and the settings in force.',
    )
    .option('-n, --nproc <count>', 'also starts this many ranks and shows what they reach each other over', ranks)
    .option('--json', 'as JSON, for programs')
    .action(async (flags: { json?: true; nproc?: number }) => {
      const [{ gatherInfo }, { formatInfo }, { webGpuInfo }] = await Promise.all([
        import('../info/gather-info.ts'),
        import('../info/format-info.ts'),
        import('../info/webgpu-adapter.ts'),
      ]);
      const info = gatherInfo(process.env);
      const links =
        flags.nproc === undefined ? null : await (await import('../info/measure-links.ts')).measureLinks(flags.nproc, process.env);
      const all = { ...info, webgpu: await webGpuInfo(), links };
      process.stdout.write(flags.json === true ? `${JSON.stringify(all, null, 2)}\n` : formatInfo(all));
      setExitCode(0);
    });
}
