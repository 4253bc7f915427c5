/** The parameters there are, in the order they were declared, and where their pieces lie. The same on every client and
 *  server of a job. Batches are only ever appended.
 *
 *  A piece on a server is a *slot*: a dense number, ordered by batch, then slab, then parameter, so that the slots of a
 *  slab are neighbours in number and in memory. Arrays of numbers, not objects: a batch has tens of thousands. */
import { areCounts, isCount } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, dtypes, type DType } from '../../memory/dtype.ts';
import { dimensionsMax } from '../../memory/tensor.ts';
import { elementsOf, type Piece, type Placeable } from './placement.ts';

export interface DeclaredParameter extends Placeable {
  readonly key: string;
  readonly pieces: readonly Piece[];
}

/** A server's record of a piece. */
export interface SlotRecord {
  readonly parameter: number;
  readonly slab: number;
  /** The first of the parameter's elements. */
  readonly firstElement: number;
  readonly elements: number;
}

const keyBytesMax = 4096;
const parametersMax = 2 ** 24;

export class ParameterDirectory {
  readonly #servers: number;
  readonly #byKey = new Map<string, number>();
  readonly #parameters: DeclaredParameter[] = [];
  /** Parameter at which each batch begins, and the end of the last. */
  readonly #batchStarts: number[] = [0];
  readonly #slots: SlotRecord[][];
  readonly #slabs: number[];
  /** Piece k of parameter p is at `firstPiece[p] + k` of the arrays below. */
  readonly firstPiece: number[] = [0];
  readonly pieceServer: number[] = [];
  readonly pieceSlot: number[] = [];
  readonly pieceSlab: number[] = [];
  readonly pieceElements: number[] = [];

  constructor(servers: number) {
    this.#servers = servers;
    this.#slots = Array.from({ length: servers }, () => []);
    this.#slabs = Array.from({ length: servers }, () => 0);
  }

  get batches(): number {
    return this.#batchStarts.length - 1;
  }

  get count(): number {
    return this.#parameters.length;
  }

  /** Index of the parameter; −1 when there is none. */
  find(key: string): number {
    return this.#byKey.get(key) ?? -1;
  }

  /** Index of the parameter. @throws ShoalError `usage` when there is none. */
  require(key: string): number {
    const index = this.find(key);
    if (index < 0) throw new ShoalError('usage', `parameter '${key}' is unknown; call init for it on every worker first`);
    return index;
  }

  parameter(index: number): DeclaredParameter {
    return this.#parameters[index];
  }

  batch(number: number): readonly DeclaredParameter[] {
    return this.#parameters.slice(this.#batchStarts[number], this.#batchStarts[number + 1]);
  }

  /** Slots of a server, by number. */
  slots(server: number): readonly SlotRecord[] {
    return this.#slots[server];
  }

  /** The slot's name for people: `'embedding' (elements 4096 to 8191)`. */
  describeSlot(server: number, slot: number): string {
    const { parameter, firstElement, elements } = this.#slots[server][slot];
    const { key, pieces } = this.#parameters[parameter];
    return pieces.length === 1 ? `'${key}'` : `'${key}' (elements ${firstElement} to ${firstElement + elements - 1})`;
  }

  /** Appends a batch, all or nothing.
   *  @throws ShoalError `protocol` when it is no placement: pieces that do not cover their parameter, servers that do not
   *          exist, slabs with gaps or of two dtypes; `usage` for a key that exists. */
  add(batch: readonly DeclaredParameter[]): void {
    this.#check(batch);
    const added: { record: SlotRecord; piece: number; server: number }[] = [];
    for (const parameter of batch) {
      const index = this.#parameters.push(parameter) - 1;
      this.#byKey.set(parameter.key, index);
      let firstElement = 0;
      for (const { server, elements, slab } of parameter.pieces) {
        const piece = this.pieceServer.push(server) - 1;
        this.pieceSlab.push(slab);
        this.pieceElements.push(elements);
        this.pieceSlot.push(0);
        added.push({ record: { parameter: index, slab, firstElement, elements }, piece, server });
        this.#slabs[server] = Math.max(this.#slabs[server], slab + 1);
        firstElement += elements;
      }
      this.firstPiece.push(this.pieceServer.length);
    }
    added.sort((a, b) => a.record.slab - b.record.slab || a.piece - b.piece);
    for (const { record, piece, server } of added) this.pieceSlot[piece] = this.#slots[server].push(record) - 1;
    this.#batchStarts.push(this.#parameters.length);
  }

  #check(batch: readonly DeclaredParameter[]): void {
    if (batch.length === 0 || this.#parameters.length + batch.length > parametersMax) throw bad(`a batch of ${batch.length} parameters`);
    const keys = new Set<string>();
    const slabDTypes = this.#slabs.map(() => new Map<number, DType>());
    for (const { key, dtype, shape, pieces } of batch) {
      if (this.#byKey.has(key) || keys.has(key)) {
        throw new ShoalError('usage', `parameter '${key}' has been initialised already; init names each key once`);
      }
      keys.add(key);
      let covered = 0;
      for (const { server, elements, slab } of pieces) {
        if (!isCount(server) || server >= this.#servers) throw bad(`'${key}' has a piece on server ${server} of ${this.#servers}`);
        if (!isCount(elements) || (elements === 0 && pieces.length > 1)) throw bad(`'${key}' has a piece of ${elements} elements`);
        if (!isCount(slab) || slab < this.#slabs[server]) throw bad(`'${key}' lies in slab ${slab} of another batch`);
        if ((slabDTypes[server].get(slab) ?? dtype) !== dtype) throw bad(`slab ${slab} of server ${server} has two dtypes`);
        slabDTypes[server].set(slab, dtype);
        covered += elements;
      }
      if (covered !== elementsOf(shape)) throw bad(`the pieces of '${key}' have ${covered} of ${elementsOf(shape)} elements`);
    }
    for (const [server, slabs] of slabDTypes.entries()) {
      for (const slab of slabs.keys()) {
        if (slab >= this.#slabs[server] + slabs.size) throw bad(`slabs of server ${server} have gaps`);
      }
    }
  }
}

/** A batch as it is sent and stored: plain JSON. */
export function packBatch(batch: readonly DeclaredParameter[]): unknown {
  return batch.map(({ key, dtype, shape, pieces }) => [
    key,
    dtypeInfo(dtype).code,
    shape,
    pieces.flatMap(({ server, elements, slab }) => [server, elements, slab]),
  ]);
}

/** @throws ShoalError `protocol` when it is not what `packBatch` makes. */
export function unpackBatch(packed: unknown): DeclaredParameter[] {
  if (!Array.isArray(packed)) throw bad('it is no list');
  return packed.map((entry: unknown) => {
    if (!Array.isArray(entry) || entry.length !== 4) throw bad('an entry is not [key, dtype, shape, pieces]');
    const [key, code, shape, flat] = entry as unknown[];
    if (typeof key !== 'string' || key.length > keyBytesMax) throw bad('a key is no text, or too long');
    const dtype = typeof code === 'number' ? dtypes[code] : undefined;
    if (dtype === undefined) throw bad(`'${key}' has the unknown dtype ${String(code)}`);
    if (!areCounts(shape) || shape.length > dimensionsMax) throw bad(`'${key}' has no shape`);
    if (!Number.isSafeInteger(elementsOf(shape) * dtype.bytes)) throw bad(`'${key}' is larger than any memory`);
    if (!areCounts(flat) || flat.length === 0 || flat.length % 3 !== 0) throw bad(`'${key}' has no pieces`);
    const pieces: Piece[] = [];
    for (let k = 0; k < flat.length; k += 3) pieces.push({ server: flat[k], elements: flat[k + 1], slab: flat[k + 2] });
    return { key, dtype: dtype.name, shape, pieces };
  });
}

function bad(what: string): ShoalError {
  return new ShoalError('protocol', `a declaration of parameters cannot be used: ${what}; run the same Shoal everywhere`);
}
