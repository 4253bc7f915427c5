/** The table of goals and measurements of graphs, from bench/results: for docs/performance.md. */
import type { ReadResult } from './performance-tables.ts';

interface Report {
  readonly machine: { readonly cpus: number; readonly loadBefore: number };
  readonly rows: never;
}

interface WayRow {
  readonly name: string;
  readonly rpcsPerStep: number;
  readonly rpcsSaved: number;
  readonly throughputRatio: { readonly median: number; readonly best: number };
}

interface ScalingRow {
  readonly carrier: string;
  readonly workers: number;
  readonly rpcsPerStep: readonly [unfused: number, fused: number];
  readonly throughputRatio: { readonly median: number; readonly best: number };
}

interface LateRow {
  readonly name: string;
  readonly stepMs: number;
  readonly stepRatio: number;
  readonly othersHeldMs: number;
}

interface PartitionRow {
  readonly nodes: number;
  readonly transfers: number;
  readonly partitionMs: number;
  readonly partitionCpuMs: number;
}

interface WorkersRow {
  readonly workers: number;
  readonly servers: number;
  readonly timesAsFast: number;
}

interface SmallRow {
  readonly operations: number;
  readonly ratio: { readonly median: number; readonly best: number };
}

interface Line {
  readonly asked: string;
  readonly case: string;
  readonly measured: string;
}

/** A row per case; cases without results are left out. */
export function graphTable(read: ReadResult): string {
  const lines = [
    ...linesOf(read, 'graph-one-host', (rows: readonly WayRow[]) => [requests(rows), ...throughput(rows, 'one host')]),
    ...linesOf(read, 'graph-6-hosts-1gbit', (rows: readonly WayRow[]) => throughput(rows, '6 network namespaces, 1 Gbit/s')),
    ...['graph-workers', 'graph-32-workers'].flatMap((name) =>
      linesOf(read, name, (rows: readonly ScalingRow[]) => rows.map((row) => scaling(row))),
    ),
    ...linesOf(read, 'graph-late-tensor', (rows: readonly LateRow[]) => [late(rows)]),
    ...linesOf(read, 'graph-partition', (rows: readonly PartitionRow[]) => [partition(rows)]),
    ...linesOf(read, 'graph-small-nodes', (rows: readonly SmallRow[]) => rows.map((row) => small(row))),
    ...linesOf(read, 'graph-many-workers', (rows: readonly WorkersRow[]) => [manyWorkers(rows)]),
  ];
  return ['| case | goal | measured | load before, CPUs | `npx tsx bench/measure.ts …` |', '|---|---|---|---|---|', ...lines].join('\n');
}

/** @param lines makes the lines of the rows in the file. */
function linesOf(read: ReadResult, name: string, lines: (rows: never) => readonly Line[]): string[] {
  const text = read(name);
  if (text === undefined) return [];
  const { machine, rows } = JSON.parse(text) as Report;
  const made = `${machine.loadBefore.toFixed(1)}, ${machine.cpus} | [${name}](../bench/results/${name}.json)`;
  return lines(rows).map((line) => `| ${line.case} | ${line.asked} | ${line.measured} | ${made} |`);
}

function requests(rows: readonly WayRow[]): Line {
  const [unfused, fused, both] = ['gRPC unfused', 'gRPC static', 'gRPC static and run time'].map((name) => named(rows, name));
  const saved = ({ rpcsPerStep, rpcsSaved }: WayRow): string => `${rpcsPerStep.toFixed(1)} (−${(rpcsSaved * 100).toFixed(1)} %)`;
  return {
    case: 'wide & deep, 1 ps : 5 workers, batch 128, tables in 2 parts: RPCs per step',
    asked: '−55 % with FuseRecv; −85 % with fusion at run time as well',
    measured: `${unfused.rpcsPerStep.toFixed(0)}; ${saved(fused)}; ${saved(both)}`,
  };
}

function throughput(rows: readonly WayRow[], where: string): Line[] {
  const times = (name: string): string => {
    const { median, best } = named(rows, name).throughputRatio;
    return `× ${median.toFixed(2)} (best round ${best.toFixed(2)})`;
  };
  return [
    { case: `the same: throughput over gRPC, ${where}`, asked: '× 1.4 of unfused', measured: times('gRPC static') },
    { case: `the same: fused over the fabric, ${where}`, asked: '× 3 of unfused gRPC', measured: times('fabric static') },
  ];
}

function scaling({ carrier, workers, rpcsPerStep: [unfused, fused], throughputRatio: { median, best } }: ScalingRow): Line {
  return {
    case: `the same: fused over ${carrier === 'fabric' ? 'the fabric' : carrier}, one host, ${workers} ${workers === 1 ? 'worker' : 'workers'}`,
    asked: 'above unfused',
    measured: `× ${median.toFixed(2)} (best round ${best.toFixed(2)}); RPCs per step ${unfused.toFixed(0)} and ${fused.toFixed(1)}`,
  };
}

function late(rows: readonly LateRow[]): Line {
  const said = ['unfused', 'static', 'run time'].map((name) => {
    const { stepMs, stepRatio, othersHeldMs } = named(rows, name);
    return `${name} ${stepMs.toFixed(0)} ms (× ${stepRatio.toFixed(2)}; the others there after ${othersHeldMs.toFixed(0)} ms)`;
  });
  return {
    case: 'one of 16 tensors 50 ms late, 40 ms of work behind the others: a step',
    asked: 'run time within a tenth of unfused; static shows the delay',
    measured: said.join('; '),
  };
}

function partition(rows: readonly PartitionRow[]): Line {
  const row = rows.find(({ nodes }) => nodes >= 50_000) ?? rows[rows.length - 1];
  return {
    case: `partition and pass of ${row.nodes} nodes, ${row.transfers} tensors that cross`,
    asked: 'under 2 s for 50,000 nodes',
    measured: `${(row.partitionMs / 1000).toFixed(2)} s, of CPU time ${(row.partitionCpuMs / 1000).toFixed(2)} s`,
  };
}

function small({ operations, ratio }: SmallRow): Line {
  return {
    case: `a step of ${operations} small operations on [8, 8], against the same calls of TensorFlow.js`,
    asked: '× 1.3 of the time',
    measured: `× ${ratio.median.toFixed(2)} (best round ${ratio.best.toFixed(2)})`,
  };
}

function manyWorkers(rows: readonly WorkersRow[]): Line {
  const said = [400, 1000].map((workers) => {
    const ratios = rows.filter((row) => row.workers === workers).map(({ timesAsFast }) => timesAsFast);
    return `${workers} workers: × ${Math.max(...ratios).toFixed(1)} (10 servers) to × ${Math.min(...ratios).toFixed(1)} (50)`;
  });
  return {
    case: 'simulated 400 and 1,000 workers, 10 to 50 servers; CPU time of a request measured',
    asked: '× 1.5 to 2',
    measured: said.join('; '),
  };
}

function named<Row extends { readonly name: string }>(rows: readonly Row[], name: string): Row {
  const row = rows.find((each) => each.name === name);
  if (row === undefined) throw new Error(`the results have no row '${name}'`);
  return row;
}
