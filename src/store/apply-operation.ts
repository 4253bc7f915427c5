/** Operations on a table: those that it answers at once, and the answers to waits that are over.
 *  Deterministic: the file store replays the same operations in every process and must get the same results. */
import { isShoalError } from '../base/errors.ts';
import { checkOperation } from './store-limits.ts';
import type { StoreTable } from './store-table.ts';
import type { ImmediateOperation, StoreResult, WaitingOperation } from './store.ts';

/** Operating errors as results. */
export function resultOf(answer: () => StoreResult): StoreResult {
  try {
    return answer();
  } catch (error) {
    if (!isShoalError(error)) throw error;
    return { kind: 'error', code: error.code, message: error.message };
  }
}

/** Keeps copies of values, never views of the operation. @throws ShoalError `usage`, `out-of-memory`. */
export function apply(table: StoreTable, operation: ImmediateOperation): StoreResult {
  checkOperation(operation, table.limits);
  switch (operation.op) {
    case 'set':
      table.set(operation.key, new Uint8Array(operation.value));
      return { kind: 'done' };
    case 'add':
      return { kind: 'integer', integer: table.add(operation.key, operation.amount) };
    case 'compareSet':
      return { kind: 'bytes', bytes: table.compareSet(operation.key, operation.expected, new Uint8Array(operation.desired)) };
    case 'delete':
      return { kind: 'flag', flag: table.delete(operation.key) };
    case 'check':
      return { kind: 'flag', flag: table.has(operation.keys) };
    case 'count':
      return { kind: 'integer', integer: table.size };
    case 'append':
      table.append(operation.key, operation.value);
      return { kind: 'done' };
    case 'queuePush':
      table.push(operation.key, new Uint8Array(operation.value));
      return { kind: 'done' };
    case 'queueLen':
      return { kind: 'integer', integer: table.queueLength(operation.key) };
    case 'listKeys':
      return { kind: 'bytes', bytes: table.listKeys(operation.prefix) };
  }
}

/** The keys that an operation waits for. */
export function keysOf(operation: WaitingOperation): readonly string[] {
  return 'key' in operation ? [operation.key] : operation.keys;
}

/** The result of an operation whose keys are there; `missing` from a queue that is empty.
 *  @throws ShoalError `usage` when one message cannot hold it, or a queue stands where a value is asked for, or the reverse. */
export function found(table: StoreTable, operation: WaitingOperation): StoreResult {
  switch (operation.op) {
    case 'get':
      return { kind: 'bytes', bytes: table.get(operation.key)! };
    case 'multiGet':
      return { kind: 'list', values: table.getAll(operation.keys) };
    case 'wait':
      return { kind: 'done' };
    case 'queuePop': {
      const bytes = table.pop(operation.key);
      return bytes === undefined ? { kind: 'missing', keys: [operation.key] } : { kind: 'bytes', bytes };
    }
  }
}
