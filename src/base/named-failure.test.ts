import { expect, it } from 'vitest';
import { ShoalError } from './errors.ts';
import { namedFailure } from './named-failure.ts';

it('names the failed operation and keeps all facts of the reason', () => {
  const known = { rank: 1, peer: 2, sequence: 3, bytes: 4, timeoutMs: 5, resource: 'file descriptors' };
  const thrown = new ShoalError('out-of-memory', 'no more', { ...known, operation: 'split' });
  const failure = namedFailure('task', 'w1', thrown);
  expect(failure).toMatchObject({ ...known, code: 'out-of-memory', operation: 'w1', cause: thrown });
  expect(failure.message).toBe("task 'w1' failed: no more");
  expect(namedFailure('operation', 'all of it', failure)).toBe(failure);
  expect(namedFailure('task', 'w1', new Error('x'))).toMatchObject({ code: 'system', operation: 'w1' });
});
