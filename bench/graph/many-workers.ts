/** Hundreds of workers with tens of parameter servers, in virtual time: the time of a step of the wide & deep example, unfused
 *  and with FuseRecv. The CPU time of a request is measured here first; the partitioned graph gives the tensors that cross, and
 *  the number of requests; the rest is queues (server-simulation.ts).
 *
 *    npx tsx bench/graph/many-workers.ts [--out out.json] [--steps 6]      build first */
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Session, type PartitionedGraph } from 'shoal/graph';
import type { Figure } from '../../src/tools/chart/data/figure.ts';
import { programArguments } from '../arguments.ts';
import { grpcGraphEnvironment } from '../grpc/graph.ts';
import { localPlace } from '../peers/place.ts';
import { machine, round } from './machine.ts';
import { arrows, rates, simulateWorkers, type Costs, type Crossing, type Traffic } from './server-simulation.ts';
import { batch, model, type StepCost } from './step-cost.ts';

/** Traffic of a step of one worker whose tables are on this many servers. */
function trafficOf(servers: number, doFuseRecv: boolean): Traffic {
  const { g, made } = model(servers);
  const devices = ['/job:worker/task:0', ...Array.from({ length: servers }, (_, k) => `/job:ps/task:${k}`)].map(
    (task) => `${task}/device:CPU:0`,
  );
  const session = new Session(g.finish(), { devices, doFuseRecv });
  const { transfers, groups } = session.partitions([], [made.towers[0].loss, made.train]);
  const traffic = arrows.map(() => Array.from({ length: servers }, (): Crossing => ({ requests: 0, tensors: 0, bytes: 0 })));
  for (const transfer of transfers) {
    const { sendDevice, recvDevice, shape } = transfer;
    const crossing = traffic[arrowOf(transfer)][devices.indexOf(sendDevice === devices[0] ? recvDevice : sendDevice) - 1];
    crossing.tensors++;
    // A part of a table has half of the batch's rows.
    crossing.bytes += 4 * (shape === 'unknown' ? 1 : shape.reduce<number>((count, each) => count * (each ?? batch / 2), 1));
  }
  const fused = new Set(groups.flat());
  const requests = [...transfers.filter((each) => !fused.has(each)), ...groups.map(([first]) => first)];
  for (const each of requests) {
    const { sendDevice, recvDevice } = each;
    traffic[arrowOf(each)][devices.indexOf(sendDevice === devices[0] ? recvDevice : sendDevice) - 1].requests++;
  }
  session.close();
  return traffic;
}

type Transfer = PartitionedGraph['transfers'][number];

function arrowOf({ sendDevice, slot, consumers }: Transfer): number {
  if (!sendDevice.startsWith('/job:worker')) return arrows.indexOf(slot === undefined ? 'done' : 'rows');
  return arrows.indexOf(consumers.some(({ op }) => op === 'GatherV2') ? 'ids' : 'gradients');
}

async function measuredCosts(): Promise<{ costs: Costs; measured: { unfused: StepCost; fused: StepCost } }> {
  const place = localPlace({ ranks: 2, secret: randomBytes(32).toString('hex'), timeoutMs: 1_200_000 });
  const program = fileURLToPath(new URL('step-cost.ts', import.meta.url));
  const printed = await place.run({
    command: [process.execPath, '--import', 'tsx', program],
    environment: { SHOAL_PS: '1', ...grpcGraphEnvironment },
  });
  const [unfused, fused] = JSON.parse(printed.trim().split('\n').at(-1) ?? '') as StepCost[];
  const perRequest = (key: 'worker' | 'server'): number => (unfused[key] - fused[key]) / (unfused.requests - fused.requests) / 1000;
  const request = { worker: perRequest('worker'), server: perRequest('server') };
  const restOf = (key: 'worker' | 'server'): number => fused[key] / 1000 - fused.requests * request[key];
  return { costs: { request, rest: { worker: restOf('worker'), server: restOf('server') } }, measured: { unfused, fused } };
}

const { values } = programArguments(import.meta.url, {
  options: { steps: { type: 'string', default: '6' }, out: { type: 'string' } },
});
const steps = Number(values.steps);
const serverCounts = [10, 20, 30, 40, 50];
const workerCounts = [5, 20, 100, 400, 1000];
const { costs, measured } = await measuredCosts();
const requestUs = { worker: round(costs.request.worker * 1e6), server: round(costs.request.server * 1e6) };
const restMs = { worker: round(costs.rest.worker * 1e3), server: round(costs.rest.server * 1e3) };
console.log(
  `a request: ${requestUs.worker} µs of the worker's CPU, ${requestUs.server} µs of the server's; the rest of a step: ${restMs.worker} and ${restMs.server} ms\n`,
);
console.log(' workers  servers   RPCs/step    fused   step ms      fused    times as fast   busiest server');
const rows = serverCounts.flatMap((servers) => {
  const kinds = [false, true].map((doFuseRecv) => trafficOf(servers, doFuseRecv));
  const requests = kinds.map((traffic) => traffic.flat().reduce((sum, each) => sum + each.requests, 0));
  return workerCounts.map((workers) => {
    const [unfused, fused] = kinds.map((traffic) => simulateWorkers(workers, traffic, costs, steps));
    const row = {
      workers,
      servers,
      requests: { unfused: requests[0], fused: requests[1] },
      stepMs: { unfused: round(unfused.stepMs), fused: round(fused.stepMs) },
      timesAsFast: round(unfused.stepMs / fused.stepMs, 3),
      busiestServer: { unfused: round(unfused.busiestServer, 2), fused: round(fused.busiestServer, 2) },
    };
    const cells = [workers, servers, requests[0], requests[1]].map((each, k) => String(each).padStart([8, 8, 11, 8][k])).join(' ');
    const times = `${row.stepMs.unfused.toFixed(0).padStart(9)} ${row.stepMs.fused.toFixed(0).padStart(10)}`;
    const busy = [unfused, fused].map(({ busiestServer }) => `${(busiestServer * 100).toFixed(0)} %`).join(', ');
    console.log(`${cells} ${times} ${`× ${row.timesAsFast.toFixed(2)}`.padStart(16)} ${busy.padStart(16)}`);
    return row;
  });
});

const kinds = ['unfused', 'fused'] as const;
const named = { unfused: 'unfused', fused: 'FuseRecv' } as const;
const figures: Figure[] = [
  {
    title: 'A step of wide & deep, by the number of workers',
    xLabel: 'workers',
    x: workerCounts,
    series: [10, 50].flatMap((servers) =>
      kinds.map((kind) => ({
        name: `${servers} servers, ${named[kind]}`,
        values: rows.filter((row) => row.servers === servers).map(({ stepMs }) => stepMs[kind]),
      })),
    ),
  },
  {
    title: 'A step of wide & deep, by the number of parameter servers',
    xLabel: 'parameter servers',
    x: serverCounts,
    series: [400, 1000].flatMap((workers) =>
      kinds.map((kind) => ({
        name: `${workers} workers, ${named[kind]}`,
        values: rows.filter((row) => row.workers === workers).map(({ stepMs }) => stepMs[kind]),
      })),
    ),
  },
];
if (values.out !== undefined) {
  const report = { machine: machine(), costs: { requestUs, restMs, measured }, network: rates, steps, rows, figures };
  writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);
}
