/** Diagnostics on disk: a file appears under its name only when it is whole, also when the process dies meanwhile. */
import { closeSync, openSync, renameSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf, ShoalError } from '../base/errors.ts';
import { makeFolders } from '../base/make-folders.ts';

const batchCharacters = 1 << 18;

/** Writes `folder/name` from pieces of text, making the folder, and returns the path.
 *  @throws ShoalError `system` naming the path. */
export function writeFileWhole(folder: string, name: string, pieces: Iterable<string>): string {
  const path = join(folder, name);
  const unfinished = `${path}.${process.pid}.part`;
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
    renameSync(unfinished, path);
    return path;
  } catch (thrown) {
    discard(unfinished);
    throw new ShoalError('system', `cannot write ${path}: ${messageOf(thrown)}; is the folder writable?`, { cause: thrown });
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
