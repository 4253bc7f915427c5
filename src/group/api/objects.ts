/** Collectives of any value that structured clone takes: plain objects, maps, dates, typed arrays, errors. Two collectives of bytes:
 *
 *      every rank     value ─ serialise ─▶ bytes
 *      lengths        ─ all-gather or broadcast ─▶ what to allocate       the calling thread waits, so that nothing comes between
 *      bytes          ─ with counts ─▶ parts ─ deserialise ─▶ values
 *
 *  The vocabulary is torch.distributed's (`all_gather_object`). For values of a few megabytes at most: every rank copies all of them
 *  twice. Serialised by V8: ranks must run the same major version of Node.js, or a newer one at the receiver. */
import { deserialize, serialize } from 'node:v8';
import { isShoalError, messageOf, ShoalError } from '../../base/errors.ts';
import { checkOptions, noOptions } from '../../base/schema.ts';
import { callOptions, rootOptions } from '../caller/call-options.ts';
import { rootOf } from '../caller/call-arguments.ts';
import type { CallOptions, ProcessGroup, RootOptions, Work } from '../caller/types.ts';

/** The calls that object collectives are made of. */
type BytesGroup = Pick<ProcessGroup, 'rank' | 'size' | 'allGather' | 'broadcast' | 'gather' | 'scatter'>;

/** Counts are elements of one buffer. */
const bytesMax = 2 ** 31 - 1;

/** The values of all ranks, by rank. */
export async function allGatherObject<T>(group: BytesGroup, value: T, options: CallOptions = noOptions): Promise<T[]> {
  checkOptions('allGatherObject', options, callOptions);
  const own = encode('allGatherObject', value);
  const call = callOf('allGatherObject', options);
  const counts = await lengthsOfAll(group, own.length, call);
  const all = new Uint8Array(total('allGatherObject', counts));
  await group.allGather(all, own, { ...call, counts });
  return decodeParts(all, counts) as T[];
}

/** The values of all ranks, by rank, at the root; null elsewhere. */
export async function gatherObject<T>(group: BytesGroup, value: T, options: RootOptions = noOptions): Promise<T[] | null> {
  checkOptions('gatherObject', options, rootOptions);
  const root = rootOf(options, group.size);
  const own = encode('gatherObject', value);
  const call = callOf('gatherObject', options);
  const counts = await lengthsOfAll(group, own.length, call);
  const bytes = total('gatherObject', counts);
  const all = group.rank === root ? new Uint8Array(bytes) : null;
  await group.gather(all, own, { ...call, root, counts });
  return all && (decodeParts(all, counts) as T[]);
}

/** The root's value. What other ranks pass is ignored. */
export async function broadcastObject<T>(group: BytesGroup, value: T | undefined, options: RootOptions = noOptions): Promise<T> {
  checkOptions('broadcastObject', options, rootOptions);
  const root = rootOf(options, group.size);
  const call = { ...callOf('broadcastObject', options), root };
  const own = group.rank === root ? encode('broadcastObject', value) : undefined;
  const length = Int32Array.of(own?.length ?? 0);
  await here(group.broadcast(length, call));
  const bytes = own ?? new Uint8Array(length[0]);
  await group.broadcast(bytes, call);
  return deserialize(bytes) as T;
}

/** This rank's value of the root's list, which has one for each rank; other ranks pass null. */
export async function scatterObject<T>(group: BytesGroup, values: readonly T[] | null, options: RootOptions = noOptions): Promise<T> {
  checkOptions('scatterObject', options, rootOptions);
  const root = rootOf(options, group.size);
  const parts = group.rank === root ? partsOf(values, group.size) : undefined;
  if (parts === undefined && values !== null && values !== undefined)
    throw new ShoalError('usage', `scatterObject: only the root, rank ${root}, has values; pass null on rank ${group.rank}`);
  const call = { ...callOf('scatterObject', options), root };
  const counts = Int32Array.from({ length: group.size }, (_, rank) => parts?.[rank].length ?? 0);
  await here(group.broadcast(counts, call));
  const own = new Uint8Array(counts[group.rank]);
  await group.scatter(own, parts ? Buffer.concat(parts) : null, { ...call, counts: [...counts] });
  return deserialize(own) as T;
}

async function lengthsOfAll(group: BytesGroup, length: number, call: CallOptions): Promise<number[]> {
  const lengths = new Int32Array(group.size);
  await here(group.allGather(lengths, Int32Array.of(length), call));
  return [...lengths];
}

/** Waits without giving the turn back: the group's next call comes after both collectives, on every rank. Where communication runs on
 *  this thread, that is for the caller to see to. */
async function here(work: Work): Promise<void> {
  try {
    work.waitSync();
  } catch (thrown) {
    if (work.done || !isShoalError(thrown) || thrown.code !== 'usage') throw thrown;
    await work;
  }
}

/** The call's own name tells ranks that call something else apart. */
function callOf(operation: string, { name, timeoutMs, signal }: CallOptions): CallOptions {
  return {
    name: name === undefined ? operation : `${operation} ${name}`,
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
    ...(signal === undefined ? {} : { signal }),
  };
}

function partsOf(values: readonly unknown[] | null, size: number): Uint8Array[] {
  if (!Array.isArray(values) || values.length !== size) {
    const given = Array.isArray(values) ? `${values.length}` : String(values);
    throw new ShoalError('usage', `scatterObject: the root's list must have one value for each of ${size} ranks, not ${given}`);
  }
  const parts = values.map((value) => encode('scatterObject', value));
  total(
    'scatterObject',
    parts.map(({ length }) => length),
  );
  return parts;
}

function encode(operation: string, value: unknown): Uint8Array {
  let bytes: Uint8Array;
  try {
    bytes = serialize(value);
  } catch (thrown) {
    throw new ShoalError('usage', `${operation}: the value cannot be sent: ${messageOf(thrown)}`, { cause: thrown });
  }
  total(operation, [bytes.length]);
  return bytes;
}

function total(operation: string, lengths: readonly number[]): number {
  const bytes = lengths.reduce((sum, length) => sum + length, 0);
  if (bytes > bytesMax)
    throw new ShoalError('unsupported', `${operation}: values of ${bytes} bytes in all; at most ${bytesMax}. Send tensors instead`);
  return bytes;
}

function decodeParts(all: Uint8Array, counts: readonly number[]): unknown[] {
  let at = 0;
  return counts.map((count) => deserialize(all.subarray(at, (at += count))));
}
