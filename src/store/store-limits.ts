/** Bounds every store keeps, and the checks of arguments that all implementations share.
 *  Both ends of a connection apply them: the client so that the caller gets a `usage` error, the server because it
 *  trusts nobody. */
import { listed } from '../base/collections/lists.ts';
import { ShoalError } from '../base/errors.ts';
import type { StoreOperation } from './store.ts';

export interface StoreLimits {
  /** UTF-8 bytes of one key. Default 1 KiB. */
  readonly maxKeyBytes: number;
  /** Default 16 MiB. */
  readonly maxValueBytes: number;
  /** Keys and values together. Default 256 MiB. */
  readonly maxTotalBytes: number;
  /** Keys in one `wait` or `check`. Default 4096. */
  readonly maxKeysPerCall: number;
  /** Calls of one client that have not been answered yet. Default 4096. */
  readonly maxPending: number;
}

export const defaultStoreLimits: StoreLimits = {
  maxKeyBytes: 1024,
  maxValueBytes: 16 * 1024 * 1024,
  maxTotalBytes: 256 * 1024 * 1024,
  maxKeysPerCall: 4096,
  maxPending: 4096,
};

/** Time that `get` and `wait` block when neither the call nor the store says. Milliseconds. */
export const defaultStoreTimeoutMs = 300_000;

/** @throws ShoalError `usage`. */
export function checkKey(key: string, limits: StoreLimits): void {
  if (key === '') throw new ShoalError('usage', 'a store key must not be empty');
  if (key.startsWith('/')) throw new ShoalError('usage', `store key '${shorten(key)}' must not start with '/'`);
  const bytes = Buffer.byteLength(key);
  if (bytes > limits.maxKeyBytes) {
    throw new ShoalError('usage', `store key '${shorten(key)}' has ${bytes} bytes, at most ${limits.maxKeyBytes} are allowed`, { bytes });
  }
}

/** @throws ShoalError `usage`. */
export function checkKeys(keys: readonly string[], limits: StoreLimits): void {
  if (keys.length > limits.maxKeysPerCall) {
    throw new ShoalError('usage', `${keys.length} keys in one call to the store, at most ${limits.maxKeysPerCall} are allowed`);
  }
  for (const key of keys) checkKey(key, limits);
}

/** @throws ShoalError `usage`. */
export function checkValue(key: string, value: Uint8Array, limits: StoreLimits): void {
  if (value.byteLength <= limits.maxValueBytes) return;
  const message = `value of store key '${shorten(key)}' has ${value.byteLength} bytes, at most ${limits.maxValueBytes} are allowed`;
  throw new ShoalError('usage', message, { bytes: value.byteLength });
}

/** @throws ShoalError `usage`. */
export function checkAmount(key: string, amount: number): void {
  if (Number.isSafeInteger(amount)) return;
  throw new ShoalError('usage', `add to store key '${shorten(key)}': ${amount} is not an integer within ±2^53`);
}

/** Checks all that an operation names. @throws ShoalError `usage`. */
export function checkOperation(operation: StoreOperation, limits: StoreLimits): void {
  if ('keys' in operation) checkKeys(operation.keys, limits);
  if (!('key' in operation)) return;
  checkKey(operation.key, limits);
  if (operation.op === 'add') checkAmount(operation.key, operation.amount);
  if ('value' in operation) checkValue(operation.key, operation.value, limits);
  if (operation.op !== 'compareSet') return;
  for (const value of [operation.expected, operation.desired]) checkValue(operation.key, value, limits);
}

/** Text for messages: long keys are cut. */
export function shorten(key: string): string {
  return key.length <= 80 ? key : `${key.slice(0, 77)}...`;
}

/** Keys for messages: the first eight and how many more. */
export function listKeys(keys: readonly string[]): string {
  return listed(keys.map((key) => `'${shorten(key)}'`));
}
