import { expect, it } from 'vitest';
import { lastError } from './stderr-hint.ts';

it('finds the error that ended a rank among its last words', () => {
  const thrown = `warning: Error rates are high
file:///home/me/train.js:5
throw new RangeError('rate: -1');
^

RangeError: rate: -1
    at file:///home/me/train.js:5:7 {
  code: 'X'
}

Node.js v20.20.2
`;
  expect(lastError(thrown)).toBe('RangeError: rate: -1');
  expect(lastError('TypeError [ERR_X]: first\n    at x\nError: second\n    at y\n  [cause]: Error: first\n')).toBe('Error: second');
  expect(lastError('all is well\n')).toBeUndefined();
});
