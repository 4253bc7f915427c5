/** The tables of measurements, out of bench/results: for docs/performance.md, where each stands with its file, and for the
 *  README, which shows some of it. Nothing is typed by hand, so that no page can say more than a file of results. */
import { measurements, type Measurement } from '../bench/measurements.ts';
import type { OverlapReport, SeriesName } from '../bench/overlap/report.ts';
import type { ComparedCase, ComparedSize, Comparison, Standing } from '../bench/peers/comparison.ts';
import { formatBytes } from '../src/base/settings/quantity.ts';
import type { ComparisonReport } from '../src/tools/cli/bench/run-comparison.ts';

/** Reads a file of bench/results; undefined where there is none yet. */
export type ReadResult = (name: string) => string | undefined;

const own = 'shoal sync';
const rivals = ['open mpi', 'gloo'] as const;
const columnTitles: Readonly<Record<string, string>> = {
  'shoal sync': 'Shoal',
  'shoal async': 'Shoal, awaited',
  'shoal private': 'Shoal, plain arrays',
  'open mpi': 'Open MPI (C)',
  gloo: 'Gloo (PyTorch)',
};

/** All results of all-reduce, each with its file. */
export function performanceTables(read: ReadResult): string {
  return [...measurements.flatMap((each) => sectionOf(each, read)), '### The choice of algorithms', algorithmTable(read)].join('\n\n');
}

function sectionOf(measurement: Measurement, read: ReadResult): string[] {
  const { name, title, kind, command } = measurement;
  const text = read(name);
  if (text === undefined || kind === 'report' || kind === 'algorithms') return [];
  const how = `[${name}.json](../bench/results/${name}.json)`;
  if (kind === 'overlap') {
    const report = JSON.parse(text) as OverlapReport;
    const { commit, startedAt, rounds, machine } = report;
    const made = `commit ${commit}, ${startedAt.slice(0, 10)}, ${rounds} rounds, ${machine.cpus} CPUs, load before: ${machine.loadBefore.toFixed(1)}`;
    return [`### ${title[0].toUpperCase()}${title.slice(1)}`, `${how}: ${made}.`, overlapTable(report)];
  }
  const comparison = JSON.parse(text) as Comparison;
  const { commit, startedAt, rounds, machine } = comparison;
  const made = `commit ${commit}, ${startedAt.slice(0, 10)}, ${rounds} ${rounds === 1 ? 'round' : 'rounds'}, ${machine.cpus} CPUs, load before: ${machine.loadBefore.toFixed(1)}`;
  const [only] = comparison.cases;
  const batch = only.buckets > 1 ? ` Times are per tensor, of ${only.buckets} in flight.` : '';
  assertShown(command, only);
  return [`### ${title}`, `${how}: ${made}.${batch}`, peerTable(only)];
}

function assertShown(command: readonly string[], { collective }: ComparedCase): void {
  if (collective !== 'all-reduce') throw new Error(`${command.join(' ')}: the tables are about all-reduce`);
}

/** Median times, those of the peers as ratios to Shoal's, and the ratio to the bound. */
export function peerTable({ sizes, bound }: ComparedCase): string {
  const names = sizes[0].standings.map(({ contestant }) => contestant);
  const peers = rivals.filter((name) => names.includes(name));
  const bounded = sizes.some(({ boundUs }) => boundUs !== null);
  const head = [
    'bytes',
    ...names.map((name) => columnTitles[name] ?? name.replace(/^shoal /, '')),
    ...peers.map((name) => `${columnTitles[name].split(' (')[0]} ÷ Shoal`),
    ...(bounded ? [`of the ${bound ?? 'memory'} bound`] : []),
  ];
  const rows = sizes.map((size) => [
    sizeText(size.bytes),
    ...names.map((name) => timeText(standing(size, name)?.medianUs)),
    ...peers.map((name) => ratioText(standing(size, name)?.ratio)),
    ...(bounded ? [shareText(size)] : []),
  ]);
  return table(head, rows);
}

/** Times of all bytes by the number under way at once, with the least and the greatest of the rounds. */
export function overlapTable({ buckets, bytes, stagedBytes, boundUs, points }: OverlapReport): string {
  const one = sizeText(bytes);
  const titles: Readonly<Record<SeriesName, string>> = {
    operations: `${buckets} × ${one}, this many started at a time`,
    staging: `${buckets} × ${one}, all started, staging for this many`,
    slices: `${sizeText(buckets * bytes)} in slices of ${one}, staging for this many`,
  };
  const shown = [...new Set(points.map(({ series }) => series))];
  const rows = [...new Set(points.map(({ inFlight }) => inFlight))].map((inFlight) => {
    const cells = shown.map((series) => {
      const point = points.find((each) => each.series === series && each.inFlight === inFlight);
      if (point === undefined) return '';
      const [least, most] = [Math.min(...point.roundsUs), Math.max(...point.roundsUs)];
      return `${milliseconds(point.medianUs)} (${milliseconds(least)}–${milliseconds(most)})`;
    });
    return [String(inFlight), ...cells];
  });
  const bound = boundUs === null ? '' : ` The line rate allows ${milliseconds(boundUs)}, without headers.`;
  return `${table(['in flight', ...shown.map((series) => titles[series])], rows)}\n\nMilliseconds, median of the rounds (smallest–largest). One operation stages ${sizeText(stagedBytes)} on a rank.${bound}`;
}

function milliseconds(us: number): string {
  return us < 10_000 ? (us / 1000).toPrecision(2) : (us / 1000).toFixed(0);
}

/** The README's table of one host, with a peer's time as a ratio to that of shared tensors and of plain arrays. */
export function hostTable(read: ReadResult): string {
  const { sizes } = caseOf(read, 'peers-one-host-2-ranks');
  const head = [
    'bytes',
    'Shoal, shared tensor',
    'Shoal, plain array',
    'Open MPI 4.1 (C)',
    'Gloo (PyTorch)',
    'Open MPI ÷ shared',
    'Open MPI ÷ plain',
    'Gloo ÷ shared',
  ];
  const rows = sizes.map((size) => {
    const times = ['shoal sync', 'shoal private', 'open mpi', 'gloo'].map((name) => standing(size, name));
    const [, plain, mpi, gloo] = times;
    const againstPlain = mpi?.ratio != null && plain?.ratio != null ? mpi.ratio / plain.ratio : undefined;
    return [
      sizeText(size.bytes),
      ...times.map((one) => timeText(one?.medianUs)),
      ratioText(mpi?.ratio),
      ratioText(againstPlain),
      ratioText(gloo?.ratio),
    ];
  });
  return table(head, rows);
}

/** Pushes and pulls of a parameter server on one host: for docs/performance.md. */
export function kvstoreTable(read: ReadResult): string {
  const text = read('kvstore');
  if (text === undefined) throw new Error('bench/results/kvstore.json is missing');
  const { results } = JSON.parse(text) as KVStoreReport;
  const names = ['dist_sync', 'collective', 'grpc', 'copy-bound'];
  const rows = results.map(({ keys, bytesPerKey, contestants }) => {
    const isSmall = bytesPerKey < 4096;
    const cells = names.map((name) => {
      const found = contestants.find((each) => each.name === name);
      if (found === undefined || (isSmall && name === 'copy-bound')) return '';
      return isSmall ? Number(found.keysPerSecond.toPrecision(2)).toLocaleString('en') : timeText(found.milliseconds * 1000);
    });
    const [count, each] = [keys.toLocaleString('en'), sizeText(bytesPerKey)];
    return [isSmall ? `${count} keys of ${each} bytes, keys per second` : `${sizeText(keys * bytesPerKey)} in keys of ${each}`, ...cells];
  });
  return table(
    ['push and pull, 2 workers, 2 servers', '`dist_sync`', '`collective`', 'the same over gRPC', 'copying in shared memory'],
    rows,
  );
}

interface KVStoreReport {
  readonly results: readonly {
    readonly keys: number;
    readonly bytesPerKey: number;
    readonly contestants: readonly { readonly name: string; readonly milliseconds: number; readonly keysPerSecond: number }[];
  }[];
}

/** The README's table of several hosts. */
export function networkTable(read: ReadResult): string {
  const shown: readonly { name: string; bytes: readonly number[] }[] = [
    { name: 'peers-4-hosts-1gbit-small', bytes: [8, 65_536] },
    { name: 'peers-4-hosts-1gbit', bytes: [25 * 2 ** 20] },
    { name: 'peers-4-hosts-1gbit-500us', bytes: [8, 25 * 2 ** 20] },
    { name: 'peers-8-hosts-1gbit-small', bytes: [8, 65_536] },
    { name: 'peers-8-hosts-1gbit', bytes: [25 * 2 ** 20] },
    { name: 'peers-4x2-1gbit', bytes: [25 * 2 ** 20] },
  ];
  const rows = shown.flatMap(({ name, bytes }) => {
    const { sizes } = caseOf(read, name);
    const { title } = measurements.find((each) => each.name === name)!;
    const where = title.replace(', 1 Gbit/s', '').replace(', small tensors', '');
    return sizes
      .filter((size) => bytes.includes(size.bytes))
      .map((size) => {
        const times = [own, ...rivals].map((rival) => timeText(standing(size, rival)?.medianUs));
        const ratios = rivals.map((rival) => ratioText(standing(size, rival)?.ratio));
        return [`[${where}](bench/results/${name}.json)`, sizeText(size.bytes), ...times, ...ratios];
      });
  });
  return table(['', 'bytes', 'Shoal', 'Open MPI (C)', 'Gloo (PyTorch)', 'Open MPI ÷ Shoal', 'Gloo ÷ Shoal'], rows);
}

/** The algorithm that `auto` takes for each world and size, beside the fastest one. */
function algorithmTable(read: ReadResult): string {
  const head = ['', 'bytes', '`auto`', 'chosen', 'fastest', '`auto` ÷ fastest', 'the same twice'];
  const cells = measurements.flatMap(({ name, title, kind }) => {
    const text = kind === 'algorithms' ? read(name) : undefined;
    if (text === undefined) return [];
    return (JSON.parse(text) as ComparisonReport).rows.map(({ bytes, timesUs, chosen, best, autoOverBest, scatter }, index) => [
      index === 0 ? `[${title}](../bench/results/${name}.json)` : '',
      sizeText(bytes),
      timeText(timesUs.auto),
      chosen,
      `${best}, ${timeText(timesUs[best])}`,
      autoOverBest.toFixed(2),
      scatter.toFixed(2),
    ]);
  });
  return table(head, cells);
}

function caseOf(read: ReadResult, name: string): ComparedCase {
  const text = read(name);
  if (text === undefined) throw new Error(`bench/results has no ${name}.json; npx tsx bench/measure.ts ${name} makes it`);
  return (JSON.parse(text) as Comparison).cases[0];
}

function standing({ standings }: ComparedSize, name: string): Standing | undefined {
  return standings.find(({ contestant }) => contestant === name);
}

function shareText(size: ComparedSize): string {
  const us = standing(size, own)?.medianUs;
  return size.boundUs === null || us === undefined ? '' : `${((100 * size.boundUs) / us).toFixed(0)} %`;
}

export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
  return [line(head), `|${head.map(() => '---:').join('|')}|`, ...rows.map(line)].join('\n');
}

export function sizeText(bytes: number): string {
  return formatBytes(bytes).replace(/(\d)([KMG]iB)$/, '$1 $2');
}

/** A time with two digits and the unit that suits it. */
function timeText(us: number | undefined): string {
  if (us === undefined) return '';
  const [value, unit] = us < 1000 ? [us, 'µs'] : us < 1_000_000 ? [us / 1000, 'ms'] : [us / 1_000_000, 's'];
  return `${value < 10 ? value.toPrecision(2) : value.toFixed(0)} ${unit}`;
}

function ratioText(ratio: number | null | undefined): string {
  return ratio == null ? '' : `${ratio < 10 ? ratio.toPrecision(2) : ratio.toFixed(0)}×`;
}
