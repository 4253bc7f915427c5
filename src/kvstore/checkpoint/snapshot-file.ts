/** A snapshot as one file. Written from where the tensors lie, read tensor by tensor: there is never a second copy of the
 *  data in memory. Durability and names are not its business; see snapshot-folder.ts. */
import type { FileHandle } from 'node:fs/promises';
import { ShoalError } from '../../base/errors.ts';
import { decodeHeader, decodeHeaderLength, encodeHeader, lengthBytes } from './safetensors.ts';
import type { Snapshot, SnapshotTensor } from './snapshot.ts';

/** Per system call; a large tensor is written in pieces, so that other work on the thread pool gets its turn. */
const batchBytes = 2 ** 23;
/** Linux takes 1024 pieces per call. */
const batchPieces = 512;
/** Tensors smaller than this are read together. */
const readAheadBytes = 2 ** 20;

/** Writes the whole file from its start. The tensors' data must not change meanwhile.
 *  @throws ShoalError `usage`; errors of the file system as they are. */
export async function writeSnapshot(file: FileHandle, snapshot: Snapshot): Promise<void> {
  const { prefix, tensors } = encodeHeader(snapshot);
  let batch: Uint8Array[] = [];
  let bytes = 0;
  for (const piece of piecesOf([prefix, ...tensors.map(({ data }) => data)])) {
    batch.push(piece);
    bytes += piece.byteLength;
    if (bytes < batchBytes && batch.length < batchPieces) continue;
    await writeAll(file, batch);
    batch = [];
    bytes = 0;
  }
  await writeAll(file, batch);
}

/** @throws ShoalError `protocol` for a file that is not one, whole; `unsupported` for a dtype that is not ours. */
export async function readSnapshot(file: FileHandle): Promise<Snapshot> {
  const { size } = await file.stat();
  const reader = new SequentialReader(file);
  const length = new Uint8Array(Math.min(lengthBytes, size));
  await reader.read(length);
  const header = new Uint8Array(decodeHeaderLength(length, size));
  await reader.read(header);
  const { entries, metadata } = decodeHeader(header, size - lengthBytes - header.length);
  const tensors = new Map<string, SnapshotTensor>();
  for (const { name, dtype, shape, from, to } of entries) {
    // An array of its own is aligned for every dtype, whoever wrote the file.
    const data = new Uint8Array(to - from);
    await reader.read(data);
    tensors.set(name, { dtype, shape, data });
  }
  return { tensors, metadata };
}

function* piecesOf(parts: readonly Uint8Array[]): Generator<Uint8Array> {
  for (const part of parts) {
    for (let at = 0; at < part.byteLength; at += batchBytes) yield part.subarray(at, at + batchBytes);
  }
}

/** The system may take less than it was given. */
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

/** Small reads out of a buffer, large ones straight into their target. */
class SequentialReader {
  readonly #file: FileHandle;
  readonly #buffer = new Uint8Array(readAheadBytes);
  #from = 0;
  #to = 0;

  constructor(file: FileHandle) {
    this.#file = file;
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
    const { bytesRead } = await this.#file.read(target, 0, target.length, null);
    if (bytesRead === 0) throw new ShoalError('protocol', 'safetensors: the file became shorter while it was read');
    return bytesRead;
  }
}
