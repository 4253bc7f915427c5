/** How a tensor is cut. Parts are ranges of bytes of the tensor they came from: views, never copies. */
import { ShoalError } from '../base/errors.ts';

export interface Part {
  readonly offset: number;
  readonly bytes: number;
}

export interface PartitionRequest {
  readonly bytes: number;
  /** No part is larger, unless one unit is. */
  readonly partitionBytes: number;
  /** What is never cut: an element, or a row. `bytes` is a multiple of it. */
  readonly unitBytes: number;
}

/** As many parts as have to be, as equal as they can be: what is left over goes to the last ones, a unit each. */
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
  readonly bytes: number;
  readonly unitBytes: number;
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

/** How many parts there will be; at least one.
 *  @throws ShoalError `usage` when the tensor is no multiple of its unit. */
export function countParts({ bytes, partitionBytes, unitBytes }: PartitionRequest): number {
  if (bytes % unitBytes !== 0) throw new ShoalError('usage', `a tensor of ${bytes} bytes has no whole number of units of ${unitBytes}`);
  return Math.max(1, Math.ceil(bytes / unitBytes / Math.max(1, Math.floor(partitionBytes / unitBytes))));
}
