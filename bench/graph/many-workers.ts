/** Hundreds of workers with tens of parameter servers, in virtual time: how long a step of the wide & deep example takes, unfused and with
 *  FuseRecv. The CPU time of a request is measured here first; which tensors cross, and in how many requests, is what the partitioned graph
 *  says; the rest is queues: every worker and every server does one thing at a time, ports share 10 Gbit/s.
 *
 *      worker  ──ids──▶ servers ──rows, weights──▶ worker: computes ──gradients──▶ servers: update ──done──▶ worker: the next step
 *
 *  The requests of one arrow between two tasks are done one after the other, at both ends.
 *
 *    npx tsx bench/graph/many-workers.ts [--out out.json] [--html out.html] [--steps 6]      build first */
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Session, type PartitionedGraph } from 'shoal/graph';
import { seededRandom } from '../../src/base/random.ts';
import { figuresPage } from '../../src/simulate/chart.ts';
import { EventQueue } from '../../src/simulate/event-queue.ts';
import type { Figure } from '../../src/simulate/micro-benchmarks.ts';
import { Port } from '../../src/simulate/port.ts';
import { programArguments } from '../arguments.ts';
import { localPlace } from '../peers/place.ts';
import { machine, round } from './machine.ts';
import { batch, model, type StepCost } from './step-cost.ts';

/** What crosses between the worker and one server in one arrow. */
interface Crossing {
  requests: number;
  tensors: number;
  bytes: number;
}

/** By arrow, then by server. */
type Traffic = readonly (readonly Crossing[])[];

interface Costs {
  /** CPU seconds of a request, at each end. */
  readonly request: { readonly worker: number; readonly server: number };
  /** Of everything else in a step. */
  readonly rest: { readonly worker: number; readonly server: number };
}

const arrows = ['ids', 'rows', 'gradients', 'done'] as const;
const rates = { latency: 50e-6, secondsPerByte: 8 / 10e9, quantumBytes: 64 * 1024 };

/** Of a step of one worker whose tables are on so many servers. */
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

/** Does one thing at a time, in the order asked for. */
class Thread {
  busySeconds = 0;
  #free = 0;

  use(now: number, seconds: number): number {
    this.#free = Math.max(this.#free, now) + seconds;
    this.busySeconds += seconds;
    return this.#free;
  }
}

class Task {
  readonly thread = new Thread();
  readonly port: Port;

  constructor(queue: EventQueue) {
    this.port = new Port(queue, rates);
  }
}

interface Simulated {
  /** From one end of a step to the next, of a worker. */
  readonly stepMs: number;
  readonly busiestServer: number;
}

/** Every worker trains by itself. */
function simulateWorkers(workers: number, traffic: Traffic, { request, rest }: Costs, steps: number): Simulated {
  const queue = new EventQueue();
  const random = seededRandom(1);
  const serverTasks = traffic[0].map(() => new Task(queue));
  const tensorsOfAll = traffic.flat().reduce((sum, { tensors }) => sum + tensors, 0);
  let [firstEnds, lastEnd] = [0, 0];

  for (let worker = 0; worker < workers; worker++) {
    const own = new Task(queue);
    let step = 0;
    const begin = (now: number): void => {
      if (step++ < steps) cross(now, 0);
    };
    const cross = (now: number, arrow: number): void => {
      const isToServer = arrows[arrow] === 'ids' || arrows[arrow] === 'gradients';
      let missing = 0;
      const arrived = (time: number): void => {
        if (--missing > 0) return;
        const computed = arrows[arrow] === 'rows' ? own.thread.use(time, rest.worker) : time;
        if (arrow + 1 < arrows.length) queue.at(computed, { act: (next) => cross(next, arrow + 1) });
        else queue.at(computed, { act: end });
      };
      traffic[arrow].forEach(({ requests, tensors, bytes }, k) => {
        if (tensors === 0) return;
        missing++;
        const server = serverTasks[k];
        const ends = { [isToServer ? 'from' : 'to']: own, [isToServer ? 'to' : 'from']: server };
        const secondsOf = (task: Task): number =>
          requests * (task === own ? request.worker : request.server) + (task === own ? 0 : (rest.server * tensors) / tensorsOfAll);
        const { from, to } = ends;
        const take = (time: number): void => queue.at(time, { act: (at) => queue.at(to.thread.use(at, secondsOf(to)), { act: arrived }) });
        const message = { bytes, target: to.port, left: () => undefined, delivered: take };
        // What a flow is: all between the two.
        queue.at(from.thread.use(now, secondsOf(from)), { act: (time) => from.port.send(time, isToServer ? k : worker, message) });
      });
      if (missing === 0) {
        missing = 1;
        arrived(now);
      }
    };
    const end = (now: number): void => {
      if (step === 1) firstEnds += now / workers;
      lastEnd += step === steps ? now / workers : 0;
      begin(now);
    };
    // They do not begin all at once.
    queue.at(random.next() * rest.worker, { act: begin });
  }
  queue.run();
  const busiestServer = Math.max(...serverTasks.map(({ thread }) => thread.busySeconds)) / queue.now;
  return { stepMs: ((lastEnd - firstEnds) / (steps - 1)) * 1000, busiestServer };
}

async function measuredCosts(): Promise<{ costs: Costs; measured: { unfused: StepCost; fused: StepCost } }> {
  const place = localPlace({ ranks: 2, secret: randomBytes(32).toString('hex'), timeoutMs: 1_200_000 });
  const program = fileURLToPath(new URL('step-cost.ts', import.meta.url));
  const printed = await place.run({ command: [process.execPath, '--import', 'tsx', program], environment: { SHOAL_PS: '1' } });
  const [unfused, fused] = JSON.parse(printed.trim().split('\n').at(-1) ?? '') as StepCost[];
  const perRequest = (key: 'worker' | 'server'): number => (unfused[key] - fused[key]) / (unfused.requests - fused.requests) / 1000;
  const request = { worker: perRequest('worker'), server: perRequest('server') };
  const restOf = (key: 'worker' | 'server'): number => fused[key] / 1000 - fused.requests * request[key];
  return { costs: { request, rest: { worker: restOf('worker'), server: restOf('server') } }, measured: { unfused, fused } };
}

const { values } = programArguments(import.meta.url, {
  options: { steps: { type: 'string', default: '6' }, out: { type: 'string' }, html: { type: 'string' } },
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
if (values.html !== undefined) writeFileSync(values.html, figuresPage('Many workers, simulated', figures));
if (values.out !== undefined) {
  const report = { machine: machine(), costs: { requestUs, restMs, measured }, network: rates, steps, rows, figures };
  writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);
}
