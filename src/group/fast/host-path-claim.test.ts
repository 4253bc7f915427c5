/** One operation, two threads that could run it: exactly one does. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { HostPathClaim } from './host-path-claim.ts';

it('goes to whoever asks first, and to nobody else', () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom('main', 'comm'), { minLength: 1, maxLength: 6 }), (asking) => {
      const main = new HostPathClaim();
      const comm = new HostPathClaim(main.memory);
      const granted = asking.map((thread) => (thread === 'main' ? main : comm).take(thread));
      expect(granted).toEqual(asking.map((_, index) => index === 0));
      expect(comm.isAtMain).toBe(asking[0] === 'main');
      expect(comm.ended).toBe(false);
    }),
  );
});

it('tells the comm thread when the main thread has ended what it claimed', () => {
  const main = new HostPathClaim();
  const comm = new HostPathClaim(main.memory);
  expect(main.take('main')).toBe(true);
  main.end();
  expect([comm.ended, comm.isAtMain, comm.take('comm')]).toEqual([true, false, false]);
});
