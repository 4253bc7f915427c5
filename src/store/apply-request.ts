/** The requests that a table answers at once; `get`, `multiGet`, `wait` and `cancel` belong to whoever keeps the waits.
 *  Deterministic: the file store replays the same requests in every process and must get the same results. */
import { unreachable } from '../base/assert.ts';
import { isShoalError } from '../base/errors.ts';
import { checkKey, checkKeys } from './store-limits.ts';
import type { StoreTable } from './store-table.ts';
import type { StoreRequest, StoreResult } from './store-wire.ts';

export type ImmediateRequest = Exclude<StoreRequest, { op: 'get' | 'multiGet' | 'wait' | 'cancel' }>;

/** Keeps copies of values, never views of the request. Operating errors become results. */
export function applyRequest(table: StoreTable, request: ImmediateRequest): StoreResult {
  return resultOf(() => apply(table, request));
}

/** Operating errors as results. */
export function resultOf(answer: () => StoreResult): StoreResult {
  try {
    return answer();
  } catch (error) {
    if (!isShoalError(error)) throw error;
    return { kind: 'error', code: error.code, message: error.message };
  }
}

export function isImmediate(request: StoreRequest): request is ImmediateRequest {
  return request.op !== 'get' && request.op !== 'multiGet' && request.op !== 'wait' && request.op !== 'cancel';
}

function apply(table: StoreTable, request: ImmediateRequest): StoreResult {
  switch (request.op) {
    case 'set':
      table.set(request.key, new Uint8Array(request.value));
      return { kind: 'done' };
    case 'add':
      return { kind: 'integer', integer: table.add(request.key, request.amount) };
    case 'compareSet':
      checkKey(request.key, table.limits);
      return { kind: 'bytes', bytes: table.compareSet(request.key, request.expected, new Uint8Array(request.desired)) };
    case 'delete':
      return { kind: 'flag', flag: table.delete(request.key) };
    case 'check':
      checkKeys(request.keys, table.limits);
      return { kind: 'flag', flag: table.has(request.keys) };
    case 'count':
      return { kind: 'integer', integer: table.size };
    default:
      return unreachable(request);
  }
}
