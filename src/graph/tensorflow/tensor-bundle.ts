/** Tensors of a checkpoint of TensorFlow: `.index`, a sorted table of keys (the format of LevelDB), and `.data-…` files with their elements. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import { readRegularFile } from '../../base/files/read-file.ts';
import type { Fail } from '../structure/definition.ts';
import type { Value } from '../structure/value.ts';
import { decoded, dtypeOf, loadCodec, type BundleEntryProto } from './graph-def.ts';
import { shapeOfProto, textOf, valueOfBytes } from './tensor.ts';

/** Largest size of a file, and of all files of weights together. */
export const bytesMax = 2 ** 31 - 1;
const footerBytes = 48;
const magic = 0xdb4775248b80fb57n;

/** @param prefix path without `.index`.
 *  @throws ShoalError `system` when a file cannot be read, `protocol` for what is no checkpoint, or lacks a name. */
export async function readBundle(prefix: string, names: ReadonlySet<string>): Promise<ReadonlyMap<string, Value>> {
  const bad = (why: string): never => {
    throw new ShoalError('protocol', `${prefix}.index ${why}`);
  };
  const entries = tableEntries(await readFile(`${prefix}.index`), bad);
  const codec = await loadCodec('BundleEntry');
  const count = (decoded(codec, entries.get('') ?? bad('has no header'), 'BundleHeader') as BundleEntryProto).dtype;
  const shards = new Map<number, Buffer>();
  let left = bytesMax;
  const values = new Map<string, Value>();
  for (const name of names) {
    const found = entries.get(name) ?? bad(`has no '${name}'`);
    const { dtype, shape, shardId, offset, size, slices } = decoded(codec, found, 'BundleEntry') as BundleEntryProto;
    const fail = (why: string): never => bad(`: '${name}': ${why}`);
    if (slices.length > 0) throw new ShoalError('unsupported', `${prefix}.index: '${name}' is in slices; it cannot be imported`);
    const pad = (number: number): string => String(number).padStart(5, '0');
    const shard = shards.get(shardId) ?? (await readFile(`${prefix}.data-${pad(shardId)}-of-${pad(count)}`, left));
    if (!shards.has(shardId)) left -= shard.byteLength;
    shards.set(shardId, shard);
    const sizes = shapeOfProto(shape, fail);
    if (sizes === 'unknown' || sizes.includes(null)) return fail('its shape must be known');
    const [from, length] = [Number(offset), Number(size)];
    values.set(name, valueOfBytes(dtypeOf(dtype, fail), sizes as readonly number[], shard.subarray(from, from + length), fail));
  }
  return values;
}

/** @throws ShoalError `system` when it cannot be read. */
export async function readFile(path: string, bound = bytesMax): Promise<Buffer> {
  try {
    return await readRegularFile(path, { bytesMax: bound });
  } catch (cause) {
    throw new ShoalError('system', `cannot read ${path}: ${messageOf(cause)}`, { cause });
  }
}

function tableEntries(bytes: Buffer, bad: Fail): Map<string, Uint8Array> {
  if (bytes.length < footerBytes || bytes.readBigUInt64LE(bytes.length - 8) !== magic) return bad('is no table of a checkpoint');
  const footer = new Cursor(bytes.subarray(-footerBytes), bad);
  footer.varint();
  footer.varint();
  const entries = new Map<string, Uint8Array>();
  for (const [, handle] of blockEntries(bytes, footer, bad))
    for (const [key, value] of blockEntries(bytes, new Cursor(handle, bad), bad)) entries.set(key, value);
  return entries;
}

/** Keys share what they begin with; behind the entries are places to begin at, which are not needed here. */
function blockEntries(bytes: Buffer, handle: Cursor, bad: Fail): [key: string, value: Uint8Array][] {
  const [offset, size] = [handle.varint(), handle.varint()];
  if (offset + size >= bytes.length) return bad('has a block outside of it');
  const stored = bytes.subarray(offset, offset + size);
  const block = bytes[offset + size] === 0 ? stored : uncompressed(stored, bad);
  if (block.length < 4) return bad('has a block without an end');
  const cursor = new Cursor(block.subarray(0, Math.max(0, block.length - 4 - 4 * block.readUInt32LE(block.length - 4))), bad);
  const entries: [string, Uint8Array][] = [];
  let key = Buffer.alloc(0);
  while (!cursor.isAtEnd) {
    const [shared, own, length] = [cursor.varint(), cursor.varint(), cursor.varint()];
    key = Buffer.concat([key.subarray(0, shared), cursor.take(own)]);
    entries.push([textOf(key), cursor.take(length)]);
  }
  return entries;
}

/** Snappy: the length, then literals and copies of what is there already. */
function uncompressed(bytes: Buffer, bad: Fail): Buffer {
  const cursor = new Cursor(bytes, bad);
  const length = cursor.varint();
  // A copy of 64 bytes takes three.
  if (length > 64 * bytes.length) return bad('has a block that is not compressed with Snappy');
  const whole = Buffer.alloc(length);
  let at = 0;
  while (!cursor.isAtEnd) {
    const tag = cursor.little(1);
    const [kind, upper] = [tag & 3, tag >> 2];
    if (kind === 0) {
      const count = (upper < 60 ? upper : cursor.little(upper - 59)) + 1;
      at += Buffer.from(cursor.take(count)).copy(whole, at);
      continue;
    }
    const count = kind === 1 ? (upper & 7) + 4 : upper + 1;
    const back = kind === 1 ? ((upper >> 3) << 8) + cursor.little(1) : cursor.little(kind === 2 ? 2 : 4);
    if (back === 0 || back > at || at + count > length) return bad('has a block that is not compressed with Snappy');
    // What is copied may begin with what was copied just now.
    for (let left = count; left > 0; left--, at++) whole[at] = whole[at - back];
  }
  return at === length ? whole : bad('has a block that is not compressed with Snappy');
}

class Cursor {
  readonly #bytes: Uint8Array;
  readonly #bad: Fail;
  #at = 0;

  constructor(bytes: Uint8Array, bad: Fail) {
    this.#bytes = bytes;
    this.#bad = bad;
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#bytes.length;
  }

  varint(): number {
    for (let value = 0, scale = 1; scale < 2 ** 49; scale *= 128) {
      const byte = this.#bytes[this.#at++] ?? this.#bad('is cut off');
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
    return this.#bad('has a number that is too large');
  }

  /** A number of so many bytes, the lowest first. */
  little(count: number): number {
    return this.take(count).reduceRight((number, byte) => number * 256 + byte, 0);
  }

  take(length: number): Uint8Array {
    const taken = this.#bytes.subarray(this.#at, this.#at + length);
    if (taken.length !== length) this.#bad('is cut off');
    this.#at += length;
    return taken;
  }
}
