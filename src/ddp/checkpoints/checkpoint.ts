/** One saved checkpoint: its index, and the tensors that a rank asks for. It must not know who saved it, nor communicate.
 *
 *      model.safetensors.index.json      {"metadata":{"total_size":…,"shoal":{…}},"weight_map":{"layer.weight":"model-00001-of-00004.safetensors",…}}
 *      model-00001-of-00004.safetensors  whole tensors, and their checksums
 *
 *  The layout is that of Hugging Face's sharded models: other programs can read the tensors. The index has a digest of itself,
 *  and lists its files with their sizes and the save that they belong to. */
import { describeForeign } from '../../memory/foreign-value.ts';
import { createHash } from 'node:crypto';
import { basename, join } from 'node:path';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { isCount } from '../../base/bytes.ts';
import { openRegularFile, readRegularFile } from '../../base/files/read-file.ts';
import { describeValue, isPlainObject } from '../../base/schema.ts';
import { listed, pushTo } from '../../base/collections/lists.ts';
import { readSnapshot } from '../../checkpoint/snapshot-file.ts';
import type { SnapshotTensor } from '../../checkpoint/snapshot.ts';
import { dtypeInfo, dtypeOfArray, type DType, type TypedArray } from '../../memory/dtype.ts';
import { countOf, Tensor } from '../../memory/tensor.ts';

/** State that a checkpoint holds beside tensors. */
export type CheckpointState = { readonly [key: string]: CheckpointValue };
/** A JSON value: null, boolean, number, text, or a list or object of them. */
export type CheckpointValue = null | boolean | number | string | readonly CheckpointValue[] | CheckpointState;

/** A tensor to save or to load into: a tensor of a group, an array as a list of elements, or an array with its shape. */
export type CheckpointTensor =
  | Tensor
  | TypedArray
  | {
      /** The elements, row-major; `load` overwrites them. */
      readonly data: TypedArray;
      /** Dimensions, whose product is the number of elements; saved with them, and compared when they are loaded. */
      readonly shape: readonly number[];
    };

export const indexName = 'model.safetensors.index.json';
/** Key in the metadata of each file; its value names the save that the file is a part of. */
export const saveKey = 'save';
const indexBytesMax = 2 ** 28;

/** Contents of the index file. */
export interface CheckpointIndex {
  /** Unique to one save. */
  readonly save: string;
  /** Number of ranks that saved it. */
  readonly ranks: number;
  readonly state: CheckpointState;
  /** Bytes of each file. */
  readonly files: Readonly<Record<string, number>>;
  /** The file that holds each tensor. */
  readonly tensors: Readonly<Record<string, string>>;
}

/** One checkpoint of a folder. Made by `Checkpoints.latest`. */
export class Checkpoint {
  /** Number of the checkpoint; a later save has a higher one. */
  readonly number: number;
  readonly #folder: string;
  readonly #index: CheckpointIndex;

  constructor(folder: string, number: number, index: CheckpointIndex) {
    this.#folder = folder;
    this.number = number;
    this.#index = index;
  }

  /** The state that was saved beside the tensors. */
  get state(): CheckpointState {
    return this.#index.state;
  }

  /** Number of ranks that saved it. */
  get ranks(): number {
    return this.#index.ranks;
  }

  /** Names of all tensors. */
  get names(): string[] {
    return Object.keys(this.#index.tensors);
  }

  /** Overwrites these tensors with those saved under their names; other tensors of the checkpoint are left alone. Nothing is
   *  overwritten unless all of them fit. Each rank may ask for its own; not collective.
   *  @throws ShoalError `usage` for a name that was not saved, another dtype or shape; `protocol` naming a file that is damaged,
   *          cut off, or of another save; `system`. */
  async load(tensors: Readonly<Record<string, CheckpointTensor>>): Promise<void> {
    const wanted = describedTensors('load', tensors);
    const byFile = new Map<string, string[]>();
    for (const name of wanted.keys()) {
      const file = Object.hasOwn(this.#index.tensors, name) ? this.#index.tensors[name] : undefined;
      if (file === undefined) {
        throw new ShoalError('usage', `${this.#folder} has no tensor '${name}'; it has ${this.names.length}: ${listed(this.names)}`);
      }
      pushTo(byFile, file, name);
    }
    const found = new Map<string, SnapshotTensor>();
    for (const [file, names] of byFile) {
      const saved = await this.#read(file);
      for (const name of names) found.set(name, this.#fitting(name, saved.get(name), wanted));
    }
    for (const [name, { data }] of found) (wanted.get(name) as DescribedTensor).bytes.set(data);
  }

  #fitting(name: string, saved: SnapshotTensor | undefined, wanted: ReadonlyMap<string, DescribedTensor>): SnapshotTensor {
    if (saved === undefined) throw new ShoalError('protocol', `${this.#folder} is damaged: no file has tensor '${name}'`);
    const { dtype, shape, isFlat } = wanted.get(name) as DescribedTensor;
    // An array without a shape is a list of elements: only their number has to agree.
    const fits = isFlat ? countOf(shape) === countOf(saved.shape) : sameShape(shape, saved.shape);
    if (dtype !== saved.dtype || !fits) {
      const text = `${saved.dtype}[${saved.shape.join(', ')}]`;
      throw new ShoalError('usage', `tensor '${name}' of ${this.#folder} is ${text}, and does not fit ${dtype}[${shape.join(', ')}]`);
    }
    return saved;
  }

  async #read(name: string): Promise<ReadonlyMap<string, SnapshotTensor>> {
    const path = join(this.#folder, name);
    try {
      const file = await openRegularFile(path);
      try {
        const { size } = await file.stat();
        const { [name]: bytes } = this.#index.files;
        if (size !== bytes) throw new ShoalError('protocol', `the file has ${size} bytes, it was saved with ${bytes}`);
        const { tensors, metadata } = await readSnapshot(file);
        if (metadata[saveKey] !== this.#index.save) throw new ShoalError('protocol', 'the file is of another save');
        return tensors;
      } finally {
        await file.close();
      }
    } catch (thrown) {
      const { code, message } = ShoalError.from(thrown);
      throw new ShoalError(code, `${path}: ${message}; to resume from the checkpoint before, remove ${this.#folder}`, { cause: thrown });
    }
  }
}

/** Reads and verifies the index. @throws ShoalError `protocol` for anything but an index as it was written; `system`. */
export async function readIndex(folder: string): Promise<CheckpointIndex> {
  const path = join(folder, indexName);
  try {
    return decodeIndex((await readRegularFile(path, { bytesMax: indexBytesMax })).toString());
  } catch (thrown) {
    const { code, message } = ShoalError.from(thrown);
    throw new ShoalError(code, `${path}: ${message}; to resume from the checkpoint before, remove ${folder}`, { cause: thrown });
  }
}

export function encodeIndex(index: CheckpointIndex, totalBytes: number): string {
  const { tensors, ...shoal } = index;
  const metadata = { total_size: totalBytes, shoal: { version: 1, ...shoal, digest: digestOf(index) } };
  return `${JSON.stringify({ metadata, weight_map: tensors }, undefined, 1)}\n`;
}

function decodeIndex(text: string): CheckpointIndex {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw damaged(messageOf(error).slice(0, 200));
  }
  const { metadata, weight_map: tensors } = recordOf(parsed, 'it');
  const { version, save, ranks, state, files, digest } = recordOf(recordOf(metadata, 'metadata').shoal, 'metadata.shoal');
  if (version !== 1) throw damaged(`version ${describeValue(version)}, known is 1`);
  if (typeof save !== 'string' || !isCount(ranks)) throw damaged('save or ranks');
  const index = {
    save,
    ranks,
    state: recordOf(state, 'state') as CheckpointState,
    files: recordOf(files, 'files') as Record<string, number>,
    tensors: recordOf(tensors, 'weight_map') as Record<string, string>,
  };
  if (digest !== digestOf(index)) throw damaged('it has changed since it was saved');
  // A file must lie in the folder itself, so that names lead nowhere else.
  for (const [file, bytes] of Object.entries(index.files)) if (basename(file) !== file || !isCount(bytes)) throw damaged(`file '${file}'`);
  for (const file of Object.values(index.tensors)) if (!Object.hasOwn(index.files, file)) throw damaged(`file '${file}'`);
  return index;
}

function digestOf({ save, ranks, state, files, tensors }: CheckpointIndex): string {
  return createHash('sha256')
    .update(JSON.stringify([save, ranks, state, files, tensors]))
    .digest('hex');
}

function recordOf(value: unknown, what: string): Record<string, unknown> {
  if (isPlainObject(value)) return value as Record<string, unknown>;
  throw damaged(`${what} is not an object`);
}

function damaged(what: string): ShoalError {
  return new ShoalError('protocol', `damaged, or not saved by Shoal: ${what}`);
}

export interface DescribedTensor {
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** True for an array without a shape: it has its length only. */
  readonly isFlat: boolean;
  readonly bytes: Uint8Array;
}

/** @throws ShoalError `usage`, `unsupported` for values that are not tensors. */
export function describedTensors(call: string, tensors: Readonly<Record<string, CheckpointTensor>>): Map<string, DescribedTensor> {
  if (!isPlainObject(tensors)) throw new ShoalError('usage', `${call}: tensors must be an object, not ${describeValue(tensors)}`);
  return new Map(Object.entries(tensors).map(([name, tensor]) => [name, describedTensor(`${call}: tensor '${name}'`, tensor)]));
}

function describedTensor(role: string, tensor: CheckpointTensor): DescribedTensor {
  const isTensor = tensor instanceof Tensor;
  const { data, shape } = isTensor || isPlainObject(tensor) ? (tensor as Tensor) : { data: tensor as TypedArray, shape: undefined };
  if (!ArrayBuffer.isView(data) || data instanceof DataView)
    throw new ShoalError('usage', `${role} must be a tensor, a typed array, or one with a shape, not ${describeForeign(tensor)}`);
  if (isTensor && tensor.released) throw new ShoalError('usage', `${role} has been released`);
  const dtype = isTensor ? tensor.dtype : dtypeOfArray(data);
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  if (shape === undefined) return { dtype, shape: [data.length], isFlat: true, bytes };
  if (countOf(shape) * dtypeInfo(dtype).bytes !== bytes.length)
    throw new ShoalError('usage', `${role} has ${data.length} elements, and not the shape [${shape.join(', ')}]`);
  return { dtype, shape: [...shape], isFlat: false, bytes };
}

function sameShape(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((length, i) => length === b[i]);
}
