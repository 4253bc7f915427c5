/** The placement of parameters: which part lies on which server. Pure and deterministic.
 *
 *  Large parameters are cut into near-equal slices; small ones are packed, in their order, into *slabs*: contiguous memory
 *  of one server and one dtype, so that a batch of neighbours is one stretch of memory. Every piece goes to the server
 *  that has the fewest bytes so far, so that loads differ by no more than the largest piece.
 *
 *    parameters   ▐████████████████████▌▐█▌▐██▌▐█▌▐█▌
 *    server 0      ▐██████████▌                        slab 0
 *    server 1                ▐█████████▌               slab 0
 *    server 0                           ▐█▌▐██▌▐█▌▐█▌  slab 1
 *
 *  Cuts fall between rows, so that a row is on one server, unless one row alone is larger than a slice. */
import { dtypeInfo, type DType } from '../../memory/dtype.ts';

export interface Placeable {
  readonly dtype: DType;
  readonly shape: readonly number[];
}

/** A parameter is its pieces in order; one without elements is one piece without any. */
export interface Piece {
  readonly server: number;
  readonly elements: number;
  /** Number of the slab on that server, from 0. A slab holds pieces of one dtype and one batch. */
  readonly slab: number;
}

export interface PlacementOptions {
  readonly servers: number;
  /** Larger parameters are cut. */
  readonly sliceBytes: number;
}

const lineBytes = 64;
/** Parameters are not cut below it for the sake of balance. */
const sliceBytesLeast = 256 * 1024;
const slabBytesMost = 256 * 1024;
const slabBytesLeast = 16 * 1024;

/** Small parameters of one dtype that go to one server. */
interface Pack {
  /** Positions in the batch. */
  readonly members: number[];
  bytes: number;
}

/** Places batch after batch. */
export class Placer {
  readonly #servers: number;
  readonly #sliceBytes: number;
  /** Bytes per server. */
  readonly #loads: number[];
  /** Slabs per server. */
  readonly #slabs: number[];

  constructor({ servers, sliceBytes }: PlacementOptions) {
    this.#servers = servers;
    this.#sliceBytes = sliceBytes;
    this.#loads = Array.from({ length: servers }, () => 0);
    this.#slabs = Array.from({ length: servers }, () => 0);
  }

  /** The pieces of each parameter of a batch. */
  place(batch: readonly Placeable[]): Piece[][] {
    const share = batch.reduce((sum, parameter) => sum + bytesOf(parameter), 0) / this.#servers;
    const sliceBytes = Math.min(this.#sliceBytes, Math.max(share, sliceBytesLeast));
    const slabBytes = Math.min(slabBytesMost, Math.max(slabBytesLeast, share / 4), this.#sliceBytes);
    const placed: Piece[][] = batch.map(() => []);
    // Large ones first: the small ones then even out what they leave.
    for (const [k, parameter] of batch.entries()) {
      if (!isSmall(parameter, slabBytes)) placed[k] = this.#cut(parameter, sliceBytes);
    }
    for (const { members, bytes } of pack(batch, slabBytes)) {
      const { server, slab } = this.#openSlab(bytes);
      for (const k of members) placed[k] = [{ server, elements: elementsOf(batch[k].shape), slab }];
    }
    return placed;
  }

  #cut(parameter: Placeable, sliceBytes: number): Piece[] {
    const elements = elementsOf(parameter.shape);
    const elementBytes = dtypeInfo(parameter.dtype).bytes;
    const unit = cutUnit(parameter, sliceBytes);
    const units = Math.ceil(elements / unit);
    let count = Math.ceil((elements * elementBytes) / sliceBytes);
    if (count > this.#servers) count = Math.ceil(count / this.#servers) * this.#servers;
    count = Math.min(count, units);
    const pieces: Piece[] = [];
    for (let k = 0; k < count; k++) {
      const from = Math.floor((k * units) / count) * unit;
      const to = Math.min(elements, Math.floor(((k + 1) * units) / count) * unit);
      const { server, slab } = this.#openSlab((to - from) * elementBytes);
      pieces.push({ server, elements: to - from, slab });
    }
    return pieces;
  }

  #openSlab(bytes: number): { server: number; slab: number } {
    let server = 0;
    for (let k = 1; k < this.#servers; k++) if (this.#loads[k] < this.#loads[server]) server = k;
    this.#loads[server] += bytes;
    return { server, slab: this.#slabs[server]++ };
  }
}

/** The small parameters of a batch, neighbours together; in the order of their first ones. */
function pack(batch: readonly Placeable[], slabBytes: number): Pack[] {
  const packs: Pack[] = [];
  const open = new Map<DType, Pack>();
  for (const [k, parameter] of batch.entries()) {
    if (!isSmall(parameter, slabBytes)) continue;
    const bytes = bytesOf(parameter);
    let last = open.get(parameter.dtype);
    if (last === undefined || last.bytes + bytes > slabBytes) {
      last = { members: [], bytes: 0 };
      open.set(parameter.dtype, last);
      packs.push(last);
    }
    last.members.push(k);
    last.bytes += bytes;
  }
  return packs;
}

function isSmall(parameter: Placeable, slabBytes: number): boolean {
  return bytesOf(parameter) <= slabBytes / 2;
}

function bytesOf({ dtype, shape }: Placeable): number {
  return elementsOf(shape) * dtypeInfo(dtype).bytes;
}

export function elementsOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** Elements of one row of a matrix (or of whatever the first dimension counts). */
export function rowElements(shape: readonly number[]): number {
  return shape.length < 2 ? 1 : elementsOf(shape.slice(1));
}

export function rowBytesOf({ dtype, shape }: Placeable): number {
  return rowElements(shape) * dtypeInfo(dtype).bytes;
}

/** Rows that so many elements of a parameter are; not whole when one is cut. Rows without elements lie in one piece. */
export function rowsOf(shape: readonly number[], elements: number): number {
  const width = rowElements(shape);
  return width === 0 ? shape[0] : elements / width;
}

/** Elements between which a parameter may be cut: whole rows and, where these are small, whole cache lines. */
function cutUnit({ dtype, shape }: Placeable, sliceBytes: number): number {
  const { bytes } = dtypeInfo(dtype);
  const row = rowElements(shape);
  const rowBytes = row * bytes;
  if (rowBytes > sliceBytes) return lineBytes / bytes;
  const rows = lineBytes / greatestCommonDivisor(rowBytes, lineBytes);
  return rows * rowBytes <= sliceBytes / 8 ? rows * row : row;
}

function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
