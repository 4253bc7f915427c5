/** Values as bytes between tasks. Several in one body: a table of fixed heads, then the elements, each at a multiple of 8, so that who
 *  receives them makes views and no copies.
 *
 *      u32 count │ per value: u8 status │ u8 dtype │ u16 rank │ u32 – │ f64 bytes │ f64 × rank dimensions │ … elements
 *
 *  Status: a value, or dead. Strings are a JSON list. */
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, dtypes, type DType } from '../../memory/dtype.ts';
import { dimensionsMax } from '../../memory/tensor.ts';
import { Reference } from '../execute/variable-store.ts';
import { joinPieces, type Pieces } from '../rpc/rpc.ts';
import { countOf, elementsOf } from '../structure/elements.ts';
import type { Value } from '../structure/value.ts';

/** One of several values. Undefined: dead. */
export type Slot = Value | undefined;

const [isValue, isDead] = [0, 1];
const stringCode = 255;
const countMax = 1_000_000;
const noBytes = new Uint8Array(0);

interface Encoded {
  readonly status: number;
  readonly code: number;
  readonly shape: readonly number[];
  readonly bytes: Uint8Array;
}

/** The elements are not copied: pieces refer to them. */
export function encodeSlots(slots: readonly Slot[]): Pieces {
  const encoded = slots.map(encode);
  let headBytes = 8;
  for (const { shape } of encoded) headBytes += 16 + 8 * shape.length;
  const head = new Uint8Array(headBytes);
  const view = new DataView(head.buffer);
  view.setUint32(0, slots.length, true);
  const pieces: Uint8Array[] = [head];
  let at = 8;
  for (const { status, code, shape, bytes } of encoded) {
    head[at] = status;
    head[at + 1] = code;
    view.setUint16(at + 2, shape.length, true);
    view.setFloat64(at + 8, bytes.byteLength, true);
    shape.forEach((dimension, axis) => view.setFloat64(at + 16 + 8 * axis, dimension, true));
    at += 16 + 8 * shape.length;
    if (bytes.byteLength === 0) continue;
    pieces.push(bytes);
    const padding = -bytes.byteLength & 7;
    if (padding > 0) pieces.push(new Uint8Array(padding));
  }
  return pieces;
}

function encode(slot: Slot): Encoded {
  if (slot === undefined) return { status: isDead, code: 0, shape: [], bytes: noBytes };
  const value = slot instanceof Reference ? slot.read() : slot;
  const { dtype, shape } = value;
  if (dtype === 'string')
    return { status: isValue, code: stringCode, shape, bytes: Buffer.from(JSON.stringify((value as { data?: unknown }).data)) };
  const elements = elementsOf(value);
  const bytes = new Uint8Array(elements.buffer, elements.byteOffset, elements.byteLength);
  return { status: isValue, code: dtypeInfo(dtype as DType).code, shape, bytes };
}

/** @param body at an address that is a multiple of 8; the values are views of it.
 *  @throws ShoalError `protocol` for anything that `encodeSlots` does not make. */
export function decodeSlots(body: Uint8Array): Slot[] {
  const view = new DataView(body.buffer, body.byteOffset, body.byteLength);
  if (body.byteLength < 8) throw malformed('too short');
  const count = view.getUint32(0, true);
  if (count > countMax) throw malformed(`${count} values`);
  const heads: Encoded[] = [];
  let at = 8;
  const sizes: number[] = [];
  for (let k = 0; k < count; k++) {
    if (at + 16 > body.byteLength) throw malformed('a head is cut off');
    const rank = view.getUint16(at + 2, true);
    if (rank > dimensionsMax || at + 16 + 8 * rank > body.byteLength) throw malformed('a head is cut off');
    const shape = Array.from({ length: rank }, (_, axis) => view.getFloat64(at + 16 + 8 * axis, true));
    heads.push({ status: body[at], code: body[at + 1], shape, bytes: noBytes });
    sizes.push(view.getFloat64(at + 8, true));
    at += 16 + 8 * rank;
  }
  return heads.map((head, k) => {
    const bytes = sizes[k];
    if (!Number.isSafeInteger(bytes) || bytes < 0 || at + bytes > body.byteLength) throw malformed('elements are cut off');
    const slot = decode(head, body.subarray(at, at + bytes));
    at += bytes + (-bytes & 7);
    return slot;
  });
}

function decode({ status, code, shape }: Encoded, bytes: Uint8Array): Slot {
  if (status === isDead) return undefined;
  if (status !== isValue || !shape.every((each) => Number.isSafeInteger(each) && each >= 0)) throw malformed('a head is not one');
  if (code === stringCode) return { dtype: 'string', shape, data: strings(bytes, countOf(shape)) };
  const info = dtypes[code];
  const count = countOf(shape);
  if (info === undefined || !Number.isSafeInteger(count) || count * info.bytes !== bytes.byteLength)
    throw malformed(`${bytes.byteLength} bytes for a value of shape [${shape.join(', ')}]`);
  // A body whose reader did not align it.
  const own = bytes.byteOffset % 8 === 0 ? bytes : joinPieces([bytes]);
  return { dtype: info.name, shape, data: info.view(own.buffer, own.byteOffset, count) };
}

function strings(bytes: Uint8Array, count: number): readonly string[] {
  try {
    const list: unknown = JSON.parse(Buffer.from(bytes).toString());
    if (Array.isArray(list) && list.length === count && list.every((each) => typeof each === 'string')) return list;
  } catch {
    // As below.
  }
  throw malformed('strings are none');
}

function malformed(why: string): ShoalError {
  return new ShoalError('protocol', `values that came over the wire are not well formed: ${why}`);
}
