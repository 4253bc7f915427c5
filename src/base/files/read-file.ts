/** Reads files whose path a person or a peer has named: regular files only, and no further than the size that the system states.
 *  A pipe may never have a writer, and a device has no end.
 *
 *      open, without waiting ─▶ fstat ─▶ refuse all but a regular file ─▶ read so many bytes */
import { closeSync, constants, fstatSync, openSync, readSync, type Stats } from 'node:fs';
import * as fs from 'node:fs/promises';
import { ShoalError } from '../errors.ts';

export interface FileBound {
  /** Largest file; a larger one is refused. */
  readonly bytesMax: number;
}

// Without O_NONBLOCK, opening a pipe waits for a writer.
const flags = constants.O_RDONLY | constants.O_NONBLOCK;

/** @param open is for tests. @throws ShoalError `usage` when it is not a regular file; errors of the file system as they are. */
export async function openRegularFile(path: string, open = fs.open): Promise<fs.FileHandle> {
  const file = await open(path, flags);
  try {
    sizeOf(path, await file.stat());
    return file;
  } catch (thrown) {
    await file.close();
    throw thrown;
  }
}

/** Like `openRegularFile`, for the synchronous calls. */
export function openRegularFileSync(path: string): number {
  const file = openSync(path, flags);
  try {
    sizeOf(path, fstatSync(file));
    return file;
  } catch (thrown) {
    closeSync(file);
    throw thrown;
  }
}

/** The whole file. @throws ShoalError `usage` when it is not a regular file, or too large; errors of the file system as they are. */
export async function readRegularFile(path: string, bound: FileBound): Promise<Buffer> {
  const file = await openRegularFile(path);
  try {
    const bytes = Buffer.allocUnsafeSlow(sizeOf(path, await file.stat(), bound));
    let filled = 0;
    for (let read = 1; read > 0 && filled < bytes.length; filled += read)
      ({ bytesRead: read } = await file.read(bytes, filled, bytes.length - filled));
    return bytes.subarray(0, filled);
  } finally {
    await file.close();
  }
}

/** Like `readRegularFile`, but synchronous. */
export function readRegularFileSync(path: string, bound: FileBound): Buffer {
  const file = openRegularFileSync(path);
  try {
    return readPart(file, 0, sizeOf(path, fstatSync(file), bound));
  } finally {
    closeSync(file);
  }
}

/** Reads bytes at a position; fewer where the file ends before. */
export function readPart(file: number, position: number, bytes: number): Buffer {
  const buffer = Buffer.allocUnsafeSlow(Math.max(0, bytes));
  let filled = 0;
  for (let read = 1; read > 0 && filled < buffer.length; filled += read)
    read = readSync(file, buffer, filled, buffer.length - filled, position + filled);
  return buffer.subarray(0, filled);
}

function sizeOf(path: string, stats: Stats, { bytesMax }: FileBound = { bytesMax: Infinity }): number {
  if (!stats.isFile()) throw new ShoalError('usage', `${path} is ${kindOf(stats)}; only regular files are read`);
  if (stats.size > bytesMax) throw new ShoalError('usage', `${path} has ${stats.size} bytes; files of up to ${bytesMax} are read`);
  return stats.size;
}

function kindOf(stats: Stats): string {
  if (stats.isFIFO()) return 'a pipe';
  if (stats.isDirectory()) return 'a folder';
  return stats.isCharacterDevice() || stats.isBlockDevice() ? 'a device' : 'not a file';
}
