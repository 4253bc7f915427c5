/** Writes and reads a snapshot as one file: written from where the tensors lie, read tensor by tensor, so that there is never a
 *  second copy of the data in memory. Durability and names are not its business; see snapshot-folder.ts. */
import type { FileHandle } from 'node:fs/promises';
import { ShoalError } from '../base/errors.ts';
import { checkChecksums, Checksums, checksumsBytes, checksumsName } from './checksums.ts';
import { decodeHeader, decodeHeaderLength, encodeHeader, lengthBytes, ownDType, type SafetensorsHeader } from './safetensors.ts';
import type { Snapshot, SnapshotTensor } from './snapshot.ts';

/** Bytes per system call; a large tensor is written in pieces, so that other work on the thread pool gets its turn. */
const batchBytes = 2 ** 23;
/** Bytes that a checksum takes at once: this thread has other work, too. */
const pieceBytes = 2 ** 21;
/** Pieces per system call: Linux takes 1024. */
const batchPieces = 512;
/** Tensors smaller than this are read together. */
const readAheadBytes = 2 ** 20;

/** Writes the whole file from its start. The tensors' data must not change meanwhile.
 *  @throws ShoalError `usage`; errors of the file system as they are. */
export async function writeSnapshot(file: FileHandle, snapshot: Snapshot): Promise<void> {
  const { size } = snapshot.tensors;
  const room = new Uint8Array(checksumsBytes(size));
  const { prefix, tensors } = encodeHeader(snapshot, [[checksumsName, { dtype: 'uint8', shape: [room.length], data: room }]]);
  const checksums = new Checksums([prefix], size);
  const batch = new WriteBatch(file);
  await batch.add(prefix);
  for (const { data } of tensors.slice(0, -1)) {
    for (let at = 0; at < data.byteLength; at += pieceBytes) {
      const piece = data.subarray(at, at + pieceBytes);
      checksums.update(piece);
      await batch.add(piece);
    }
    checksums.endTensor();
  }
  await batch.add(checksums.bytes);
  await batch.flush();
}

/** @throws ShoalError `protocol` for a file that is not one, whole and unchanged; `unsupported` for a dtype that is not ours. */
export async function readSnapshot(file: FileHandle): Promise<Snapshot> {
  const { reader, length, header, entries, metadata } = await readHeader(file);
  const last = entries.at(-1);
  const described = entries.slice(0, -1);
  if (last?.name !== checksumsName || last.to - last.from !== checksumsBytes(described.length)) {
    throw new ShoalError('protocol', 'damaged, or not saved by Shoal: it has no checksums');
  }
  const tensors = new Map<string, SnapshotTensor>();
  const checksums = new Checksums([length, header], described.length);
  for (const entry of described) {
    const { name, shape, from, to } = entry;
    const dtype = ownDType(entry);
    // An array of its own is aligned for every dtype, whichever program wrote the file.
    const data = new Uint8Array(to - from);
    for (let at = 0; at < data.length; at += pieceBytes) {
      const piece = data.subarray(at, at + pieceBytes);
      await reader.read(piece);
      checksums.update(piece);
    }
    checksums.endTensor();
    tensors.set(name, { dtype, shape, data });
  }
  const found = new Uint8Array(checksums.bytes.length);
  await reader.read(found);
  checkChecksums(checksums.bytes, found, [...tensors.keys()]);
  return { tensors, metadata };
}

/** The header's metadata, not checked against the checksums. @throws like `readSnapshot`. */
export async function readMetadata(file: FileHandle): Promise<Snapshot['metadata']> {
  return (await readHeader(file)).metadata;
}

async function readHeader(
  file: FileHandle,
): Promise<SafetensorsHeader & { readonly reader: SequentialReader; readonly length: Uint8Array; readonly header: Uint8Array }> {
  const { size } = await file.stat();
  const reader = new SequentialReader(file, size);
  const length = new Uint8Array(Math.min(lengthBytes, size));
  await reader.read(length);
  const header = new Uint8Array(decodeHeaderLength(length, size));
  await reader.read(header);
  return { reader, length, header, ...decodeHeader(header, size - lengthBytes - header.length) };
}

/** The pieces that one system call writes. */
class WriteBatch {
  readonly #file: FileHandle;
  #pieces: Uint8Array[] = [];
  #bytes = 0;

  constructor(file: FileHandle) {
    this.#file = file;
  }

  async add(piece: Uint8Array): Promise<void> {
    this.#pieces.push(piece);
    this.#bytes += piece.byteLength;
    if (this.#bytes >= batchBytes || this.#pieces.length >= batchPieces) await this.flush();
  }

  async flush(): Promise<void> {
    await writeAll(this.#file, this.#pieces);
    this.#pieces = [];
    this.#bytes = 0;
  }
}

/** Writes the whole batch: the system may take less than it was given. */
async function writeAll(file: FileHandle, batch: readonly Uint8Array[]): Promise<void> {
  let left = batch;
  while (left.length > 0) {
    let { bytesWritten } = await file.writev(left as Uint8Array[]);
    const rest: Uint8Array[] = [];
    for (const piece of left) {
      if (bytesWritten >= piece.byteLength) bytesWritten -= piece.byteLength;
      else {
        rest.push(piece.subarray(bytesWritten));
        bytesWritten = 0;
      }
    }
    left = rest;
  }
}

/** Reads a file from start to end: small parts out of a buffer, large ones straight into their target. */
class SequentialReader {
  readonly #file: FileHandle;
  readonly #buffer: Uint8Array;
  #from = 0;
  #to = 0;
  /** Position in the file. */
  #position = 0;

  constructor(file: FileHandle, size: number) {
    this.#file = file;
    this.#buffer = new Uint8Array(Math.min(size, readAheadBytes));
  }

  async read(target: Uint8Array): Promise<void> {
    let at = 0;
    while (at < target.length) {
      if (this.#from === this.#to && target.length - at >= readAheadBytes) {
        at += await this.#fill(target.subarray(at, at + batchBytes));
        continue;
      }
      if (this.#from === this.#to) {
        this.#from = 0;
        this.#to = await this.#fill(this.#buffer);
      }
      const part = this.#buffer.subarray(this.#from, Math.min(this.#to, this.#from + target.length - at));
      target.set(part, at);
      at += part.length;
      this.#from += part.length;
    }
  }

  async #fill(target: Uint8Array): Promise<number> {
    const { bytesRead } = await this.#file.read(target, 0, target.length, this.#position);
    if (bytesRead === 0) throw new ShoalError('protocol', 'safetensors: the file became shorter while it was read');
    this.#position += bytesRead;
    return bytesRead;
  }
}
