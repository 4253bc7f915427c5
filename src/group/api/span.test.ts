import { expect, it } from 'vitest';
import { sleep, systemClock, VirtualClock } from '../../base/clock.ts';
import { Board, boardMemory } from '../../metrics/board.ts';
import { createRecorder, nullRecorder } from '../../trace/recorder.ts';
import { markStep, span } from './span.ts';

const traced = (): { recorder: ReturnType<typeof createRecorder>; names: () => (string | undefined)[] } => {
  const recorder = createRecorder({ clock: systemClock, thread: 'main' });
  return {
    recorder,
    names: () => {
      const { names, nameIds } = recorder.snapshot();
      return [...nameIds].map((id) => `${names[id].category} ${names[id].text}`);
    },
  };
};

it('spans end when what they run does: returns, throws, resolves or rejects', async () => {
  const { recorder, names } = traced();
  expect(span(recorder, 'sum', () => 3)).toBe(3);
  expect(() => span(recorder, 'throws', () => JSON.parse('{'))).toThrow(SyntaxError);
  expect(names()).toEqual(['user sum', 'user throws']);
  const resolves = span(recorder, 'resolves', async () => {
    await sleep(systemClock, 1);
    return 5;
  });
  const rejects = span(recorder, 'rejects', () => Promise.reject(new Error('no')));
  expect(names()).toHaveLength(2);
  expect(await resolves).toBe(5);
  await expect(rejects).rejects.toThrow('no');
  expect(names()).toEqual(['user sum', 'user throws', 'user rejects', 'user resolves']);
});

it('without tracing it is a mere call; what is wrong is refused either way', () => {
  for (const recorder of [nullRecorder, traced().recorder]) {
    expect(span(recorder, 'x', () => 'y')).toBe('y');
    expect(() => span(recorder, '', () => 1)).toThrow(/a name has 1 to 256 characters/);
    expect(() => span(recorder, 'x', 5 as never)).toThrow(/fn must be a function/);
  }
});

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
