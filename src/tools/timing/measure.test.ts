import { expect, it } from 'vitest';
import { measure, runAll } from './measure.ts';
import type { Operation, Pending } from './operation.ts';

/** Operations that take a given time, on a stopwatch of their own, and log their calls. */
function recorded(count: number): { operations: Operation[]; log: string[]; stopwatch: { nowUs(): number } } {
  const log: string[] = [];
  let nowUs = 0;
  const operations = Array.from({ length: count }, (_, index): Operation => {
    const done = (): void => {
      log.push(`done ${index}`);
      nowUs += 10;
    };
    const pending: Pending = {
      waitSync: done,
      then: (onFulfilled) => {
        done();
        return Promise.resolve().then(onFulfilled);
      },
    };
    return {
      touch: () => {
        log.push(`touch ${index}`);
        nowUs += 1000;
      },
      start: () => {
        log.push(`start ${index}`);
        return pending;
      },
      arm: () => undefined,
      wrong: () => 0,
      release: () => undefined,
    };
  });
  return { operations, log, stopwatch: { nowUs: () => nowUs } };
}

it.each(['sync', 'async'] as const)('times the operation and not the touching: %s', async (wait) => {
  const { operations, log, stopwatch } = recorded(1);
  const samples = await measure({ operations, stopwatch, wait, parallel: 1, touch: 'each', iterations: 3 });
  expect([...samples]).toEqual([10, 10, 10]);
  expect(log).toEqual(['touch 0', 'start 0', 'done 0', 'touch 0', 'start 0', 'done 0', 'touch 0', 'start 0', 'done 0']);
});

it('touches once on request', async () => {
  const { operations, log, stopwatch } = recorded(1);
  await measure({ operations, stopwatch, wait: 'sync', parallel: 1, touch: 'once', iterations: 3 });
  expect(log.filter((line) => line === 'touch 0')).toHaveLength(1);
});

it.each(['sync', 'async'] as const)('keeps a number of operations in flight: %s', async (wait) => {
  const { operations, log, stopwatch } = recorded(4);
  const samples = await measure({ operations, stopwatch, wait, parallel: 2, touch: 'once', iterations: 1 });
  expect([...samples]).toEqual([10]);
  expect(log.slice(4)).toEqual(['start 0', 'start 1', 'done 0', 'start 2', 'done 1', 'start 3', 'done 2', 'done 3']);
});

it('starts all before it waits when all may be in flight', async () => {
  const { operations, log } = recorded(3);
  await runAll({ operations, parallel: 3, wait: 'async' });
  expect(log).toEqual(['start 0', 'start 1', 'start 2', 'done 0', 'done 1', 'done 2']);
});
