/** Asks for the tensors of all cases, contestants in turn, and prints the time of each sample.
 *
 *    receiver.ts <host to listen on> <host | network> <scale> <cases> <addresses> */
import { RendezvousWorker, type TensorCounters, type WorkerIdentity } from 'shoal/rendezvous';
import { systemClock } from '../../src/base/clock.ts';
import { getOrMake } from '../../src/base/collections/lists.ts';
import { median } from '../../src/base/numbers.ts';
import { casesOf, consume, firstStep, start, stepsOf, type Case, type Contestant, type Place, type Worker } from './workload.ts';

const [host, place, scale, wanted, addressText] = process.argv.slice(2);
const addresses = JSON.parse(addressText) as Record<string, string>;

export interface Result {
  readonly case: string;
  readonly contestant: string;
  readonly bytesPerStep: number;
  readonly tensorsPerStep: number;
  /** Time of one step, by sample. */
  readonly stepMs: readonly number[];
  /** Control messages that the receiver has sent, and bytes that it has copied, per step. */
  readonly messagesPerStep: number;
  readonly bytesCopied: number;
}

const cases = casesOf(place as Place, Number(scale), wanted);
/** One for all cases: the sender has tensors of later cases ready for it. */
const connected = new Map<string, Promise<Connected>>();
const results: Result[] = [];
for (const [index, each] of cases.entries()) results.push(...(await measure(each, index)));
console.log(JSON.stringify(results));
process.exit(0);

async function measure(of: Case, index: number): Promise<Result[]> {
  const runs = await Promise.all(of.contestants.map((contestant) => prepare(of, index, contestant)));
  // Contestants take turns sample by sample, so that the machine's noise meets all alike.
  for (let sample = 0; sample < of.samples + of.warmUps; sample++) for (const run of runs) await run.sample(sample >= of.warmUps);
  return runs.map(({ result }) => result());
}

interface Connected {
  readonly worker: Worker;
  readonly sender: WorkerIdentity;
}

async function connect(contestant: Contestant): Promise<Connected> {
  const longest = cases.map(({ counts }) => Math.max(...counts));
  const worker = await start(1, contestant, host, longest);
  return { worker, sender: await worker.connect(addresses[contestant.name]) };
}

async function prepare(of: Case, index: number, contestant: Contestant) {
  const { counts, stepsPerSample } = of;
  const { worker, sender } = await getOrMake(connected, contestant.name, () => connect(contestant));
  const names = counts.map((_, tensor) => `tensor${tensor}`);
  const stepMs: number[] = [];
  let stepId = firstStep(index);
  let before: TensorCounters | undefined;
  let bytesCopied = 0;
  const counters = (): TensorCounters | undefined => (worker instanceof RendezvousWorker ? { ...worker.counters } : undefined);
  const one = async (): Promise<void> => {
    const step = worker.beginStep(stepId++);
    const values = await Promise.all(names.map((name) => step.recv(sender, name)));
    for (const [k, value] of values.entries())
      bytesCopied += consume(value, contestant, (data) => {
        if (data.length !== counts[k] || data[counts[k] - 1] !== (counts[k] - 1) % 1000)
          throw new Error(`${contestant.name} brought something else`);
      });
    step.end();
  };
  if (contestant.standing !== undefined && worker instanceof RendezvousWorker) {
    await one();
    for (const name of names) worker.stand(sender, name, { firstStep: stepId, depth: contestant.standing });
  }
  return {
    async sample(counts_: boolean): Promise<void> {
      if (counts_ && before === undefined) {
        before = counters();
        bytesCopied = 0;
      }
      const steps = Math.min(stepsPerSample, firstStep(index) + stepsOf(of) - stepId);
      const took: number[] = [];
      for (let k = 0; k < steps; k++) {
        const startMs = systemClock.now();
        await one();
        took.push(systemClock.now() - startMs);
      }
      if (counts_) stepMs.push(of.sampleOf === 'mean' ? mean(took) : median(took));
    },
    result(): Result {
      const after = counters();
      const steps = stepMs.length * stepsPerSample;
      return {
        case: of.name,
        contestant: contestant.name,
        bytesPerStep: counts.reduce((sum, count) => sum + 4 * count, 0),
        tensorsPerStep: counts.length,
        stepMs,
        messagesPerStep: after === undefined ? counts.length : (after.messagesSent - before!.messagesSent) / steps,
        bytesCopied: after === undefined ? Number.NaN : after.bytesCopied - before!.bytesCopied + bytesCopied,
      };
    },
  };
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
