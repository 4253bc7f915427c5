/** The ranks that a mismatch names. */
import { describe, expect, it } from 'vitest';
import { Diagnosis } from './diagnosis.ts';

/** @param calls Undefined: no answer; `…`: not yet. */
function mismatch(calls: readonly (string | undefined)[], globalRanks = calls.map((_, rank) => rank)) {
  const diagnosis = new Diagnosis({ code: 'mismatch', sequence: 5, timeoutMs: 1000, operation: 'all-reduce', globalRanks });
  for (const [rank, text] of calls.entries())
    if (text !== undefined) diagnosis.add(rank, { text, arrived: text !== '…', left: text === 'left' });
  const { message, peer } = diagnosis.error('world', () => false);
  return { first: message.split('\n')[0], peer };
}

const sum = 'all-reduce #5 float32[8] sum at train.ts:7';

describe('the first line of a mismatch', () => {
  it('names the one rank that differs, wherever the others call from', () => {
    const calls = [sum, 'broadcast #5 float32[8] root 0 at train.ts:7', 'all-reduce #5 float32[8] sum at train.ts:9'];
    expect(mismatch(calls, [4, 6, 8])).toEqual({
      first: "ranks of group 'world' disagree on collective #5: rank 1 (world rank 6) differs from the others",
      peer: 6,
    });
  });

  it('names several', () => {
    const calls = [sum, 'all-reduce #5 float32[9] sum at train.ts:7', sum, undefined, 'left', sum, '…'];
    expect(mismatch(calls)).toEqual({
      first: "ranks of group 'world' disagree on collective #5: ranks 1, 4 differ from the others",
      peer: undefined,
    });
  });

  it('names nobody where two stand against two', () => {
    expect(mismatch([sum, 'barrier #5 at a.ts:1'])).toEqual({
      first: "ranks of group 'world' disagree on collective #5:",
      peer: undefined,
    });
  });
});
