/** The server's host of bench/scheduler/training.ts: the store where processes meet, and one parameter server. */
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { StoreServer } from '../../src/store/store-server.ts';
import { builtEntry } from '../../src/base/packages/package-root.ts';

const { SHOAL_SECRET = '', SHOAL_JOB = '', MASTER_PORT } = process.env;
await StoreServer.listen({
  clock: systemClock,
  random: systemRandom,
  secret: new TextEncoder().encode(SHOAL_SECRET),
  world: SHOAL_JOB,
  host: 'any',
  port: Number(MASTER_PORT),
});
await import(builtEntry('ps/server/server-entry.js'));
