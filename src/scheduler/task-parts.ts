/** Cuts a tensor into parts: ranges of bytes of the tensor, viewed and never copied. */
import { ShoalError } from '../base/errors.ts';

/** A part of a tensor: a range of its bytes. */
export interface Part {
  /** Bytes of the tensor that lie before the part. */
  readonly offset: number;
  /** Size of the part in bytes. */
  readonly bytes: number;
}

export interface PartitionRequest {
  readonly bytes: number;
  /** Largest part, unless a single unit is larger. */
  readonly partitionBytes: number;
  /** Bytes of a unit that is never cut: an element, or a row. `bytes` is a multiple of it. */
  readonly unitBytes: number;
}

/** Parts as few as possible and as equal as possible: the last ones have one unit more each until the rest is used up. */
export function partsOf(request: PartitionRequest): Part[] {
  const { bytes, unitBytes } = request;
  const cut = { bytes, unitBytes, parts: countParts(request) };
  const parts: Part[] = [];
  for (let index = 0, offset = 0; index < cut.parts; index++) {
    const end = partOffset(cut, index + 1);
    parts.push({ offset, bytes: end - offset });
    offset = end;
  }
  return parts;
}

/** A tensor that has been cut. */
export interface Cut {
  /** Size of the tensor in bytes; a multiple of `unitBytes`. */
  readonly bytes: number;
  /** Bytes of a unit that is never cut: an element, or a row. */
  readonly unitBytes: number;
  /** Number of parts, at least one. */
  readonly parts: number;
}

/** Size of one of the parts. */
export function partBytes(cut: Cut, index: number): number {
  return partOffset(cut, index + 1) - partOffset(cut, index);
}

function partOffset({ bytes, unitBytes, parts }: Cut, index: number): number {
  const units = bytes / unitBytes;
  const least = Math.floor(units / parts);
  const larger = units - least * parts;
  return (least * index + Math.max(0, index - (parts - larger))) * unitBytes;
}

/** Number of parts; at least one.
 *  @throws ShoalError `usage` when the tensor is not a multiple of its unit. */
export function countParts({ bytes, partitionBytes, unitBytes }: PartitionRequest): number {
  if (bytes % unitBytes !== 0) throw new ShoalError('usage', `a tensor of ${bytes} bytes has no whole number of units of ${unitBytes}`);
  return Math.max(1, Math.ceil(bytes / unitBytes / Math.max(1, Math.floor(partitionBytes / unitBytes))));
}
