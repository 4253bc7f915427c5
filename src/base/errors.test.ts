import { inspect } from 'node:util';
import { runInThisContext } from 'node:vm';
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
  // The stack still shows the place where a program has made a mistake.
  expect(stack).toContain('errors.test.ts');
});

it("an error of a program's own shows its frames, and none of the installed package", () => {
  const own = runInThisContext('(make) => make()', { filename: '/home/me/node_modules/shoal/dist/index.js' }) as <T>(make: () => T) => T;
  const { stack } = own(() => new ShoalError('usage', 'no such option'));
  expect(stack).toContain('errors.test.ts');
  expect(stack).not.toContain('node_modules/shoal');
  expect(own(() => new ShoalError('peer-lost', 'gone')).stack).toContain('node_modules/shoal');
});

it('a cause that the message repeats does not travel', () => {
  const cause = new Error('connection reset');
  expect(new ShoalError('peer-lost', 'rank 1 was lost: connection reset', { cause }).toData().cause).toBeUndefined();
  expect(new ShoalError('peer-lost', 'rank 1 was lost', { cause }).toData().cause).toBe('connection reset');
});
