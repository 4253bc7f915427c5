/** The server (rank 0) or a worker of the replay. Prints its addresses, reads those of all; the server prints the time of each step.
 *
 *    replay-process.ts <rank> <workers> <host to listen on> <plan> */
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { RendezvousWorker, type WorkerIdentity } from 'shoal/rendezvous';
import { systemClock } from '../../src/base/clock.ts';
import { contestants, replayLayers, schedule, type ReplayPlan, type Samples } from './replay-plan.ts';
import { consume, start, type Contestant, type Worker } from './workload.ts';

const [rankText, workersText, host, planText] = process.argv.slice(2);
const [rank, workers] = [Number(rankText), Number(workersText)];
const plan = JSON.parse(planText) as ReplayPlan;
const layers = replayLayers(plan);
const own = await Promise.all(contestants.map((contestant) => start(rank, contestant, host)));
console.log(JSON.stringify(own.map(({ address }) => address)));
const { value } = await createInterface({ input: process.stdin })[Symbol.asyncIterator]().next();
const addresses = JSON.parse(value as string) as string[][];

/** The workers with which this process exchanges tensors, by contestant. */
const peers: readonly (readonly WorkerIdentity[])[] = await Promise.all(
  own.map(async (worker, k) => {
    const others = rank === 0 ? Array.from({ length: workers }, (_, index) => index + 1) : [0];
    // Over gRPC, each process asks over a connection of its own.
    return Promise.all(
      others.map((other) => (rank === 0 && worker instanceof RendezvousWorker ? worker.peer(other) : worker.connect(addresses[other][k]))),
    );
  }),
);
// All tensors share one array: data that is sent is only read.
const source = new Float32Array(Math.max(...layers.map(({ count }) => count))).fill(rank);
if (rank === 0) console.log(JSON.stringify(await serve()));
else await work();

/** A parameter goes out for the next step as soon as its gradients are there: steps overlap as far as the workers' do. */
async function serve(): Promise<Samples> {
  const samples: Record<string, number[]> = Object.fromEntries(contestants.map(({ name }) => [name, []]));
  let endedMs = 0;
  let complete: readonly Promise<void>[] = [];
  let ended: Promise<void> = Promise.resolve();
  for (const { contestant, stepId, counts } of schedule(plan)) {
    if (!counts) {
      // A contestant's first step begins when the one before has ended, with its parameters there at once.
      await ended;
      complete = layers.map(() => Promise.resolve());
    }
    const step = own[contestant].beginStep(stepId);
    const [before, updatedBefore] = [ended, complete];
    complete = layers.map(async ({ name, count }, layer) => {
      const received = peers[contestant].map((worker) => step.recv(worker, `${name} gradient`));
      await updatedBefore[layer];
      for (const worker of peers[contestant]) void step.send(worker, name, source.subarray(0, count));
      for (const [k, gradient] of (await Promise.all(received)).entries())
        consume(gradient, contestants[contestant], (data) => {
          if (data.length !== count || data[count - 1] !== peers[contestant][k].rank) throw new Error(`${name} is another`);
        });
    });
    const tensors = complete;
    ended = (async () => {
      await Promise.all(tensors);
      const nowMs = systemClock.now();
      if (counts) samples[contestants[contestant].name].push(nowMs - endedMs);
      endedMs = nowMs;
      // All gradients have come, so all parameters have gone.
      step.end();
    })();
    await before;
  }
  await ended;
  return samples;
}

async function work(): Promise<void> {
  for (const { contestant, stepId } of schedule(plan))
    await trainStep(own[contestant], contestants[contestant], peers[contestant][0], stepId);
}

async function trainStep(worker: Worker, contestant: Contestant, server: WorkerIdentity, stepId: number): Promise<void> {
  const step = worker.beginStep(stepId);
  const parameters = layers.map(({ name }) => step.recv(server, name));
  let busyUntilMs = systemClock.now();
  for (const [layer, { forwardMs }] of layers.entries()) {
    const parameter = await parameters[layer];
    busyUntilMs = Math.max(busyUntilMs, systemClock.now()) + forwardMs;
    consume(parameter, contestant, () => {});
  }
  const sent: Promise<void>[] = [];
  for (const { name, count, backwardMs } of layers.toReversed()) {
    busyUntilMs += backwardMs;
    const waitMs = busyUntilMs - systemClock.now();
    if (waitMs > 0) await sleep(waitMs);
    sent.push(step.send(server, `${name} gradient`, source.subarray(0, count)));
  }
  await Promise.all(sent);
  step.end();
}
