import { describe, expect, it } from 'vitest';
import { rangesOf, ranksIn } from './rank-ranges.ts';

describe('ranges of ranks', () => {
  it.each([
    [[], ''],
    [[0], '0'],
    [[3, 1, 2], '1-3'],
    [[0, 1, 2, 4, 6, 7], '0-2,4,6-7'],
  ])('%j is %j', (ranks, text) => {
    expect(rangesOf(ranks)).toBe(text);
    expect(ranksIn(text, 8)).toEqual([...ranks].sort((a, b) => a - b));
  });

  it.each(['8', '0-8', '2-1', '1,1', '3,0', '1-', '-1', 'a', '0,,1', '0-99999999999'])('%j is none', (text) => {
    expect(() => ranksIn(text, 8)).toThrow(/is no range of ranks/);
  });
});
