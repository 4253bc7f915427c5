/** Writes files for people and for other programs: a file appears under its name only when it is whole, also when the process
 *  dies meanwhile. */
import { closeSync, lstatSync, openSync, renameSync, rmSync, writeSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { messageOf, ShoalError } from '../errors.ts';
import type { Logger } from '../log.ts';
import { makeFolders } from './make-folders.ts';

const batchCharacters = 1 << 18;

/** Writes the file that a user named, making its folder. @throws ShoalError `system` naming the path. */
export function writeFileAt(path: string, text: string): string {
  return writeFileWhole(dirname(path), basename(path), [text]);
}

/** Writes `folder/name` from pieces of text, making the folder, and returns the path.
 *  @throws ShoalError `system` naming the path. */
export function writeFileWhole(folder: string, name: string, pieces: Iterable<string>): string {
  const path = join(folder, name);
  const unfinished = isReplaceable(path) ? `${path}.${process.pid}.part` : path;
  try {
    makeFolders(folder);
    const file = openSync(unfinished, 'w');
    try {
      let batch = '';
      for (const piece of pieces) {
        batch += piece;
        if (batch.length < batchCharacters) continue;
        writeAll(file, batch);
        batch = '';
      }
      writeAll(file, batch);
    } finally {
      closeSync(file);
    }
    if (unfinished !== path) renameSync(unfinished, path);
    return path;
  } catch (thrown) {
    if (unfinished !== path) discard(unfinished);
    const { code } = thrown as NodeJS.ErrnoException;
    const next = code === 'ENOSPC' || code === 'EDQUOT' ? 'make room there' : 'is the folder writable?';
    throw new ShoalError('system', `cannot write ${path}: ${messageOf(thrown)}; ${next}`, { cause: thrown });
  }
}

/** Writes what a job can do without, such as a trace: an error is a warning, and the job has the result that it has. */
export function writeOrWarn(log: Pick<Logger, 'warn'>, write: () => void): void {
  try {
    write();
  } catch (thrown) {
    log.warn(`${messageOf(thrown)}; the job goes on without it`);
  }
}

/** False for devices, pipes and links, such as /dev/stdout and /dev/null: they stay, and are written to. */
function isReplaceable(path: string): boolean {
  try {
    return lstatSync(path).isFile();
  } catch {
    return true;
  }
}

function discard(path: string): void {
  try {
    rmSync(path, { force: true });
  } catch {
    // The folder itself is unusable; the error of the write says so.
  }
}

function writeAll(file: number, text: string): void {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length;) at += writeSync(file, bytes, at);
}
