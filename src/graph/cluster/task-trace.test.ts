/** When a task's timeline is written. */
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../base/testing/temporary-folder.ts';
import { VirtualClock } from '../../base/clock.ts';
import { silentLogger } from '../../base/log.ts';
import { createRecorder } from '../../trace/recorder.ts';
import { openTraceFile } from '../../trace/trace-file.ts';
import { TaskTrace } from './task-trace.ts';

it.each([0, 1000])('every %i ms while the task runs, 0 is never, and in the end', async (intervalMs) => {
  const folder = temporaryFolder('task-trace');
  const clock = new VirtualClock();
  const trace = new TaskTrace(createRecorder({ clock, thread: 'main' }), { folder, rank: 3, intervalMs, clock, log: silentLogger });
  const path = join(folder, 'trace-rank-3-graph.json');
  const steps = (): number => [...openTraceFile(path, 'trace').events()].filter(({ name }) => name === 'step').length;
  for (let k = 1; k <= 3; k++) {
    trace.step(k, clock.now(), 1);
    clock.advance(1000);
    await new Promise(setImmediate);
    expect(existsSync(path)).toBe(intervalMs > 0);
    if (intervalMs > 0) expect(steps()).toBe(k);
  }
  trace.step(4, clock.now(), 1);
  trace.write();
  expect(steps()).toBe(4);
  rmSync(path);
  clock.advance(5000);
  await new Promise(setImmediate);
  expect(existsSync(path)).toBe(false);
});

it('that cannot be written is a warning', () => {
  const warnings: string[] = [];
  const log = { ...silentLogger, warn: (message: string) => void warnings.push(message) };
  const clock = new VirtualClock();
  const folder = '/dev/null/no';
  new TaskTrace(createRecorder({ clock, thread: 'main' }), { folder, rank: 3, intervalMs: 0, clock, log }).write();
  expect(warnings).toEqual([
    expect.stringMatching(/^cannot write \/dev\/null\/no\/trace-rank-3-graph\.json: .*; the job goes on without it$/),
  ]);
});
