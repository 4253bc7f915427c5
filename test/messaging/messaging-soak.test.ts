/** Messages under random faults, in short. In long: tsx test/soaks/messaging.ts. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { systemRandom } from '../../src/base/random.ts';
import { shmUnavailable } from '../../src/fabric/providers/shm.ts';
import { soak } from '../support/messaging-soak.ts';

const seed = Number(process.env.SOAK_SEED ?? systemRandom.integer(1_000_000));

const endpoints = [
  { name: 'tcp', url: 'tcp://127.0.0.1:*' },
  { name: 'ipc', url: 'ipc://FOLDER/router' },
  { name: 'fabric over tcp', url: 'fabric://tcp' },
  { name: 'fabric over shm', url: 'fabric://shm', missing: shmUnavailable() },
];

describe(`each message once, in order, whatever happens (SOAK_SEED=${seed})`, () => {
  for (const { name, url, missing } of endpoints) {
    it(
      name,
      async (context) => {
        if (missing !== undefined) context.skip(missing);
        const folder = await mkdtemp(join(tmpdir(), 'shoal-soak-'));
        context.onTestFinished(() => rm(folder, { recursive: true }));
        const { received } = await soak({ url: url.replace('FOLDER', folder), seed, faults: 3 });
        expect(received).toBeGreaterThan(0);
      },
      600_000,
    );
  }
});
