/** A worker that prints its address, has `here` in a step and never `missing`, sends `answer` when `question` has come, and waits for its
 *  end. Worker 9 connects to it; with an address of worker 9 it connects instead.
 *
 *    rendezvous-sender.ts <rank> <carrier> <step> [<address>] */
import { RendezvousWorker } from '../../src/rendezvous/index.ts';

const [rank, carrier, stepId, address] = process.argv.slice(2);
const worker = await RendezvousWorker.start({ rank: Number(rank), secret: 'test', carriers: [carrier] });
console.log(worker.address);
const receiver = await (address === undefined ? worker.peer(9) : worker.connect(address));
const large = new Float32Array(1 << 20).fill(Number(rank));
const step = worker.beginStep(Number(stepId));
void step.send(receiver, 'here', large);
step.recv(receiver, 'question').then(
  (question) => step.send(receiver, 'answer', question!),
  () => undefined,
);
setInterval(() => undefined, 1000);
