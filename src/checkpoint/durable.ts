/** Files and folders that last: their content, and their entries in the folders above, are on the disk before anything else is done.
 *  Source: Pillai et al., "All file systems are not created equal", OSDI 2014. */
import { mkdir, open, readdir, rename, rm, type FileHandle } from 'node:fs/promises';
import { dirname } from 'node:path';

/** The functions of the file system that are used. */
export const fileCalls = { mkdir, open, readdir, rename, rm };
export type FileCalls = typeof fileCalls;

/** Makes a file. @returns the number of bytes written. */
export async function writeDurably(path: string, write: (file: FileHandle) => Promise<void>, calls = fileCalls): Promise<number> {
  const file = await calls.open(path, 'w');
  try {
    await write(file);
    await file.sync();
    return (await file.stat()).size;
  } finally {
    await file.close();
  }
}

/** Makes the folder and those above it that are missing: one after the other, because a recursive `mkdir` tries for ever where no
 *  folder can be made, as in /proc. */
export async function makeDurably(folder: string, calls = fileCalls, isBelowMade = false): Promise<void> {
  try {
    await calls.mkdir(folder);
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    if (code === 'EEXIST') return;
    if (code !== 'ENOENT' || isBelowMade) throw thrown;
    await makeDurably(dirname(folder), calls);
    return makeDurably(folder, calls, true);
  }
  await syncFolder(dirname(folder), calls);
}

/** The entries of a folder last. */
export async function syncFolder(folder: string, calls = fileCalls): Promise<void> {
  const handle = await calls.open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Numbers in the names of a folder's entries, ascending; none where there is no folder. */
export async function numbersIn(folder: string, pattern: RegExp, calls = fileCalls): Promise<number[]> {
  const names = await calls.readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
  return names
    .flatMap((name) => Number(pattern.exec(name)?.[1] ?? 0))
    .filter((number) => number > 0)
    .sort((a, b) => a - b);
}
