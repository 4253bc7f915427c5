/** The words of the launchers of a job's nodes in the job's store: keys, values, and the failure with which a job ends. */
import { ShoalError } from '../base/errors.ts';
import { anyText, count, flag, list, object, optional, type Shape } from '../base/schema.ts';
import { generationPrefix } from '../store/open-store.ts';
import { PrefixStore, type Store } from '../store/store.ts';

/** The failure that ended a generation, as plain data. */
export interface JobFailure {
  readonly node: number;
  readonly host: string;
  /** Undefined when no rank is to blame. */
  readonly rank?: number;
  readonly exitCode: number;
  readonly text: string;
  /** The error that the rank wrote to stderr last, as far as its launcher has read it. */
  readonly error?: string;
  /** The place of that error in the script, with the source line and the script's stack frames. */
  readonly details?: readonly string[];
  /** No restart helps: a launcher is gone, or the user ended the job. */
  readonly final: boolean;
}

/** `rank 2 exited with code 3: TypeError: x is not a function`. */
export function sentenceOf({ rank, text, error }: JobFailure): string {
  return `${rank === undefined ? '' : `rank ${rank} `}${text}${error === undefined ? '' : `: ${error}`}`;
}

export const failureShape: Shape<JobFailure> = object({
  node: count,
  host: anyText,
  rank: optional(count),
  exitCode: count,
  text: anyText,
  error: optional(anyText),
  details: optional(list(anyText)),
  final: flag,
});

/** `nodes`: those with which the job begins; `nodesMax`: those that it may have, where they may come and go. */
export const nodeShape = object({ host: anyText, pid: count, localSize: count, nodes: count, nodesMax: optional(count) });
/** Ranks per node at the beginning, where nodes come and go. */
export const rosterShape = list(object({ node: count, localSize: count }));

/** Keys of a generation. */
export const keyOf = {
  failing: (generation: number) => `launch/${generation}/failing`,
  /** The failure that came first, which is about to be published. */
  first: (generation: number) => `launch/${generation}/first`,
  failed: (generation: number) => `launch/${generation}/failed`,
  /** The rank's failure; null: it has ended well. */
  rankEnd: (generation: number, rank: number) => `launch/${generation}/ended/${rank}`,
} as const;

export const nodeKey = (node: number): string => `launch/node/${node}`;
export const byeKey = (node: number): string => `launch/bye/${node}`;
export const newsKey = (node: number, index: number): string => `launch/news/${node}/${index}`;
export const rosterKey = 'launch/roster';
export const overKey = 'launch/over';

/** Key that exists until the rank connects, and again from when its last connection ends. */
export const awayKey = (rank: number): string => `launch/away/${rank}`;

/** The part of the store that belongs to the ranks of a generation. */
export function ranksPart(store: Store, generation: number): Store {
  return new PrefixStore(store, generationPrefix(generation));
}

/** Keys of all nodes. */
export function keysOf(prefix: string, nodes: number): string[] {
  return Array.from({ length: nodes }, (_, k) => `${prefix}/${k}`);
}

export function encode(value: unknown): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(value));
}

export function isNull(bytes: Uint8Array): boolean {
  return new TextDecoder().decode(bytes) === 'null';
}

/** @throws ShoalError `protocol` on what no launcher of this version writes. */
export function decode<T>(shape: Shape<T>, bytes: Uint8Array): T {
  const record: unknown = JSON.parse(new TextDecoder().decode(bytes));
  if (shape.problem(record) === undefined) return record as T;
  const message = 'a launcher of this job has left a record that is not understood here; run the same Shoal on every node';
  throw new ShoalError('protocol', message);
}
