// Two workers of a rendezvous without a group: worker 1 asks worker 0 for tensors.
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { RendezvousWorker } from 'shoal/rendezvous';
import { takeTurns, timed } from './turns.mjs';

const sizes = [
  { bytes: 1024, times: 200, warmUps: 4000 },
  { bytes: 65_536, times: 100, warmUps: 3000 },
  { bytes: 4 << 20, times: 20, warmUps: 200 },
];
const [address] = process.argv.slice(2);
const secret = 'a secret for a benchmark on one machine';
const worker = await RendezvousWorker.start({ rank: address === undefined ? 0 : 1, secret });
const other = address === undefined ? fork(fileURLToPath(import.meta.url), [worker.address]) : undefined;
const peer = other ? await worker.peer(1) : await worker.connect(address);
let id = 1;

async function inStep(body) {
  const step = worker.beginStep(id++);
  await body(step);
  step.end();
}

await takeTurns(
  sizes.map(({ bytes, ...turns }) => {
    const data = new Float32Array(bytes / 4).fill(1);
    const sends = (step) => step.send(peer, 'x', data);
    const asks = async (step) => (await step.recv(peer, 'x')).release();
    const run = async (times) => {
      const took = await timed(times, () => inStep(other ? sends : asks));
      return other ? [] : took;
    };
    return { name: `a tensor of ${bytes} bytes asked for`, ...turns, run };
  }),
);
if (other) await new Promise((resolve) => other.once('exit', resolve));
await worker.close();
