// Two workers of a rendezvous without a group: worker 1 asks worker 0 for tensors, and prints the time of each.
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { RendezvousWorker } from 'shoal/rendezvous';

const cases = [
  { bytes: 1024, times: 500 },
  { bytes: 65_536, times: 500 },
  { bytes: 4 << 20, times: 60 },
];
const warmUps = 50;
const [address] = process.argv.slice(2);
const secret = 'a secret for a benchmark on one machine';
const worker = await RendezvousWorker.start({ rank: address === undefined ? 0 : 1, secret });

if (address === undefined) {
  const other = fork(fileURLToPath(import.meta.url), [worker.address]);
  const peer = await worker.peer(1);
  let id = 1;
  for (const { bytes, times } of cases) {
    const data = new Float32Array(bytes / 4).fill(1);
    for (let k = 0; k < times + warmUps; k++) {
      const step = worker.beginStep(id++);
      await step.send(peer, 'x', data);
      step.end();
    }
  }
  await new Promise((resolve) => other.once('exit', resolve));
} else {
  const peer = await worker.connect(address);
  const rows = [];
  let id = 1;
  for (const { bytes, times } of cases) {
    const took = [];
    for (let k = 0; k < times + warmUps; k++) {
      const startMs = performance.now();
      const step = worker.beginStep(id++);
      const x = await step.recv(peer, 'x');
      x.release();
      step.end();
      if (k >= warmUps) took.push((performance.now() - startMs) * 1000);
    }
    rows.push({ case: `a tensor of ${bytes} bytes asked for`, us: took });
  }
  console.log(JSON.stringify(rows));
}
await worker.close();
