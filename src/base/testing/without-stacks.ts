import { onTestFinished } from 'vitest';

/** Makes errors without stacks until the test ends: in a test of a million errors, stacks take most of the time. */
export function withoutStacks(): void {
  const before = Error.stackTraceLimit;
  Error.stackTraceLimit = 0;
  onTestFinished(() => {
    Error.stackTraceLimit = before;
  });
}
