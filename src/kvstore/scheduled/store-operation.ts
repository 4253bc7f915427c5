/** An operation of a scheduled store: its kind, its values, and the position of each part in them. */
import { dtypeInfo } from '../../memory/dtype.ts';
import type { Value } from '../values/types.ts';
import { elementsOf } from '../values/values-argument.ts';
import type { KVOperation } from './kvstore-task.ts';
import { checkCount, viewOf, type KeyPart } from './partitioned-keys.ts';

export interface StoreOperation {
  readonly key: string;
  readonly kind: KVOperation;
  readonly values: readonly Value[];
  readonly outs: readonly Value[];
  readonly priority: number;
  readonly timeoutMs: number | undefined;
  /** Of a parameter that is initialised. */
  readonly shape?: readonly number[];
}

/** A part, and where it is in the operation's values. */
export interface PartViews {
  readonly part: KeyPart;
  readonly bytes: number;
  readonly values: readonly Value[];
  readonly outs: readonly Value[];
}

/** @throws ShoalError `mismatch` for a value of another size than the parameter that was cut. */
export function viewsOf({ key, values, outs }: StoreOperation, parts: readonly KeyPart[]): PartViews[] {
  const all = [...values, ...outs];
  const elementBytes = dtypeInfo(elementsOf(all[0]).dtype).bytes;
  const bytesOf = ({ count }: KeyPart): number => count * elementBytes;
  // A whole one is compared by the store underneath.
  if (parts.length === 1) return [{ part: parts[0], bytes: bytesOf(parts[0]), values, outs }];
  for (const value of all) checkCount(key, parts, value);
  const viewsIn = (list: readonly Value[], part: KeyPart): Value[] => list.map((value) => viewOf(value, part));
  return parts.map((part) => ({ part, bytes: bytesOf(part), values: viewsIn(values, part), outs: viewsIn(outs, part) }));
}

/** Parts that follow each other and together are no larger than a partition are scheduled as one. */
export function runsOf(views: readonly PartViews[], partitionBytes: number): PartViews[][] {
  const runs: PartViews[][] = [];
  let bytes = Infinity;
  for (const view of views) {
    bytes += view.bytes;
    if (bytes <= partitionBytes) runs[runs.length - 1].push(view);
    else {
      runs.push([view]);
      ({ bytes } = view);
    }
  }
  return runs;
}

export function totalBytes(views: readonly PartViews[]): number {
  return views.reduce((sum, { bytes }) => sum + bytes, 0);
}
