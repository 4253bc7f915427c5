/** Control messages of RecvTensor. A message is a header and any number of records: what is posted in one turn travels in one. Names and
 *  regions are told once and are numbers afterwards. The immediate of a write is the index of the request it answers.
 *
 *  Little-endian; varint: 7 bits per byte, up to 2⁵³ − 1; texts: u16 length, UTF-8. R: the receiver of tensors sends it, S: their sender.
 *
 *    message      │version u8 = 2│0 u8│credits given back u16│ record │ record │ …           header alone: only gives credits back
 *    record       │type u8│ fields
 *    destination  │rkey u32│offset varint│bytes varint│           rkey 0: none, nothing follows
 *    metadata     │dtype u8│dimensions u8│each varint│bytes varint│   dtype 255: none, nothing follows; 64: string
 *
 *     1 hello            R S  incarnation u64, device, the process: number u32, host, birth varint
 *     2 name             R    number u32, the key up to its frame; told once, at most 8,192 bytes
 *     3 region           R    rkey u32, bytes varint, handle
 *     4 forget           R    rkey u32
 *     5 request          R    index u32, step varint, name u32, frame varint, iteration varint, destination, metadata
 *     6 metadata         S    index u32, next u8 (0 re-request, 1 the write follows, 2 empty), metadata
 *     7 re-request       R    index u32, destination
 *     8 dead             S    index u32
 *     9 done             S    count u16, indices u32
 *    10 error            S    index u32, code u8, text of at most 1,024 bytes
 *    11 cancel           R    index u32
 *    12 cancelled        S    index u32
 *    13 fused request    R    index u32, step varint, count u16, per slot: name, frame, iteration, destination, metadata
 *    14 fused status     S    index u32, count u16, per slot: number u16, kind u8, metadata or error
 *    15 fused re-request R    index u32, count u16, per slot: number u16, destination
 *    16 standing         R    first index u32, first step varint, key, metadata, depth u16, destinations
 *    17 renew            R    first index u32, count u16
 *    18 in pieces        R    bytes of a piece u32, indices u16, then as a request; the first index is the request's, the others are
 *                             those of pieces */
import type { ByteReader, ByteWriter } from '../../base/bytes.ts';
import { errorCodes, ShoalError, type ErrorCode } from '../../base/errors.ts';
import type { RemoteRegion } from '../../fabric/fabric.ts';
import { dtypes } from '../../memory/dtype.ts';
import { checkMetadata, type TensorMetadata } from '../value/tensor-metadata.ts';
import { dimensionsMax } from '../../memory/tensor.ts';
import type { ReceiveBuffer } from './pooled-memory.ts';

export const protocolVersion = 2;
export const messageHeaderBytes = 4;
/** Records beyond go into the next message; one that is longer travels alone. */
export const messageBytesWanted = 60_000;
/** Messages that may be under way one way before the peer gives credits back. */
export const creditsMax = 64;

/** R: who receives tensors sends it; S: who sends them does. Append only. */
export const RecordType = {
  /** R and S, first: who this is. */
  Hello: 1,
  /** R: a number for a key's text before the frame. */
  Name: 2,
  /** R: a region that tensors may be written to. */
  Region: 3,
  /** R: it is no more. */
  Forget: 4,
  /** R: a tensor is wanted, at a destination, if it has these metadata. */
  Request: 5,
  /** S: it has others. */
  Metadata: 6,
  /** R: the destination for those. */
  Rerequest: 7,
  /** S: it is dead; nothing is written. */
  Dead: 8,
  /** S: what was written without immediates, or has no bytes. */
  Done: 9,
  /** S: it will not come. */
  Error: 10,
  /** R: it is no longer wanted. */
  Cancel: 11,
  /** S: it will not be written any more. */
  Cancelled: 12,
  /** R: several tensors are wanted, answered together. */
  FusedRequest: 13,
  /** S: slots of a fused request that are not simply written. */
  FusedStatus: 14,
  /** R: destinations for slots with other metadata. */
  FusedRerequest: 15,
  /** R: a tensor is wanted in each of the coming steps. */
  Standing: 16,
  /** R: further steps for a standing request. */
  Renew: 17,
  /** R: as `Request`, and to be told of pieces that have come. */
  RequestInPieces: 18,
} as const;

/** The step that follows `Metadata` or a slot's status. */
export const MetadataNext = {
  /** The destination is too small: a re-request is awaited. */
  Rerequest: 0,
  /** It fits: the write follows. */
  Written: 1,
  /** The tensor has no bytes: it is complete. */
  Empty: 2,
} as const;

export const SlotStatus = { Metadata: 0, Dead: 1, Error: 2 } as const;

/** UTF-8 bytes of a name, a region's handle and an error's text. */
export const nameBytesMax = 8192;
const handleBytesMax = 1024;
const errorBytesMax = 1024;
export const slotsMax = 65_535;
export const standingDepthMax = 1024;

/** The pieces of a request: `count` indices in a row are its own. The first is that of the request, and tells that everything has come; the
 *  others are those of pieces, for as many as there are. */
export interface PiecePlan {
  readonly bytes: number;
  readonly count: number;
}

export const piecesMax = 1024;
const pieceBytesMin = 64 * 1024;
const pieceBytesMax = 16 * 1024 * 1024;

/** The immediate that tells of a piece; undefined where only the end of the whole is told. */
export function pieceImmediate(
  { request, plan }: { readonly request: number; readonly plan: PiecePlan | undefined },
  piece: number,
): number | undefined {
  return plan !== undefined && piece < plan.count - 1 ? (request + 1 + piece) >>> 0 : undefined;
}

export function writePlan(writer: ByteWriter, { bytes, count }: PiecePlan): void {
  writer.u32(bytes);
  writer.u16(count);
}

/** @throws ShoalError `protocol` for pieces that are too small, too large or too many. */
export function readPlan(reader: ByteReader): PiecePlan {
  const [bytes, count] = [reader.u32(), reader.u16()];
  if (bytes < pieceBytesMin || bytes > pieceBytesMax || bytes % pieceBytesMin !== 0 || count < 2 || count > piecesMax)
    throw new ShoalError('protocol', `a request wants ${count} pieces of ${bytes} bytes`);
  return { bytes, count };
}

/** A place that a tensor may be written to; on the wire, rkey 0 is none yet. */
export interface Destination {
  readonly region: RemoteRegion;
  readonly offset: number;
  readonly bytes: number;
}

export const nowhere: Destination = { region: { rkey: 0, bytes: 0, handle: '' }, offset: 0, bytes: 0 };

export function writeDestination(writer: ByteWriter, buffer: ReceiveBuffer | undefined): void {
  writer.u32(buffer?.registered.rkey ?? 0);
  if (buffer === undefined) return;
  writer.varint(buffer.offset);
  writer.varint(buffer.bytes);
}

/** @throws ShoalError `protocol` when it is not inside a region that was told. */
export function readDestination(reader: ByteReader, regions: ReadonlyMap<number, RemoteRegion>): Destination {
  const rkey = reader.u32();
  if (rkey === 0) return nowhere;
  const [offset, bytes] = [reader.varint(), reader.varint()];
  const region = regions.get(rkey);
  if (region === undefined) throw new ShoalError('protocol', `a request wants a tensor in region ${rkey}, which was not told`);
  if (offset > region.bytes || bytes > region.bytes - offset) {
    const message = `a request wants a tensor at bytes ${offset} to ${offset + bytes} of region ${rkey}, which has ${region.bytes}`;
    throw new ShoalError('protocol', message);
  }
  return { region, offset, bytes };
}

export function writeRegion(writer: ByteWriter, { rkey, bytes, handle }: RemoteRegion): void {
  writer.u32(rkey);
  writer.varint(bytes);
  writer.text(handle);
}

export function readRegion(reader: ByteReader): RemoteRegion {
  const rkey = reader.u32();
  if (rkey === 0) throw new ShoalError('protocol', 'region 0 is none');
  return { rkey, bytes: reader.varint(), handle: reader.text(handleBytesMax) };
}

/** Codes of metadata on the wire; those of memory's dtypes are theirs. */
const stringCode = 64;
const noMetadataCode = 255;

export function writeMetadata(writer: ByteWriter, metadata: TensorMetadata | undefined): void {
  if (metadata === undefined) return writer.u8(noMetadataCode);
  writer.u8(metadata.dtype === 'string' ? stringCode : dtypes.find(({ name }) => name === metadata.dtype)!.code);
  writer.u8(metadata.shape.length);
  for (const dimension of metadata.shape) writer.varint(dimension);
  writer.varint(metadata.bytes);
}

export function readMetadata(reader: ByteReader): TensorMetadata | undefined {
  const code = reader.u8();
  if (code === noMetadataCode) return undefined;
  const dtype = code === stringCode ? 'string' : dtypes[code]?.name;
  if (dtype === undefined) throw reader.malformed(`dtype code ${code} is of no dtype`);
  const rank = reader.u8();
  if (rank > dimensionsMax) throw reader.malformed(`a tensor has ${rank} dimensions; at most ${dimensionsMax} are allowed`);
  const shape: number[] = [];
  for (let axis = 0; axis < rank; axis++) shape.push(reader.varint());
  return checkMetadata(dtype, shape, reader.varint());
}

export function writeError(writer: ByteWriter, { code, message }: ShoalError): void {
  const shortened = Buffer.from(message).subarray(0, errorBytesMax).toString('utf8');
  writer.u8(errorCodes.indexOf(code));
  writer.text(shortened.replace(/\uFFFD+$/, ''));
}

/** @throws ShoalError `protocol`. @param peer the name that the error begins with. */
export function readError(reader: ByteReader, peer: string): ShoalError {
  const code = errorCodes[reader.u8()] as ErrorCode | undefined;
  if (code === undefined) throw reader.malformed('an error has a code that is none');
  const text = reader.text(errorBytesMax).replace(/[^\x20-\x7e]/g, '?');
  return new ShoalError(code, `${peer}: ${text}`);
}
