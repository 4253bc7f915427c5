/** Snapshots in a folder, safe against a crash at any moment.
 *
 *    snapshot-00000007.safetensors      the one before
 *    snapshot-00000008.safetensors      the latest
 *    snapshot.part                      being written; worthless
 *
 *    write .part ─▶ fsync ─▶ rename to the next number ─▶ fsync the folder ─▶ remove all but the newest two
 *
 *  A file under its number is whole, because its data was durable before it had the name; the folder is synced before anything is
 *  removed. A file that has changed since is found by its checksums; then the one before is used, and a callback is told. One
 *  process writes a folder at a time. Source: Pillai et al., "All file systems are not created equal", OSDI 2014. */
import type { FileHandle } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { isShoalError, messageOf, ShoalError } from '../base/errors.ts';
import { openRegularFile } from '../base/files/read-file.ts';
import type { Logger } from '../base/log.ts';
import { fileCalls, makeDurably, numbersIn, syncFolder, writeDurably, type FileCalls } from './durable.ts';
import { readMetadata, readSnapshot, writeSnapshot } from './snapshot-file.ts';
import type { Snapshot, SnapshotStore } from './snapshot.ts';

/** Number of snapshots that are kept: the latest and the one before. */
const kept = 2;
const pattern = /^snapshot-(\d{8,})\.safetensors$/;

export class SnapshotFolder implements SnapshotStore {
  readonly #folder: string;
  readonly #files: FileCalls;
  readonly #onDamaged: (error: ShoalError) => void;
  #saving = false;

  /** The folder is made by the first `save`. `onDamaged` is called when a file is damaged, and the one before it is tried.
   *  `files` is for tests. */
  constructor(
    folder: string,
    {
      files = fileCalls,
      onDamaged = () => undefined,
    }: { readonly files?: FileCalls; readonly onDamaged?: (error: ShoalError) => void } = {},
  ) {
    this.#folder = folder;
    this.#files = files;
    this.#onDamaged = onDamaged;
  }

  /** A folder whose damaged files are reported as warnings. */
  static warning(folder: string, log: Logger): SnapshotFolder {
    return new SnapshotFolder(folder, {
      onDamaged: ({ message }) => log.warn(`${message}; what was saved before is used where it is whole`),
    });
  }

  async save(snapshot: Snapshot): Promise<void> {
    if (this.#saving) throw new ShoalError('usage', `a snapshot is being saved in ${this.#folder}; wait for it before the next`);
    this.#saving = true;
    try {
      await this.#naming('saved in', () => this.#save(snapshot));
    } finally {
      this.#saving = false;
    }
  }

  async load(save?: string): Promise<Snapshot | undefined> {
    return this.#naming('loaded from', async () => {
      const damages: ShoalError[] = [];
      for (const number of (await numbersIn(this.#folder, pattern, this.#files)).toReversed()) {
        const found = await this.#read(number, async (file) => {
          if (save !== undefined && (await readMetadata(file)).save !== save) return undefined;
          return readSnapshot(file);
        });
        if (isShoalError(found)) {
          damages.push(found);
          this.#onDamaged(found);
        } else if (found !== undefined) return found;
      }
      if (damages.length === 0) return undefined;
      throw new ShoalError(damages[0].code, damages.map(({ message }) => message).join('; '), { cause: damages[0] });
    });
  }

  async saves(): Promise<string[]> {
    return this.#naming('found in', async () => {
      const found: string[] = [];
      for (const number of (await numbersIn(this.#folder, pattern, this.#files)).toReversed()) {
        const metadata = await this.#read(number, readMetadata);
        if (!isShoalError(metadata) && metadata.save !== undefined) found.push(metadata.save);
      }
      return found;
    });
  }

  /** Like `load`, for callers that need a snapshot. @throws ShoalError `usage` when there is none. */
  async loadSaved(): Promise<Snapshot> {
    const snapshot = await this.load();
    if (snapshot === undefined)
      throw new ShoalError('usage', `there is no saved state in ${this.#folder}; load from where saveState wrote`);
    return snapshot;
  }

  /** Reads a file; returns the error of a damaged one. @throws errors of the file system as they are. */
  async #read<T>(number: number, read: (file: FileHandle) => Promise<T>): Promise<T | ShoalError> {
    const path = join(this.#folder, fileName(number));
    try {
      const file = await openRegularFile(path, this.#files.open);
      try {
        return await read(file);
      } finally {
        await file.close();
      }
    } catch (thrown) {
      if (!isShoalError(thrown)) throw thrown;
      return new ShoalError(thrown.code, `${path}: ${thrown.message}`, { cause: thrown });
    }
  }

  async #save(snapshot: Snapshot): Promise<void> {
    await makeDurably(resolve(this.#folder), this.#files);
    const numbers = await numbersIn(this.#folder, pattern, this.#files);
    const part = join(this.#folder, 'snapshot.part');
    const next = (numbers.at(-1) ?? 0) + 1;
    try {
      await writeDurably(part, (file) => writeSnapshot(file, snapshot), this.#files);
      await this.#files.rename(part, join(this.#folder, fileName(next)));
    } catch (thrown) {
      // A full disk must not stay full; when removing fails too, the first error says more.
      await this.#files.rm(part, { force: true }).catch(() => undefined);
      throw thrown;
    }
    await syncFolder(this.#folder, this.#files);
    for (const old of [...numbers, next].slice(0, -kept)) await this.#files.rm(join(this.#folder, fileName(old)), { force: true });
  }

  /** Errors of the file system say what was done, and where. */
  #naming<T>(verb: string, run: () => Promise<T>): Promise<T> {
    return run().catch((thrown: unknown) => {
      if (isShoalError(thrown)) throw thrown;
      throw new ShoalError('system', `a snapshot cannot be ${verb} ${this.#folder}: ${messageOf(thrown)}`, { cause: thrown });
    });
  }
}

function fileName(number: number): string {
  return `snapshot-${String(number).padStart(8, '0')}.safetensors`;
}
