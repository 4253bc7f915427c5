/** Messages between real processes under random faults: `npx tsx test/soaks/messaging.ts [seconds] [seed]`, over every backend
 *  in turn. Exit code 1 and the seed when a message came twice, late or never, or nothing moves any more. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemRandom } from '../../src/base/random.ts';
import { shmUnavailable } from '../../src/fabric/providers/shm.ts';
import buildFixtures from '../support/fixtures.ts';
import { soak } from '../support/messaging-soak.ts';

const [seconds = '60', firstSeed = String(systemRandom.integer(1_000_000))] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'shoal-soak-'));
const urls = ['tcp://127.0.0.1:*', `ipc://${folder}/router`, 'fabric://tcp', ...(shmUnavailable() === undefined ? ['fabric://shm'] : [])];
await buildFixtures();
for (const [k, url] of urls.entries()) {
  const seed = Number(firstSeed) + k;
  console.log(`${url}, seed ${seed}`);
  try {
    const { faults, received } = await soak({ url, seed, faults: Infinity, seconds: Number(seconds) / urls.length });
    console.log(`  ${received} messages, faults ${JSON.stringify(faults)}`);
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  }
}
rmSync(folder, { recursive: true });
