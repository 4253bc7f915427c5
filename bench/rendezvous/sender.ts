/** Sends the tensors of all cases, for all contestants: nothing moves before it is asked for.
 *
 *    sender.ts <host to listen on> <host | network> <scale> <cases> */
import { casesOf, firstStep, identities, start, stepsOf, window, type Case, type Place, type Worker } from './workload.ts';

const [host, place, scale, wanted] = process.argv.slice(2);
const cases = casesOf(place as Place, Number(scale), wanted);
const elements = Math.max(...cases.map(({ counts }) => Math.max(...counts)));
// All tensors share one array: data that is sent is only read.
const source = new Float32Array(elements).map((_, k) => k % 1000);
const addresses: Record<string, string> = {};
for (const contestant of new Map(cases.flatMap(({ contestants }) => contestants).map((each) => [each.name, each])).values()) {
  const worker = await start(0, contestant, host);
  addresses[contestant.name] = worker.address;
  cases.forEach((each, index) => {
    if (each.contestants.some(({ name }) => name === contestant.name)) void serve(worker, each, index);
  });
}
console.log(JSON.stringify(addresses));

async function serve(worker: Worker, { counts, ...rest }: Case, index: number): Promise<void> {
  const ahead: Promise<void>[] = [];
  const steps = stepsOf({ counts, ...rest });
  for (let k = 0; k < steps; k++) {
    const step = worker.beginStep(firstStep(index) + k);
    const sent = counts.map((count, tensor) => step.send(identities[1], `tensor${tensor}`, source.subarray(0, count)));
    ahead.push(Promise.all(sent).then(() => step.end()));
    if (ahead.length >= window) await ahead.shift();
  }
}
