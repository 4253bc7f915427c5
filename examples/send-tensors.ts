/** Two processes, no process group: worker 1 asks worker 0 for weights, computes, and sends gradients back, by name and step. The tensors
 *  are written straight from the arrays of one process to memory of the other.
 *
 *      npx tsx examples/send-tensors.ts
 *
 *  A run takes about 1.5 s of CPU time, measured on two CPUs. */
import { fork } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { RendezvousWorker } from 'shoal/rendezvous';

const steps = 3;
const count = 1 << 20;
const [address] = process.argv.slice(2);
const secret = process.env.SEND_TENSORS_SECRET ?? randomBytes(16).toString('hex');

/** Has the weights. */
async function serve(): Promise<void> {
  const worker = await RendezvousWorker.start({ rank: 0, secret });
  const env = { ...process.env, SEND_TENSORS_SECRET: secret };
  fork(fileURLToPath(import.meta.url), [worker.address], { env });
  const other = await worker.peer(1);
  const weights = new Float32Array(count).fill(1);
  for (let step = 1; step <= steps; step++) {
    const here = worker.beginStep(step);
    const sent = [here.send(other, 'weights', weights), here.send(other, 'hint', `step ${step} of ${steps}`)];
    const gradients = await here.recv(other, 'gradients');
    await Promise.all(sent); // the weights may be changed now
    for (let k = 0; k < count; k++) weights[k] -= 0.5 * Number(gradients!.data[k]);
    gradients!.release(); // its memory takes the next ones
    here.end();
  }
  console.log(`weights after ${steps} steps: ${weights[0]}, copied bytes: ${worker.counters.bytesCopied}`);
  await worker.close();
}

/** Computes: the gradient of x²/2 is x. */
async function work(): Promise<void> {
  const worker = await RendezvousWorker.start({ rank: 1, secret });
  const server = await worker.connect(address);
  for (let step = 1; step <= steps; step++) {
    const here = worker.beginStep(step);
    const [weights, hint] = await here.recvFused(server, ['weights', 'hint']);
    const gradients = Float32Array.from(weights!.data as Float32Array);
    console.log(`${String(hint!.data[0])}: weights ${gradients[0]}`);
    weights!.release();
    await here.send(server, 'gradients', gradients);
    here.end();
  }
  await worker.close();
}

await (address === undefined ? serve() : work());
