import fc from 'fast-check';
import { expect, it } from 'vitest';
import { describeEnds, describeFirst, describeOthers } from './failure-text.ts';
import type { EndedProcess } from './supervisor.ts';

function ended(rank: number, { code = 1, error = 'Error: x', details = [] as string[], said = '' } = {}): EndedProcess {
  const words = { said, uncaught: error === '' ? undefined : { error, details, rest: '' } };
  const ending = { code, signal: null };
  return {
    name: `rank ${rank}`,
    rank,
    pid: 100 + rank,
    afterMs: 1,
    isLost: false,
    waited: false,
    ending,
    text: `exited with code ${code}`,
    words: () => words,
  };
}

const failure = { node: 0, host: 'here', rank: 1, exitCode: 1, text: 'exited with code 1, 1.0 s after the start (pid 101)', final: false };

it('processes that end alike are told together, with the first of their errors', () => {
  const lost = (rank: number): EndedProcess => ended(rank, { error: `ShoalError: rank 1 was lost: rank ${rank} lost it` });
  const first = ended(1);
  expect(describeOthers([lost(0), lost(2), ended(3), ended(4, { code: 0 })], first)).toEqual([
    'rank 0, rank 2 exited with code 1: ShoalError: rank 1 was lost: rank 0 lost it',
    'rank 3 exited with code 1: the same error',
  ]);
  const different = ['ShoalError', 'TypeError', 'RangeError', 'SyntaxError'].map((name, rank) => ended(rank + 2, { error: `${name}: x` }));
  expect(describeOthers(different, first)).toEqual([
    'rank 2 exited with code 1: ShoalError: x',
    'rank 3 exited with code 1: TypeError: x',
    'rank 4, rank 5 ended badly, too',
  ]);
  expect(describeEnds(Array.from({ length: 64 }, (_, rank) => ended(rank, { code: 0 })))).toBe(
    'rank 0, rank 1, rank 2 and 61 others exited with code 0',
  );
});

it('a failure takes 12 lines, whatever has been said, and has the cause last', () => {
  const error = fc.constantFrom('', 'TypeError: y', 'ShoalError: ranks disagree:', 'Error: z');
  const lines = fc.array(fc.constantFrom('a line', '    at f (file:///home/me/train.js:3:7)'), { maxLength: 40 });
  const process = fc.record({ code: fc.integer({ min: 0, max: 5 }), error, details: lines, said: lines.map((each) => each.join('\n')) });
  fc.assert(
    fc.property(fc.array(process, { maxLength: 64 }), process, fc.nat(4), (others, own, saidLines) => {
      const failed = ended(1, own);
      const said = describeOthers(
        others.map((each, index) => ended(index + 2, each)),
        failed,
      );
      const first = describeFirst(failure, { node: 0, failed, saidLines: saidLines + said.length, logFolder: 'logs/rank-1' });
      expect(saidLines + said.length + first.length).toBeLessThanOrEqual(12);
      expect(first[0]).toMatch(/^rank 1 failed first: it exited with code 1/);
      const shown = first.slice(1).join('\n');
      if (own.error !== '' && own.details.length > first.length) expect(shown).toMatch(/… \d+ more lines, in logs\/rank-1\/stderr\.log$/);
    }),
  );
});
