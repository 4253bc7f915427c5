/** One of every page and picture, of data that is the same each time: they are compared with the reviewed state, and shown in the docs. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { comparisonPage } from '../../bench/peers/page.ts';
import type { Comparison } from '../../bench/peers/comparison.ts';
import { writeSyntheticRun } from '../../bench/report/synthetic-run.ts';
import { figuresPage, picturesPage } from '../../src/tools/chart/document.ts';
import type { Figure } from '../../src/tools/chart/data/figure.ts';
import { buildPlan } from '../../src/collectives/build.ts';
import { drawGraph } from '../../src/tools/draw/draw-graph.ts';
import { identity, placeholder } from '../../src/graph/ops/array.ts';
import { neg } from '../../src/graph/ops/math.ts';
import { partitionGraph } from '../../src/graph/partition/partition-graph.ts';
import { prune } from '../../src/graph/partition/prune.ts';
import { DeviceSet } from '../../src/graph/placement/devices.ts';
import { place } from '../../src/graph/placement/place.ts';
import { GraphBuilder } from '../../src/graph/structure/builder.ts';
import { drawPlan } from '../../src/tools/draw/draw-plan.ts';
import { grid } from '../../src/plan/topology.ts';
import { buildReport } from '../../src/tools/report/build-report.ts';
import { reportPage } from '../../src/tools/report/page.ts';
import { readRunFolder } from '../../src/tools/report/read-folder.ts';
import { repositoryRoot } from '../../scripts/repository.ts';
import type { ChromeEvent } from '../../src/trace/chrome.ts';

export const pageNames = [
  'report',
  'report-failed',
  'report-bandwidth',
  'report-memory',
  'report-64',
  'report-256',
  'report-256-links',
  'peers',
  'simulate',
  'plan',
  'plan-64',
  'plan-512',
  'graph',
] as const;

/** Place at which a page is opened; default: its top. */
const places: Partial<Record<(typeof pageNames)[number], string>> = {
  'report-64': '#links',
  'report-memory': '#memory',
  'report-bandwidth': '#bandwidth',
  'report-256-links': '#links',
};

export function samplePageUrl(folder: string, name: (typeof pageNames)[number]): string {
  return `file://${folder}/${name}.html${places[name] ?? ''}`;
}

/** Size of the pictures that were reviewed. */
export const [reviewedWidth, reviewedHeight] = [900, 900];

/** Writes the pages as `<folder>/<name>.html`. */
export function writeSamplePages(folder: string): void {
  const write = (name: (typeof pageNames)[number], text: string): void => writeFileSync(join(folder, `${name}.html`), text);
  const result = (name: string): unknown => JSON.parse(readFileSync(join(repositoryRoot, 'bench/results', `${name}.json`), 'utf8'));
  write('report', reportPage(sampleReport(join(folder, 'run'), { isFailed: false })));
  for (const name of ['report-memory', 'report-bandwidth'] as const) write(name, readFileSync(join(folder, 'report.html'), 'utf8'));
  write('report-failed', reportPage(sampleReport(join(folder, 'failed'), { isFailed: true })));
  write('report-64', reportPage(largeReport(join(folder, 'large'))));
  writeSyntheticRun(join(folder, 'synthetic'), { ranks: 256, ranksPerHost: 8, steps: 40 });
  const many = buildReport('training of 256 ranks', readRunFolder(join(folder, 'synthetic')), { spansMax: 8000, valuesMax: 100 });
  for (const name of ['report-256', 'report-256-links'] as const) write(name, reportPage(many));
  write('peers', figuresPage(comparisonPage(result('peers-one-host-2-ranks') as Comparison)));
  const { figures } = result('simulate-micro-benchmarks') as { figures: Figure[] };
  write('simulate', figuresPage({ title: 'Simulated', figures }));
  for (const [name, hosts, ranks] of [
    ['plan', 4, 2],
    ['plan-64', 8, 8],
    ['plan-512', 64, 8],
  ] as const) {
    const plan = buildPlan('fairring', { collective: 'all-reduce', topology: grid(hosts, ranks), count: 2 ** 20, elementBytes: 4 });
    write(name, picturesPage(`${plan.algorithm} ${plan.request.collective}`, [{ svg: drawPlan(plan, 4) }]));
  }
  write('graph', picturesPage('towers.graph', graphPictures()));
}

function graphPictures(): { title: string; svg: string }[] {
  const devices = new DeviceSet(['/job:worker/task:0/cpu:0', '/job:ps/task:0/cpu:0']);
  const [worker, ps] = devices.names;
  const g = new GraphBuilder();
  for (let tower = 0; tower < 3; tower++) {
    g.withScope(`embedding_tower_${tower}`, () => {
      const table = identity(g, placeholder(g, 'float32', [], { device: ps }), { name: 'variable_of_many_rows', device: ps });
      neg(g, neg(g, table, { name: 'gather', device: ps }), { name: 'dense', device: worker });
    });
  }
  const graph = g.finish();
  const feeds = graph.nodes.filter(({ op }) => op === 'Placeholder').map(({ outputs: [output] }) => output);
  const targets = graph.nodes.filter(({ op }) => op !== 'Placeholder');
  return [false, true].map((doFuseRecv) => {
    const title = doFuseRecv ? 'after fusion' : 'before fusion';
    const needed = prune(graph, place(graph, devices), { feeds, fetches: [], targets });
    return { title, svg: drawGraph(partitionGraph(needed, { devices, doFuseRecv }), { title: `towers.graph: ${title}` }) };
  });
}

/** A report of four ranks on two hosts, of which rank 2 is late; steps of training with their all-reduces. */
function sampleReport(folder: string, { isFailed }: { readonly isFailed: boolean }): ReturnType<typeof buildReport> {
  mkdirSync(folder);
  for (let rank = 0; rank < 4; rank++) {
    writeFileSync(join(folder, `trace-rank-${rank}.json`), JSON.stringify(sampleTrace(rank)));
    if (isFailed && rank !== 2) writeFileSync(join(folder, `flight-rank-${rank}.json`), flightOf(rank));
  }
  const error = 'RangeError: the loss is NaN';
  const failed = {
    failure: `rank 2 exited with code 1, 4.1 s after the start (pid 4002): ${error}`,
    details: [
      '/home/user/train.ts:38',
      '  if (Number.isNaN(loss)) throw new RangeError("the loss is NaN");',
      '                                ^',
    ],
  };
  const command = ['train.ts', '--epochs', '3'];
  const launcher = {
    version: 1,
    command,
    startedAt: '2026-11-20T12:00:00.000Z',
    exitCode: isFailed ? 1 : 0,
    ...(isFailed ? failed : { failure: null }),
  };
  writeFileSync(join(folder, 'launcher.json'), JSON.stringify(launcher));
  const report = buildReport('run', readRunFolder(folder));
  const curve = (name: string, from: number): { name: string; points: [number, number][] } => ({
    name,
    points: Array.from({ length: 60 }, (_, step) => [step * 10, from * Math.exp(-step / 20) + 1.2 + 0.05 * Math.sin(step * 1.7)]),
  });
  return isFailed ? report : { ...report, losses: [curve('training', 3.1), curve('held out', 3), curve('held out, again', 3)] };
}

function sampleTrace(rank: number): object {
  const thread = (tid: number, name: string): ChromeEvent => ({ ph: 'M', name: 'thread_name', pid: rank, tid, ts: 0, args: { name } });
  const events: ChromeEvent[] = [thread(1, 'main'), thread(2, 'world waits'), thread(3, 'world')];
  for (let step = 0; step < 40; step++) {
    const begin = step * 12_000;
    const late = rank === 2 ? 2500 + 40 * step : 300 * rank;
    events.push({ ph: 'X', cat: 'user', name: `step ${step}`, pid: rank, tid: 1, ts: begin, dur: 6000 + late, args: {} });
    const bytes = (step % 2 === 0 ? 4 << 20 : 2 << 20) >> (step % 5);
    const peers = [0, 1, 2, 3].filter((peer) => peer !== rank).join();
    const common = { group: 'world', dtype: 'float32', bytes, path: 'comm thread', site: 'train.ts:31', sequence: step, peers };
    const arrived = begin + 6000 + 2500 + 40 * step;
    const call = begin + 6000 + late;
    if (rank !== 2) {
      const args = { ...common, waitedFor: 2 };
      events.push({ ph: 'X', cat: 'collective', name: 'all-reduce wait', pid: rank, tid: 2, ts: call, dur: arrived - call, args });
    }
    const args = { ...common, algorithm: step % 2 === 0 ? 'fairring' : 'host-direct' };
    events.push({
      ph: 'X',
      cat: 'collective',
      name: `all-reduce ${args.algorithm}`,
      pid: rank,
      tid: 3,
      ts: arrived,
      dur: 900 + Math.round(bytes / 2500),
      args,
    });
    const memory = (name: string, bytes: number): ChromeEvent => ({ ph: 'C', name, pid: rank, tid: 3, ts: begin, args: { bytes } });
    events.push(memory('resident memory', (90 + 8 * rank + 3 * step + (step > 25 && rank === 2 ? 120 : 0)) * 2 ** 20));
    events.push(memory('registered memory', (step < 5 ? 16 : 48) * 2 ** 20));
    events.push({
      ph: 'C',
      name: 'staged bytes',
      pid: rank,
      tid: 3,
      ts: arrived,
      args: { value: 1e6 * (1 + Math.abs(Math.sin(step + rank))) },
    });
  }
  const traffic = [0, 1, 2, 3].filter((to) => to !== rank).map((to) => [rank, to, (1 + ((rank + to) % 3)) * (20 << 20), 40]);
  return traceOf({ rank, host: rank < 2 ? 'node-a' : 'node-b' }, events, traffic);
}

function traceOf({ rank, host }: { rank: number; host: string }, traceEvents: readonly ChromeEvent[], traffic: number[][]): object {
  const rates = { link: 0.28e-9, linkFrom: 'start' };
  const origin = { rank, host, pid: 4000 + rank, memory: host.charCodeAt(host.length - 1), rates };
  const process = { ...origin, offsetMs: 0, clockStartMs: 0, wallStart: '2026-11-20T12:00:00.000Z', dropped: 0, traffic };
  return { displayTimeUnit: 'ms', traceEvents, otherData: { format: 'shoal-trace', version: 1, processes: [process] } };
}

/** A report of 64 ranks on eight hosts: all-reduces within each host and between those of the same place. */
function largeReport(folder: string): ReturnType<typeof buildReport> {
  mkdirSync(folder);
  const ranks = Array.from({ length: 64 }, (_, rank) => rank);
  const hostOf = (rank: number): number => Math.floor(rank / 8);
  for (const rank of ranks) {
    const events: ChromeEvent[] = [{ ph: 'M', name: 'thread_name', pid: rank, tid: 1, ts: 0, args: { name: 'world' } }];
    for (let step = 0; step < 20; step++) {
      const args = {
        sequence: step,
        group: 'world',
        dtype: 'float32',
        bytes: 8 << 20,
        algorithm: 'fairring',
        path: 'comm thread',
        site: 'train.ts:31',
      };
      const wait = ((rank * 7 + step) % 11) * 150;
      const begin = 10_000 * step + 3000 - wait;
      const waited: ChromeEvent = {
        ph: 'X',
        cat: 'collective',
        name: 'all-reduce wait',
        pid: rank,
        tid: 1,
        ts: begin,
        dur: wait,
        args: { ...args, waitedFor: (step * 13) % 64 },
      };
      events.push(...(wait === 0 ? [] : [waited]));
      events.push({ ph: 'C', name: 'resident memory', pid: rank, tid: 1, ts: begin, args: { bytes: (80 + rank + 4 * step) * 2 ** 20 } });
      events.push({ ph: 'X', cat: 'collective', name: 'all-reduce fairring', pid: rank, tid: 1, ts: begin + wait, dur: 5000, args });
    }
    const peers = ranks.filter((to) => to !== rank && (hostOf(to) === hostOf(rank) || to % 8 === rank % 8));
    const traffic = peers.map((to) => [rank, to, hostOf(to) === hostOf(rank) ? 140 << 20 : 20 << 20, 160]);
    writeFileSync(
      join(folder, `trace-rank-${rank}.json`),
      JSON.stringify(traceOf({ rank, host: `node-${hostOf(rank)}` }, events, traffic)),
    );
  }
  return buildReport('training on eight hosts', readRunFolder(folder));
}

function flightOf(rank: number): string {
  const entry = {
    pg_id: 0,
    collective_seq_id: 40,
    is_p2p: false,
    profiling_name: 'shoal:all_reduce',
    input_sizes: [[1_048_576]],
    input_dtypes: ['float32'],
    frames: [{ name: 'train', filename: 'train.ts', line: 31 }],
    state: 'scheduled',
    error: 'rank 2 (node-b) is lost: its connection was closed while collective #40 (all-reduce of 1048576 float32) was under way',
  };
  const status = { last_enqueued_collective: 40, last_started_collective: 39, last_completed_collective: 39 };
  const groups = { 0: { name: 'world', desc: 'world', ranks: '[0, 1, 2, 3]' } };
  return JSON.stringify({ version: '2.10', rank, pg_config: groups, pg_status: { 0: status }, entries: [entry] });
}
