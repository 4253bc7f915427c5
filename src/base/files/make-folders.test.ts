import { statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { temporaryFolder } from '../testing/temporary-folder.ts';
import { makeFolders } from './make-folders.ts';

const folder = temporaryFolder('folders', afterAll);

it('makes missing folders, and nothing twice', () => {
  const path = join(folder, 'a', 'b', 'c');
  makeFolders(path);
  makeFolders(path);
  expect(statSync(path).isDirectory()).toBe(true);
});

it('throws where a file is in the way, and where nothing can be made', () => {
  writeFileSync(join(folder, 'file'), '');
  // Node.js 24 names the existing file.
  expect(() => makeFolders(join(folder, 'file', 'b'))).toThrow(/ENOTDIR|EEXIST.*file'/);
  expect(() => makeFolders(join(folder, 'file'))).toThrow(/EEXIST/);
  expect(() => makeFolders('/proc/shoal/b')).toThrow(/ENOENT|EACCES|EPERM/);
});
