/** The other thread of the messaging benchmark: echoes over inproc, and over its parent port. */
import { parentPort, workerData } from 'node:worker_threads';
import { Dealer, MessagingContext } from '../../src/messaging/index.ts';

parentPort!.on('message', (message: Uint8Array) => parentPort!.postMessage(message));
const context = new MessagingContext({ world: 'bench', secret: new Uint8Array(1) });
const dealer = new Dealer(context, { address: 1n });
await dealer.connect(workerData as string);
for await (const msg of dealer) {
  msg.swapAddress();
  dealer.send(msg);
}
