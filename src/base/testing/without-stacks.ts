import { onTestFinished } from 'vitest';

/** Until the test ends errors have no stacks: of a million, they are most of what takes time. */
export function withoutStacks(): void {
  const before = Error.stackTraceLimit;
  Error.stackTraceLimit = 0;
  onTestFinished(() => {
    Error.stackTraceLimit = before;
  });
}
