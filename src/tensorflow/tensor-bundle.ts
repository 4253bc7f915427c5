/** Tensors of a checkpoint of TensorFlow: `.index`, a sorted table of keys (the format of LevelDB), and `.data-…` files with their
 *  elements. */
import { ByteReader, textOf } from '../base/bytes.ts';
import { maskedCrc32c } from '../base/crc32c.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { readRegularFile } from '../base/files/read-file.ts';
import type { Fail } from '../graph/structure/definition.ts';
import type { Value } from '../graph/structure/value.ts';
import { decoded, dtypeOf, loadCodec, type BundleEntryProto, type BundleHeaderProto } from './graph-def.ts';
import { shapeOfProto, valueOfBytes } from './tensor.ts';

/** Largest size of a file, and of all files of weights together. */
export const bytesMax = 2 ** 31 - 1;
const footerBytes = 48;
const magic = 0xdb4775248b80fb57n;
/** Keys are names of variables. */
const keyBytesMax = 4096;

/** @param prefix path without `.index`.
 *  @throws ShoalError `system` when a file cannot be read, `protocol` for what is no checkpoint, or lacks a name. */
export async function readBundle(prefix: string, names: ReadonlySet<string>): Promise<ReadonlyMap<string, Value>> {
  const bad = (why: string): never => {
    throw new ShoalError('protocol', `${prefix}.index ${why}`);
  };
  const entries = tableEntries(await readFile(`${prefix}.index`), `${prefix}.index`, bad);
  const header = entries.get('') ?? bad('has no header');
  const { numShards, endianness } = decoded(await loadCodec('BundleHeader'), header, 'BundleHeader') as BundleHeaderProto;
  if (endianness !== 0) throw new ShoalError('unsupported', `${prefix}.index: its elements are big-endian; it cannot be imported`);
  const codec = await loadCodec('BundleEntry');
  const shards = new Map<number, Buffer>();
  let left = bytesMax;
  const values = new Map<string, Value>();
  for (const name of names) {
    const found = entries.get(name) ?? bad(`has no '${name}'`);
    const { dtype, shape, shardId, offset, size, crc32c, slices } = decoded(codec, found, 'BundleEntry') as BundleEntryProto;
    const fail = (why: string): never => bad(`: '${name}': ${why}`);
    if (slices.length > 0) throw new ShoalError('unsupported', `${prefix}.index: '${name}' is in slices; it cannot be imported`);
    const pad = (number: number): string => String(number).padStart(5, '0');
    const shard = shards.get(shardId) ?? (await readFile(`${prefix}.data-${pad(shardId)}-of-${pad(numShards)}`, left));
    if (!shards.has(shardId)) left -= shard.byteLength;
    shards.set(shardId, shard);
    const sizes = shapeOfProto(shape, fail);
    if (sizes === 'unknown' || sizes.includes(null)) return fail('its shape must be known');
    const bytes = shard.subarray(Number(offset), Number(offset) + Number(size));
    values.set(name, valueOfBytes(dtypeOf(dtype, fail), sizes as readonly number[], bytes, fail));
    if (maskedCrc32c(bytes) !== crc32c) return fail('its elements are not those that were saved: their checksum differs');
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

function tableEntries(bytes: Buffer, path: string, bad: Fail): Map<string, Uint8Array> {
  if (bytes.length < footerBytes || bytes.readBigUInt64LE(bytes.length - 8) !== magic) return bad('is no table of a checkpoint');
  const footer = new ByteReader(bytes.subarray(-footerBytes), path);
  footer.varint();
  footer.varint();
  const entries = new Map<string, Uint8Array>();
  // Blocks lie one after the other: together they are no larger than the file.
  let left = bytes.length;
  const entriesAt = (handle: ByteReader): [key: string, value: Uint8Array][] => {
    const [offset, size] = [handle.varint(), handle.varint()];
    left -= size;
    if (offset + size >= bytes.length || left < 0) return bad('has a block outside of it, or twice');
    const stored = bytes.subarray(offset, offset + size);
    return blockEntries(bytes[offset + size] === 0 ? stored : uncompressed(stored, path, bad), path, bad);
  };
  for (const [, handle] of entriesAt(footer)) for (const [key, value] of entriesAt(new ByteReader(handle, path))) entries.set(key, value);
  return entries;
}

/** Keys share what they begin with; behind the entries are places to begin at, which are not needed here. */
function blockEntries(block: Buffer, path: string, bad: Fail): [key: string, value: Uint8Array][] {
  if (block.length < 4) return bad('has a block without an end');
  const reader = new ByteReader(block.subarray(0, Math.max(0, block.length - 4 - 4 * block.readUInt32LE(block.length - 4))), path);
  const entries: [string, Uint8Array][] = [];
  let key = Buffer.alloc(0);
  while (!reader.done) {
    const [shared, own, length] = [reader.varint(), reader.varint(), reader.varint()];
    if (shared + own > keyBytesMax) return bad(`has a key of ${shared + own} bytes; at most ${keyBytesMax} are allowed`);
    key = Buffer.concat([key.subarray(0, shared), reader.bytes(own)]);
    entries.push([textOf(key), reader.bytes(length)]);
  }
  return entries;
}

/** Snappy: the length, then literals and copies of earlier bytes. */
function uncompressed(bytes: Buffer, path: string, bad: Fail): Buffer {
  const reader = new ByteReader(bytes, path);
  const length = reader.varint();
  const little = (count: number): number => reader.bytes(count).readUIntLE(0, count);
  // A copy of 64 bytes takes three.
  if (length > 64 * bytes.length) return bad('has a block that is not compressed with Snappy');
  const whole = Buffer.alloc(length);
  let at = 0;
  while (!reader.done) {
    const tag = reader.u8();
    const [kind, upper] = [tag & 3, tag >> 2];
    if (kind === 0) {
      const count = (upper < 60 ? upper : little(upper - 59)) + 1;
      at += reader.bytes(count).copy(whole, at);
      continue;
    }
    const count = kind === 1 ? (upper & 7) + 4 : upper + 1;
    const back = kind === 1 ? ((upper >> 3) << 8) + reader.u8() : little(kind === 2 ? 2 : 4);
    if (back === 0 || back > at || at + count > length) return bad('has a block that is not compressed with Snappy');
    // A copy may overlap itself, so it goes byte by byte.
    for (let left = count; left > 0; left--, at++) whole[at] = whole[at - back];
  }
  return at === length ? whole : bad('has a block that is not compressed with Snappy');
}
