import { link, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { systemClock } from '../base/clock.ts';
import { systemRandom } from '../base/random.ts';
import { describeStore } from './conformance.ts';
import { FileStore } from './file-store.ts';

const options = { clock: systemClock, random: systemRandom };

describeStore('file', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'shoal-file-store-'));
  return {
    client: () => FileStore.open(join(directory, 'store'), options),
    close: () => rm(directory, { recursive: true }),
  };
});

describe('file store', () => {
  it('ignores what a killed writer left, keeps no drafts, and lets late clients read everything', async () => {
    const directory = temporaryFolder('file-store');
    await writeFile(join(directory, 'tmp-00ff'), 'half a rec');
    const store = await FileStore.open(directory, options);
    for (let i = 0; i < 5; i++) await store.add('n', 1);
    await store.close();
    expect((await readdir(directory)).sort()).toEqual(['0000000000', '0000000001', '0000000002', '0000000003', '0000000004', 'tmp-00ff']);
    const late = await FileStore.open(directory, options);
    expect(await late.add('n', 1)).toBe(6);
    await late.close();
  });

  it('does once what a file server is asked twice, because its answer got lost', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'shoal-file-store-'));
    try {
      const again = async (...[from, to]: Parameters<typeof link>): Promise<void> => {
        await link(from, to);
        await link(from, to);
      };
      const [one, other] = await Promise.all([again, link].map((how) => FileStore.open(directory, { ...options, link: how })));
      for (let k = 0; k < 3; k++) await Promise.all([one.add('n', 1), other.add('n', 1)]);
      expect([await one.add('n', 0), await other.add('n', 0)]).toEqual([6, 6]);
      await Promise.all([one.close(), other.close()]);
    } finally {
      await rm(directory, { recursive: true });
    }
  });

  it('refuses records that are none, and a full log', async () => {
    const directory = temporaryFolder('file-store');
    const store = await FileStore.open(directory, { ...options, maxRecords: 1 });
    await store.set('a', Uint8Array.of(1));
    await expect(store.set('a', Uint8Array.of(2))).rejects.toMatchObject({ code: 'out-of-memory' });
    await writeFile(join(directory, '0000000001'), 'no record at all');
    await expect(store.check(['a'])).rejects.toMatchObject({ code: 'protocol' });
    await store.close();
  });

  it('says why a directory cannot be made', async () => {
    await expect(FileStore.open('/dev/null/store', options)).rejects.toMatchObject({
      code: 'system',
      message: expect.stringContaining('/dev/null/store'),
    });
  });
});
