/** The calls of the store underneath that a scheduled operation becomes: one for each part of a parameter. */
import { dtypeInfo } from '../../memory/dtype.ts';
import type { FirstValue, Question, RowTransfer, Transfer, ValueLists } from '../calls/operation.ts';
import type { Value } from '../calls/types.ts';
import { elementsOf } from '../calls/values-argument.ts';
import { checkCount, viewOf, type KeyPart } from './partitioned-keys.ts';

export interface PartCall {
  readonly bytes: number;
  readonly operation: Transfer | RowTransfer | Extract<Question, { type: 'init' }>;
}

/** A push, pull or both of one key. */
export interface KeyTransfer extends Omit<Transfer, 'lists'> {
  readonly key: string;
  readonly values: readonly Value[] | undefined;
  readonly outs: readonly Value[] | undefined;
}

/** @throws ShoalError `mismatch` for a value of another size than the parameter that was cut. */
export function transferCalls({ key, values, outs, ...rest }: KeyTransfer, parts: readonly KeyPart[]): PartCall[] {
  const all = [...(values ?? []), ...(outs ?? [])];
  const elementBytes = dtypeInfo(elementsOf(all[0]).dtype).bytes;
  // A whole one is compared by the store underneath.
  if (parts.length > 1) for (const value of all) checkCount(key, parts, value);
  return parts.map((part) => {
    const listsOf = (list: readonly Value[] | undefined): ValueLists | undefined =>
      list && [parts.length > 1 ? list.map((value) => viewOf(value, part)) : list];
    const lists = { keys: [part.key], values: listsOf(values), outs: listsOf(outs), recurs: false };
    return { bytes: part.count * elementBytes, operation: { ...rest, lists } };
  });
}

export function initCalls({ dtype, value }: FirstValue, parts: readonly KeyPart[]): PartCall[] {
  return parts.map((part) => {
    const view = parts.length > 1 ? viewOf(value, part) : value;
    const entry = { key: part.key, dtype, shape: part.shape, value: view, data: elementsOf(view).data };
    return { bytes: part.count * dtypeInfo(dtype).bytes, operation: { type: 'init', entries: [entry] } };
  });
}

/** Parts that follow each other and together are no larger than a partition are scheduled as one. */
export function runsOf(calls: readonly PartCall[], partitionBytes: number): PartCall[][] {
  const runs: PartCall[][] = [];
  let bytes = Infinity;
  for (const call of calls) {
    bytes += call.bytes;
    if (bytes <= partitionBytes) runs[runs.length - 1].push(call);
    else {
      runs.push([call]);
      ({ bytes } = call);
    }
  }
  return runs;
}

export function totalBytes(calls: readonly PartCall[]): number {
  return calls.reduce((sum, { bytes }) => sum + bytes, 0);
}
