/** The gain by scheduling on a TensorFlow.js model with small early and large late layers, on hosts made of network namespaces
 *  (root). The network's rate is chosen so that communication takes about as long as computation: 2 ranks that average by
 *  all-reduce, and 2 workers with 1 server. Each turn is a fresh set of processes; turns of the orders are interleaved in rounds.
 *
 *    npx tsx bench/scheduler/training.ts [--rounds 3] [--rate-mbit 0] [--partition 524288] [--credit-parts 4] [--out bench/results/scheduler-training.json]
 *
 *  `--rate-mbit 0`: chosen after a turn without communication. The planner predicts the all-reduces' turns from a traced one,
 *  FIFO, that does not count. Build first. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os, { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { median } from '../../src/base/numbers.ts';
import { readRunFolder } from '../../src/tools/report/read-folder.ts';
import { wholeTrace } from '../../src/trace/trace-file.ts';
import { planSchedule } from '../../src/tools/simulate/schedule-planner.ts';
import { tracedTraining } from '../../src/tools/simulate/traced-training.ts';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable, type Network } from '../network/network.ts';
import { rankVariables } from '../peers/place.ts';
import { runTogether, type Program } from '../peers/processes.ts';

const { values } = programArguments(import.meta.url, {
  options: {
    rounds: { type: 'string', default: '3' },
    steps: { type: 'string', default: '12' },
    batch: { type: 'string', default: '8' },
    positions: { type: 'string', default: '4096' },
    units: { type: 'string', default: '256' },
    partition: { type: 'string', default: '524288' },
    'credit-parts': { type: 'string', default: '4' },
    orders: { type: 'string', default: 'buckets,fifo,concurrent,scheduled' },
    'rate-mbit': { type: 'string', default: '0' },
    exchanges: { type: 'string', default: 'all-reduce,parameter-server' },
    out: { type: 'string' },
  },
});
const problem = networkUnavailable();
if (problem !== undefined) {
  console.error(problem);
  process.exit(2);
}

type Order = 'buckets' | 'fifo' | 'concurrent' | 'scheduled';
const orders = values.orders.split(',') as Order[];
/** Number of steps that warm up. */
const warmup = 3;
const port = 29_400;
const script = fileURLToPath(new URL('training-rank.ts', import.meta.url));
const serverScript = fileURLToPath(new URL('training-server.ts', import.meta.url));
const secret = randomBytes(32).toString('hex');
const creditBytes = Number(values['credit-parts']) * Number(values.partition);
const program = {
  STEPS: values.steps,
  BATCH: values.batch,
  POSITIONS: values.positions,
  UNITS: values.units,
  PARTITION: values.partition,
  CREDIT: String(creditBytes),
};

interface Turn {
  readonly medianMs: number;
  readonly bytes: number;
  /** CPU time of a rank, per step. */
  readonly cpuMs: number;
}

async function run(programs: readonly Program[]): Promise<Turn> {
  const stdout = await runTogether(programs, { timeoutMs: 300_000 });
  const line = stdout.split('\n').find((each) => each.startsWith('{"stepMs"')) ?? '';
  const { stepMs, bytes, cpuMs } = JSON.parse(line) as { stepMs: number[]; bytes: number; cpuMs: number };
  return { medianMs: median(stepMs.slice(warmup)), bytes, cpuMs };
}

/** The planner's prediction for a training that has left its traces. */
function predicted(folder: string, rate: number): object {
  const { layers, stepMs, steps } = tracedTraining(readRunFolder(folder).traces.map(wholeTrace));
  const plan = planSchedule({
    ...{ layers, workers: 2, exchange: 'all-reduce', gbitPerSecond: rate / 1000 },
    ...{ partitions: [262_144], creditParts: 2 },
  });
  console.log(`planner, of ${steps} steps: FIFO ${plan.plainOverlapMs.toFixed(0)} ms, scheduled ${plan.scheduledMs.toFixed(0)} ms a step`);
  console.log(`planner: ${plan.verdict}`);
  return { tracedMs: stepMs, ...plan };
}

function programsOf(network: Network, exchange: string, order: Order, more: Readonly<Record<string, string>> = {}): Program[] {
  const [first] = network.hosts;
  const served = exchange === 'parameter-server';
  const common = { ...program, ...more, EXCHANGE: exchange, ORDER: order, SHOAL_SECRET: secret };
  const parts = { SHOAL_JOB: `training-${Date.now()}`, SHOAL_WORKERS: '2', SHOAL_SERVERS: '1' };
  const credit = { buckets: '1GiB', fifo: '4KiB', concurrent: '1GiB', scheduled: String(creditBytes) }[order];
  const place = (rank: number): Record<string, string> => ({
    ...rankVariables({
      rank,
      ranks: 2,
      localRank: 0,
      localRanks: 1,
      masterAddress: (served ? network.hosts[2] : first).address,
      masterPort: port,
    }),
    SHOAL_HOST_ID: `${network.name}-host-${rank}`,
    ...common,
    ...(served ? { ...parts, SHOAL_ROLE: 'worker', SHOAL_KV_CREDIT_BYTES: credit, SHOAL_KV_SLICE_BYTES: '64MiB' } : {}),
  });
  const tsx = [process.execPath, '--import', 'tsx'];
  const ranks = [0, 1].map((rank) => ({ command: [...network.hosts[rank].enter, ...tsx, script], environment: place(rank) }));
  if (!served) return ranks;
  const server = { ...place(0), SHOAL_ROLE: 'server', SHOAL_SERVER: '0', SHOAL_HOST_ID: `${network.name}-host-2` };
  return [...ranks, { command: [...network.hosts[2].enter, ...tsx, serverScript], environment: server }];
}

const loadBefore = os.loadavg()[0];
const alone = [0, 1].map(() => ({ command: [process.execPath, '--import', 'tsx', script], environment: { ...program, EXCHANGE: 'none' } }));
const { medianMs: computeMs, bytes, cpuMs: computeCpuMs } = await run(alone);
const rateMbit = Number(values['rate-mbit']) || Math.max(10, Math.round((bytes * 8) / computeMs / 1000));
console.log(
  `${(bytes / 1e6).toFixed(1)} MB of gradients, ${computeMs.toFixed(0)} ms of computation, ${rateMbit} Mbit/s; load ${loadBefore.toFixed(1)}`,
);
const results: object[] = [];
for (const exchange of values.exchanges.split(',')) {
  // The port of the one server carries the pushes of both workers.
  const rate = exchange === 'parameter-server' ? 2 * rateMbit : rateMbit;
  using network = await createNetwork({ hosts: 3, rateMbit: rate, delayUs: 0, jitterUs: 0, lossPercent: 0 });
  const turns: Record<Order, number[]> = { buckets: [], fifo: [], concurrent: [], scheduled: [] };
  const cpu: Record<Order, number[]> = { buckets: [], fifo: [], concurrent: [], scheduled: [] };
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const order of orders) {
      const { medianMs, cpuMs } = await run(programsOf(network, exchange, order));
      console.error(`${exchange}, round ${round}, ${order}: ${medianMs.toFixed(0)} ms, ${cpuMs.toFixed(0)} ms of a processor`);
      turns[order].push(medianMs);
      cpu[order].push(cpuMs);
    }
  }
  const rows = orders.map((order) => ({
    order,
    bestMs: Math.min(...turns[order]),
    medianMs: median(turns[order]),
    turnsMs: turns[order],
    cpuMs: median(cpu[order]),
  }));
  const ratio = (of: 'bestMs' | 'medianMs', over: Order): number =>
    (rows.find(({ order }) => order === over)?.[of] ?? Number.NaN) / (rows.find(({ order }) => order === 'scheduled')?.[of] ?? Number.NaN);
  const gains = {
    overFifoBest: ratio('bestMs', 'fifo'),
    overFifoMedian: ratio('medianMs', 'fifo'),
    overConcurrentBest: ratio('bestMs', 'concurrent'),
  };
  let plan: object | undefined;
  if (exchange === 'all-reduce') {
    const folder = mkdtempSync(join(tmpdir(), 'shoal-training-'));
    await run(programsOf(network, exchange, 'fifo', { SHOAL_TRACE: folder }));
    plan = predicted(folder, rateMbit);
    rmSync(folder, { recursive: true });
  }
  results.push({ exchange, rateMbit: rate, rows, gains, ...(plan && { plan }) });
  write();
  for (const row of rows)
    console.log(
      `${exchange.padEnd(17)} ${row.order.padEnd(10)} best ${row.bestMs.toFixed(0)} ms, median ${row.medianMs.toFixed(0)} ms a step, ${row.cpuMs.toFixed(0)} ms of a processor`,
    );
  console.log(
    `${exchange.padEnd(17)} scheduled is ${gains.overFifoBest.toFixed(2)} × FIFO by best turns, ${gains.overFifoMedian.toFixed(2)} × by medians`,
  );
}

/** Writes the results; called after each exchange. */
function write(): void {
  const [{ model: cpu }, { length: cpus }, loadAfter] = [os.cpus()[0], os.cpus(), os.loadavg()[0]];
  // Computation of a machine that does other things is not steady.
  const machine = { cpu, cpus, node: process.version, loadBefore, loadAfter, wasLoaded: loadBefore > cpus };
  const report = { machine, bytes, computeMs, computeCpuMs, rateMbit, steps: Number(values.steps), results };
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, null, 2)}\n`);
}
