/** Rounds of a process's workers: their pushes are summed, so that one update leaves the process for any number of workers, when the last of
 *  them has pushed. */
import type { GradientCodec } from '../compression/codec.ts';
import type { ClientOperation } from './client-operation.ts';
import type { RowsRequest, TransferEntry } from './client-options.ts';

export interface LocalPart {
  readonly operation: ClientOperation;
  readonly key: string;
  /** One of both. */
  readonly entry?: TransferEntry;
  readonly rows?: RowsRequest;
  readonly codec?: GradientCodec | undefined;
}

/** A round that every local worker has pushed. */
export interface LocalRound {
  readonly parameter: number;
  readonly round: number;
  readonly parts: readonly LocalPart[];
}

export class LocalRounds {
  readonly #workers: number;
  readonly #firstWorker: number;
  /** Parts that came, by parameter, then round, then local worker. */
  readonly #rounds = new Map<number, Map<number, (LocalPart | undefined)[]>>();

  constructor(firstWorker: number, workers: number) {
    this.#firstWorker = firstWorker;
    this.#workers = workers;
  }

  /** @returns the round when it is complete. */
  add(parameter: number, round: number, localWorker: number, part: LocalPart): LocalRound | undefined {
    let rounds = this.#rounds.get(parameter);
    if (rounds === undefined) this.#rounds.set(parameter, (rounds = new Map()));
    let parts = rounds.get(round);
    if (parts === undefined) rounds.set(round, (parts = Array.from({ length: this.#workers }, () => undefined)));
    parts[localWorker] = part;
    if (!parts.every((present) => present !== undefined)) return undefined;
    rounds.delete(round);
    if (rounds.size === 0) this.#rounds.delete(parameter);
    return { parameter, round, parts };
  }

  /** Local workers that an operation waits for, in words. */
  describeWait(operation: ClientOperation): string | undefined {
    for (const rounds of this.#rounds.values()) {
      for (const [round, parts] of rounds) {
        const mine = parts.find((part) => part?.operation === operation);
        if (mine === undefined) continue;
        const missing = parts.flatMap((part, k) => (part === undefined ? [`worker ${this.#firstWorker + k}`] : []));
        return `round ${round} of '${mine.key}': ${missing.join(', ')} of the same process ${missing.length > 1 ? 'have' : 'has'} not pushed`;
      }
    }
    return undefined;
  }
}
