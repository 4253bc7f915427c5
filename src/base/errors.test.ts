import { inspect } from 'node:util';
import { expect, it } from 'vitest';
import { ShoalError } from './errors.ts';

it('an error of another thread shows its message and its fields, and nothing of where it was received', () => {
  const limit = Error.stackTraceLimit;
  const { stack } = new ShoalError('mismatch', 'here');
  const data = new ShoalError('mismatch', 'ranks disagree\n  rank 0: at train.ts:3', { sequence: 3 }).toData();
  const received = ShoalError.fromData(structuredClone(data));
  expect(received).toMatchObject({ ...JSON.parse(JSON.stringify(data)), name: 'ShoalError' });
  expect(inspect(received)).toMatch(/^ShoalError: ranks disagree\n {2}rank 0: at train\.ts:3\n {4}at shoal:internal \{/);
  expect(Error.stackTraceLimit).toBe(limit);
  // Where a program has made a mistake is shown.
  expect(stack).toContain('errors.test.ts');
});
