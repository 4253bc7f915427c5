/** Pushes and pulls of rows. A push goes to every slice of the parameter, also to those that none of its rows lie in: their
 *  rounds advance together. */
import { pushTo } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Msg } from '../../messaging/msg.ts';
import { rowBytesOf, rowsOf } from '../protocol/placement.ts';
import { rowsByPart, sumRows, type PartRows, type Rows } from '../values/sparse-rows.ts';
import type { ClientOperation } from './client-operation.ts';
import type { RowsRequest } from './client-options.ts';
import { fixedRequest } from './client-request.ts';
import type { ClientContext } from './client-transfers.ts';
import { alignedBytes, encodeRuns, KVMessage, rowNumbersBytes, SourceKind, TargetKind, type Run } from '../protocol/wire.ts';

interface PieceRows extends PartRows {
  readonly slot: number;
}

export class ClientRows {
  readonly #context: ClientContext;

  constructor(context: ClientContext) {
    this.#context = context;
  }

  /** @throws ShoalError `usage` for a parameter that is not known, `unsupported` for rows that are cut. */
  check({ key }: RowsRequest): void {
    const { directory } = this.#context;
    const { shape, pieces } = directory.parameter(directory.require(key));
    if (pieces.every(({ elements }) => Number.isInteger(rowsOf(shape, elements)))) return;
    throw new ShoalError('unsupported', `rows of '${key}' are cut: one is larger than a slice; push and pull it whole`);
  }

  push(operation: ClientOperation, localWorker: number, request: RowsRequest): void {
    const { directory, options, local, rounds, breakDown } = this.#context;
    const parameter = directory.find(request.key);
    const round = rounds.next(localWorker, parameter);
    const read = ({ rows, values }: RowsRequest): Rows => ({ rows, values: options.values.view(values) });
    if (options.localWorkers === 1) return this.#send([operation], parameter, round, request.priority, read(request));
    operation.expect();
    const whole = local.add(parameter, round, localWorker, { operation, key: request.key, rows: request });
    if (whole === undefined) return undefined;
    if (whole.parts.some(({ rows }) => rows === undefined)) {
      return breakDown(new ShoalError('mismatch', `workers of one process pushed rows and all values of '${request.key}' in one round`));
    }
    const declared = directory.parameter(parameter);
    const parts = whole.parts.map(({ rows }) => read(rows!));
    const sum = sumRows(options.kernels, declared.dtype, rowBytesOf(declared), parts);
    const operations = whole.parts.map((part) => part.operation);
    this.#send(operations, parameter, round, request.priority, sum);
    // The requests replace what was expected of each operation.
    for (const each of operations) each.arrive();
    return undefined;
  }

  #send(operations: readonly ClientOperation[], parameter: number, round: number, priority: number, { rows, values }: Rows): void {
    const declared = this.#context.directory.parameter(parameter);
    const { dtype, pieces: cut } = declared;
    const rowBytes = rowBytesOf(declared);
    const nonFinite = cut.length > 1 && this.#context.isRefused(dtype, values);
    for (const [server, pieces] of this.#byServer(parameter, rows, { all: true })) {
      const runs: Run[] = [];
      const frames: Uint8Array[] = [];
      for (const piece of pieces) {
        const frame = rowFrame(piece.rows, rowBytes);
        const at = rowNumbersBytes(piece.rows.length);
        for (const [k, place] of piece.places.entries()) {
          frame.set(values.subarray(place * rowBytes, (place + 1) * rowBytes), at + k * rowBytes);
        }
        frames.push(frame);
        runs.push({ ...rowRun(piece, round, SourceKind.rows, frames.length, frame.byteLength), nonFinite });
      }
      const connection = this.#context.connections[server];
      const { batches } = this.#context.directory;
      const request = fixedRequest({
        type: KVMessage.update,
        priority,
        repeats: true,
        pushed: runs,
        head: (reach) => encodeRuns({ ...reach, batches, runs }),
        frames,
        finish: (error) => {
          for (const operation of operations) operation.arrive(error, request);
        },
      });
      for (const operation of operations) operation.attach(request, connection);
      connection.enqueue(request);
    }
  }

  pull(operation: ClientOperation, localWorker: number, { key, rows, values, priority }: RowsRequest): void {
    const { directory, connections, options, rounds } = this.#context;
    const parameter = directory.find(key);
    const round = rounds.of(localWorker, parameter);
    const rowBytes = rowBytesOf(directory.parameter(parameter));
    operation.expect();
    for (const [server, pieces] of this.#byServer(parameter, rows, { all: false })) {
      const frames = pieces.map((piece) => rowFrame(piece.rows, 0));
      const runs = pieces.map((piece, k) => rowRun(piece, round, SourceKind.rowNumbers, k + 1, frames[k].byteLength));
      const request = fixedRequest({
        type: KVMessage.get,
        priority,
        head: (reach) => encodeRuns({ ...reach, batches: directory.batches, runs }),
        frames,
        finish: (error, msg) => {
          if (error === undefined && !operation.finished) this.#place(msg, pieces, options.values.view(values), rowBytes);
          operation.arrive(error, request);
        },
      });
      operation.attach(request, connections[server]);
      connections[server].enqueue(request);
    }
    operation.arrive();
  }

  #place(msg: Msg | undefined, pieces: readonly PieceRows[], out: Uint8Array, rowBytes: number): void {
    const payload = msg?.frames[1];
    let at = 0;
    for (const { places } of pieces) {
      for (const place of places) {
        out.set(payload!.subarray(at, at + rowBytes), place * rowBytes);
        at += rowBytes;
      }
      at = alignedBytes(at);
    }
  }

  /** Rows by server and piece; with `all`, also pieces without rows. */
  #byServer(parameter: number, rows: Uint32Array, { all }: { readonly all: boolean }): Map<number, PieceRows[]> {
    const { directory } = this.#context;
    const { shape } = directory.parameter(parameter);
    const first = directory.firstPiece[parameter];
    const firsts = [0];
    for (let piece = first; piece < directory.firstPiece[parameter + 1] - 1; piece++)
      firsts.push(firsts[firsts.length - 1] + rowsOf(shape, directory.pieceElements[piece]));
    const servers = new Map<number, PieceRows[]>();
    for (const [k, part] of rowsByPart(firsts, rows).entries()) {
      if (!all && part.rows.length === 0) continue;
      pushTo(servers, directory.pieceServer[first + k], { slot: directory.pieceSlot[first + k], ...part });
    }
    return servers;
  }
}

function rowFrame(rows: Uint32Array, rowBytes: number): Uint8Array {
  const frame = new Uint8Array(new ArrayBuffer(rowNumbersBytes(rows.length) + rows.length * rowBytes));
  frame.set(new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength));
  return frame;
}

function rowRun({ slot, rows }: PieceRows, round: number, source: number, frame: number, bytes: number): Run {
  return {
    firstSlot: slot,
    slots: 1,
    round,
    source,
    target: source === SourceKind.rowNumbers ? TargetKind.inline : TargetKind.none,
    codec: 0,
    sourceRegion: frame,
    sourceOffset: 0,
    sourceBytes: bytes,
    targetRegion: 0,
    targetOffset: 0,
    rows: rows.length,
    nonFinite: false,
  };
}
