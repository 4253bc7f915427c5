import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../testing/temporary-folder.ts';
import { openRegularFile, openRegularFileSync, readRegularFile, readRegularFileSync } from './read-file.ts';

const folder = temporaryFolder('read', afterAll);
const at = (name: string): string => join(folder, name);
writeFileSync(at('file'), 'ten bytes.');
symlinkSync(at('file'), at('link'));
execFileSync('mkfifo', [at('pipe')]);
symlinkSync('/dev/zero', at('endless'));
mkdirSync(at('folder'));

describe.each([
  ['readRegularFile', readRegularFile, openRegularFile],
  [
    'readRegularFileSync',
    async (...of: Parameters<typeof readRegularFileSync>) => readRegularFileSync(...of),
    async (path: string) => openRegularFileSync(path),
  ],
] as const)('%s', (_, read, open) => {
  it('reads a whole file, also through a link', async () => {
    expect((await read(at('file'), { bytesMax: 10 })).toString()).toBe('ten bytes.');
    expect((await read(at('link'), { bytesMax: 100 })).toString()).toBe('ten bytes.');
  });

  it.each([
    ['pipe', 'is a pipe; only regular files are read'],
    ['endless', 'is a device; only regular files are read'],
    ['folder', 'is a folder; only regular files are read'],
  ])('refuses a %s without waiting for it', async (name, why) => {
    const error = { code: 'usage', message: `${at(name)} ${why}` };
    await expect(read(at(name), { bytesMax: 100 })).rejects.toMatchObject(error);
    await expect(open(at(name))).rejects.toMatchObject(error);
  });

  it('refuses a file that is larger than may be, and one that is not there as the system does', async () => {
    await expect(read(at('file'), { bytesMax: 9 })).rejects.toMatchObject({
      code: 'usage',
      message: `${at('file')} has 10 bytes; files of up to 9 are read`,
    });
    await expect(read(at('nothing'), { bytesMax: 9 })).rejects.toMatchObject({ code: 'ENOENT' });
  });
});
