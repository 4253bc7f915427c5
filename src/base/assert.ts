/** Programmer errors: a broken invariant of our own code. Operating errors are `ShoalError`. */

export function assert(condition: unknown, message: () => string): asserts condition {
  if (!condition) throw new Error(`assertion failed: ${message()}`);
}

/** The value, which our own code guarantees to be there. */
export function must<T>(value: T | null | undefined, message: () => string): T {
  assert(value !== null && value !== undefined, message);
  return value;
}

export function unreachable(value: never): never {
  throw new Error(`assertion failed: unreachable value ${String(value)}`);
}
