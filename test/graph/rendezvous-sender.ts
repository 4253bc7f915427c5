/** A worker that prints its address, has `here` in step 1 and never `missing`, and waits for its end.
 *
 *    rendezvous-sender.ts <rank> <carrier> */
import { RendezvousWorker } from '../../src/rendezvous/index.ts';

const [rank, carrier] = process.argv.slice(2);
const worker = await RendezvousWorker.start({ rank: Number(rank), secret: 'test', carriers: [carrier] });
console.log(worker.address);
const receiver = await worker.peer(9);
const large = new Float32Array(1 << 20).fill(Number(rank));
void worker.beginStep(1).send(receiver, 'here', large);
setInterval(() => undefined, 1000);
