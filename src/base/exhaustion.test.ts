import { readdirSync } from 'node:fs';
import { expect, it } from 'vitest';
import { ShoalError } from './errors.ts';
import { checkDescriptors, exhaustion, isExhaustion } from './exhaustion.ts';

function systemError(code: string, message = `${code}: refused`): Error {
  return Object.assign(new Error(message), { code });
}

it.each([
  ['EMFILE', 'file descriptors'],
  ['ENFILE', 'file descriptors of the host'],
  ['ENOMEM', 'memory'],
])('%s: the error names who ran out of what, while doing what, and what to do', (code, resource) => {
  const cause = systemError(code);
  const error = exhaustion('rank 2', cause, 'opening a socket', { rank: 2 });
  expect(error).toMatchObject({ code: 'out-of-memory', resource, rank: 2, cause });
  expect(error?.message).toMatch(
    new RegExp(`^rank 2 ran out of ${resource}( \\(limit \\d+\\))? while opening a socket \\(${code}: refused\\); \\w+ .*`),
  );
  expect(ShoalError.fromData(error!.toData())).toMatchObject({ resource });
});

it('names the reason for a thread that was not started, which Node.js has in the text alone', () => {
  const failed = (why: string) =>
    exhaustion('rank 0', systemError('ERR_WORKER_INIT_FAILED', `Worker initialization failure: ${why}`), 'starting a thread')?.resource;
  expect([failed('EMFILE'), failed('EAGAIN'), failed('unknown')]).toEqual(['file descriptors', 'threads', 'threads']);
});

it('finds exhaustion beneath another of our errors, returns an exhaustion error unchanged, and takes no other error for one', () => {
  expect(exhaustion('rank 0', new ShoalError('system', 'no', { cause: systemError('EMFILE') }), 'x')?.resource).toBe('file descriptors');
  const first = exhaustion('rank 0', systemError('EMFILE'), 'x');
  expect(exhaustion('rank 1', first, 'y')).toBe(first);
  expect(isExhaustion(first)).toBe(true);
  for (const other of [systemError('ENOENT'), systemError('EAGAIN'), new ShoalError('out-of-memory', 'a budget'), 'text', undefined]) {
    expect(exhaustion('rank 0', other, 'x')).toBeUndefined();
    expect(isExhaustion(other)).toBe(false);
  }
});

it('a check of descriptors gives back those it has tried', () => {
  const open = () => readdirSync('/proc/self/fd').length;
  const before = open();
  checkDescriptors('rank 0', 5, 'x');
  expect(open()).toBe(before);
});
