import { expect, it } from 'vitest';
import { Finals } from './finals.ts';

/** @returns the measured candidates, in order. */
function run(finals: Finals, measure: (name: number) => number): number[] {
  const order: number[] = [];
  for (let next = finals.next(); next !== undefined; next = finals.next()) {
    order.push(next[0]);
    finals.add(measure(next[0]));
  }
  return order;
}

it('measures all in turn, and ends when one is better each time', () => {
  const finals = new Finals([[1], [2], [3]], 5);
  expect(run(finals, (name) => (name === 2 ? 10 : 11))).toEqual([1, 2, 3, 2, 3, 1]);
  expect(finals.best()).toEqual([2]);
});

it('goes on with those that are not told apart, and takes the smallest median, not the luckiest measurement', () => {
  const values = { 1: [10, 12, 10], 2: [11, 5, 11], 3: [20, 21] };
  const left = { 1: 0, 2: 0, 3: 0 };
  const finals = new Finals([[1], [2], [3]], 3);
  const order = run(finals, (name) => values[name as 1 | 2 | 3][left[name as 1 | 2 | 3]++]);
  expect(order.slice(0, 6)).toEqual([1, 2, 3, 2, 3, 1]);
  // The third's best is worse than the leader's worst.
  expect(order.slice(6).toSorted((a, b) => a - b)).toEqual([1, 2]);
  expect(finals.best()).toEqual([1]);
});

it('of equals, and of one, takes the first', () => {
  const equals = new Finals([[1], [2]], 3);
  expect(run(equals, () => 7)).toHaveLength(6);
  expect(equals.best()).toEqual([1]);
  const alone = new Finals([[4, 5]], 3);
  expect(alone.next()).toBeUndefined();
  expect(alone.best()).toEqual([4, 5]);
});
