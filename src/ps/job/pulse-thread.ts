/** Entry of the thread that shows that its process runs: see pulse.ts. */
import { parentPort } from 'node:worker_threads';
import { must } from '../../base/assert.ts';
import { systemClock } from '../../base/clock.ts';
import { systemRandom } from '../../base/random.ts';
import { StoreServer } from '../../store/store-server.ts';
import type { PulsePlace } from './pulse.ts';

const parent = must(parentPort, () => 'the pulse is a thread');
const place = await new Promise<PulsePlace>((resolve) => parent.once('message', resolve));
const { port } = await StoreServer.listen({ ...place, clock: systemClock, random: systemRandom });
parent.postMessage(port);
