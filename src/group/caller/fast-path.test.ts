/** A script that never looks at its works is kept up with, and not held up for nothing. */
import { expect, it } from 'vitest';
import { catchUp } from './fast-path.ts';

/** An engine with so many operations, some of which end each time that it is looked at, or given time. */
function engineWith(count: number, ends: { readonly drained: number; readonly pumped: number; readonly blocks?: boolean }) {
  const engine = {
    left: count,
    pumps: 0,
    drain: () => void (engine.left = Math.max(0, engine.left - ends.drained)),
    pump: () => {
      engine.pumps++;
      engine.left = Math.max(0, engine.left - ends.pumped);
      return ends.blocks ?? true;
    },
  };
  return engine;
}

it.each([
  ['what has ended is seen', 10, { drained: 10, pumped: 0 }, { left: 0, pumps: 0 }],
  ['a few may be under way', 16, { drained: 0, pumped: 1 }, { left: 16, pumps: 0 }],
  ['of more, all are waited for while they end', 17, { drained: 0, pumped: 4 }, { left: 0, pumps: 5 }],
  ['nothing is waited for twice that does not move', 100, { drained: 0, pumped: 0 }, { left: 100, pumps: 1 }],
  ['nor where this thread cannot wait', 100, { drained: 0, pumped: 3, blocks: false }, { left: 97, pumps: 1 }],
])('%s', (_, count, ends, expected) => {
  const engine = engineWith(count, ends);
  catchUp(engine, () => engine.left, 1e6);
  expect({ left: engine.left, pumps: engine.pumps }).toEqual(expected);
});
