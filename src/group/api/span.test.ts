import { expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { Board, boardMemory } from '../../metrics/board.ts';
import { createRecorder } from '../../trace/recorder.ts';
import { markStep } from './span.ts';

it('steps are drawn in one row, one after the other', () => {
  const clock = new VirtualClock();
  clock.advance(1);
  const trace = createRecorder({ clock, thread: 'main' });
  const board = new Board(boardMemory({ counts: false }), clock);
  for (let step = 0; step < 4; step++) {
    markStep({ board, trace });
    clock.advance(10);
  }
  const { lanes, timesMs, values, laneIds } = trace.snapshot();
  expect(lanes).toEqual(['main', 'steps']);
  expect([...laneIds]).toEqual([1, 1, 1]);
  expect([...timesMs]).toEqual([1, 11, 21]);
  expect([...values]).toEqual([10, 10, 10]);
});
