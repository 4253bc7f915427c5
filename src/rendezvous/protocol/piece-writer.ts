/** Writes tensors that must be read into host memory first. Pieces are read a few at a time, and each leaves as soon as it is there:
 *  reading and the wire overlap.
 *
 *      piece 0    read │ write                    seats: 3 of staging, lent until the write has left
 *      piece 1    read     │ write
 *      piece 2    read           │ write          the piece that is posted last has the request's immediate
 *      piece 3               read       │ … */
import { ShoalError } from '../../base/errors.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import { stagedPieceBytes, type StagedTensor } from '../value/staged-tensor.ts';
import { spanOf, type Release } from '../value/tensor-value.ts';
import type { Outbox } from './outbox.ts';
import { pieceImmediate, type Destination, type PiecePlan } from './records.ts';

/** Host memory that is written from. */
export interface Staging {
  readonly bytes: Uint8Array;
  release(): void;
}

export interface PieceWriterOptions {
  readonly outbox: Outbox;
  /** @throws ShoalError `out-of-memory`. */
  stage(bytes: number): Staging;
}

export interface PieceTarget {
  readonly request: number;
  readonly destination: Destination;
  /** The pieces that the receiver wants to be told of; undefined: only the whole. */
  readonly plan: PiecePlan | undefined;
  /** The request is for this tensor alone: its last piece answers it. */
  readonly completes: boolean;
}

/** Pieces of one connection that are read or written at a time. */
const seatsMax = 3;

/** One tensor on its way. */
interface Run {
  readonly tensor: StagedTensor;
  readonly target: PieceTarget;
  /** Pieces that are not posted. */
  left: number;
  cause: ShoalError | undefined;
  isCancelled: boolean;
  readonly told: PieceCallbacks;
}

export interface PieceCallbacks {
  /** Nothing reads the tensor any more. @param cause why not all of it was read. */
  readonly onRead: Release;
  /** Once, unless it is cancelled: everything is posted, or could not be read. */
  readonly onPosted: (cause: ShoalError | undefined) => void;
}

export class PieceWriter {
  readonly #options: PieceWriterOptions;
  #seats = seatsMax;
  /** Reads that wait in line for a seat. */
  readonly #waiting = new Fifo<() => void>();

  constructor(options: PieceWriterOptions) {
    this.#options = options;
  }

  /** @returns what ends it: no more is posted. `onRead` is told the cause then. */
  write(tensor: StagedTensor, target: PieceTarget, told: PieceCallbacks): Release {
    const pieceBytes = target.plan?.bytes ?? stagedPieceBytes;
    const run: Run = { tensor, target, left: Math.ceil(tensor.bytes / pieceBytes), cause: undefined, isCancelled: false, told };
    for (let at = 0; at < tensor.bytes; at += pieceBytes)
      void this.#move(run, at, Math.min(pieceBytes, tensor.bytes - at), at / pieceBytes);
    return (cause) => {
      run.isCancelled = true;
      run.cause ??= cause;
    };
  }

  async #move(run: Run, at: number, bytes: number, piece: number): Promise<void> {
    await this.#seat();
    let staging: Staging | undefined;
    const leave = (): void => {
      staging?.release();
      const next = this.#waiting.shift();
      if (next === undefined) this.#seats++;
      else next();
    };
    try {
      if (isWanted(run)) {
        staging = this.#options.stage(bytes);
        await run.tensor.read(at, staging.bytes);
      }
    } catch (thrown) {
      run.cause ??= ShoalError.from(thrown);
    }
    run.left--;
    if (staging !== undefined && isWanted(run)) this.#post(run, at, staging, piece, leave);
    else leave();
    if (run.left > 0) return;
    run.told.onRead(run.cause);
    if (!run.isCancelled) run.told.onPosted(run.cause);
  }

  #seat(): Promise<void> | undefined {
    if (this.#seats === 0) return new Promise((resolve) => this.#waiting.push(resolve));
    this.#seats--;
    return undefined;
  }

  #post({ target, left }: Run, at: number, { bytes }: Staging, piece: number, onDone: () => void): void {
    const { request, destination, completes } = target;
    this.#options.outbox.write({
      owner: request,
      source: spanOf(bytes),
      region: destination.region,
      offset: destination.offset + at,
      room: bytes.length,
      isPiece: true,
      immediate: left > 0 ? pieceImmediate(target, piece) : completes ? request : undefined,
      onDone,
    });
  }
}

function isWanted({ isCancelled, cause }: Run): boolean {
  return !isCancelled && cause === undefined;
}
