/** Rounds of a process's workers. Each worker's pushes of a parameter are numbered, from the round on at which its process has come. Their
 *  pushes are summed, so that one update leaves the process for any number of workers, when the last of them has pushed. */
import { getOrMake } from '../../base/collections/lists.ts';
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

/** The number of the last push of each parameter, by worker of this process. */
export class PushNumbers {
  readonly #numbers: readonly number[][];
  /** The last push of any parameter, by worker. */
  readonly #last: number[];
  /** The round before the first push of a parameter. */
  readonly before: (parameter: number) => number;

  constructor(workers: number, before: (parameter: number) => number) {
    this.#numbers = Array.from({ length: workers }, () => []);
    this.#last = this.#numbers.map(() => 0);
    this.before = before;
  }

  of(worker: number, parameter: number): number {
    return this.#numbers[worker][parameter] ?? this.before(parameter);
  }

  /** @returns the number of one more push. */
  next(worker: number, parameter: number): number {
    const number = this.of(worker, parameter) + 1;
    this.#numbers[worker][parameter] = number;
    this.#last[worker] = Math.max(this.#last[worker], number);
    return number;
  }

  /** 0: the worker has pushed nothing yet. */
  last(worker: number): number {
    return this.#last[worker];
  }
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
    const rounds = getOrMake(this.#rounds, parameter, () => new Map<number, (LocalPart | undefined)[]>());
    const parts = getOrMake(rounds, round, () => Array.from({ length: this.#workers }, () => undefined));
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
