/** The text of nccl-tests (2.19, src/util.cu), byte for byte in the columns, so that its parsers read ours. A half that a
 *  collective does not have is N/A. Pure. */
import { formatBytes } from '../../../base/settings/quantity.ts';
import { isRooted, reduces } from '../collective.ts';
import { opNameOf, typeNameOf, type SizeRange } from '../options.ts';
import type { BenchHeader, BenchRow, BenchSummary, HalfResult } from '../report.ts';

/** The text above the first row. */
export function formatHeader(header: BenchHeader, run: { range: SizeRange; iterations: number; warmup: number }): string {
  const { options, shoal, node, native, ranks, stopwatchUs } = header;
  const { minBytes, maxBytes, stepBytes, stepFactor } = run.range;
  const step = stepFactor > 1 ? `${stepFactor}(factor)` : `${stepBytes}(bytes)`;
  const lines = [
    `# shoal bench version ${shoal} node=${node} native=${native ?? 'none'}`,
    `# Collective test starting: ${options.collective}`,
    `# nThread 1 nGpus 0 minBytes ${minBytes} maxBytes ${maxBytes} step: ${step} warmup iters: ${run.warmup} iters: ${run.iterations} agg iters: ${options.buckets} validation: ${options.checks} graph: 0 unalign: 0`,
    `# memory: ${options.memory} touch: ${options.touch} wait: ${options.wait} parallel: ${options.parallel} backend: ${options.backend} time: median over iterations, largest over ranks; clock: ${stopwatchUs.toFixed(3)} us`,
    '#',
    '# Using devices',
    ...ranks.map(
      ({ rank, pid, host, cpus, processor }) =>
        `#  Rank ${left(rank, 2)} Group ${left(0, 2)} Pid ${left(pid, 6)} on ${left(host, 10)} device ${left(0, 2)} [${cpus} cpus] ${processor}`,
    ),
    '#',
    `# ${columns(['', '', '', '', ''])}           out-of-place                       in-place          `,
    `# ${columns(['size', 'count', 'type', 'redop', 'root'])}${halfColumns(['time', 'algbw', 'busbw', '#wrong'])}${halfColumns(['time', 'algbw', 'busbw', '#wrong'])} `,
    `# ${columns(['(B)', '(elements)', '', '', ''])}${halfColumns(['(us)', '(GB/s)', '(GB/s)', ''])}${halfColumns(['(us)', '(GB/s)', '(GB/s)', ''])} `,
  ];
  return `${lines.join('\n')}\n`;
}

export function formatRow(row: BenchRow, options: BenchHeader['options']): string {
  const { collective, root } = options;
  const { dtype, op } = row;
  const names = [typeNameOf(dtype), reduces(collective) ? opNameOf(op) : 'none', isRooted(collective) ? root : -1];
  const [type, redop, rootName] = names;
  const head = `${left(row.size, 12)}  ${left(row.count, 12)}  ${left(type, 8)}  ${left(redop, 6)}  ${left(rootName, 6)}`;
  return `${head}${formatHalf(row.outOfPlace)}${formatHalf(row.inPlace)}\n`;
}

export function formatFooter({ wrong, averageBusBandwidth }: BenchSummary, { collective }: { collective: string }): string {
  const lines = [
    `# ${'Out of bounds values'.padEnd(20)} : ${wrong} ${wrong === 0 ? 'OK' : 'FAILED'}`,
    `# ${'Avg bus bandwidth'.padEnd(20)} : ${formatG(averageBusBandwidth)} `,
    '#',
    `# Collective test concluded: ${collective}`,
  ];
  return `${lines.join('\n')}\n`;
}

/** Stage of a row, for a progress bar: `4MiB out-of-place`. */
export function formatStage(bytes: number, half: string): string {
  return `${formatBytes(bytes)} ${half === 'inPlace' ? 'in-place' : 'out-of-place'}`;
}

function formatHalf(half: HalfResult | null): string {
  if (half === null) return halfColumns(['N/A', 'N/A', 'N/A', 'N/A']);
  const { medianUs, algorithmBandwidth, busBandwidth, wrong } = half;
  return halfColumns([fit(medianUs, 7), fit(algorithmBandwidth, 6), fit(busBandwidth, 6), wrong === null ? 'N/A' : formatG(wrong)]);
}

function columns([size, count, type, redop, root]: readonly string[]): string {
  return `${left(size, 10)}  ${left(count, 12)}  ${left(type, 8)}  ${left(redop, 6)}  ${left(root, 6)}`;
}

function halfColumns([time, algbw, busbw, wrong]: readonly string[]): string {
  return `  ${left(time, 7)}  ${left(algbw, 6)}  ${left(busbw, 6)}  ${left(wrong, 6)}`;
}

function left(value: string | number | undefined, width: number): string {
  return String(value).padStart(width);
}

/** The value with as many decimals, at most two, as fit the column. */
function fit(value: number, width: number): string {
  for (const digits of [2, 1, 0]) {
    const text = value.toFixed(digits);
    if (text.length <= width) return text;
  }
  return exponent(value.toExponential(width >= 7 ? 1 : 0));
}

/** Formats like C's %g: six significant digits, no trailing zeros. */
function formatG(value: number): string {
  if (value === 0) return '0';
  const power = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(6)))));
  if (power < -4 || power >= 6) return exponent(value.toExponential(5).replace(/\.?0+e/, 'e'));
  return String(Number(value.toPrecision(6)));
}

/** Pads the exponent to two digits, as C writes it. */
function exponent(text: string): string {
  return text.replace(/e([+-])(\d)$/, 'e$10$2');
}
