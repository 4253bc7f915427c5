import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { ConsoleSink } from './output/console-sink.ts';
import { Supervisor, type ProcessSpec } from './supervisor.ts';

function rank(index: number): ProcessSpec {
  return { kind: 'rank', name: `rank ${index}`, rank: index, localRank: index, command: ['sleep', '60'], environment: process.env };
}

it('lets its process turn between two starts: who is told to stop by then starts no more', async () => {
  const ends: string[] = [];
  const sink = new ConsoleSink(new PassThrough());
  const supervisor: Supervisor = new Supervisor({
    clock: systemClock,
    specs: [rank(0), rank(1), rank(2)],
    directory: '/',
    stdout: sink,
    stderr: sink,
    prefix: () => '',
    route: () => ({ console: true, file: false }),
    logDir: undefined,
    report: () => {},
    onEnd: ({ name, text }) => ends.push(`${name} ${text}`),
  });
  setImmediate(() => supervisor.signal('SIGTERM'));
  expect(await supervisor.firstFailure).toMatchObject({ rank: 0, text: 'was killed by SIGTERM' });
  await supervisor.finish();
  expect(ends).toEqual(['rank 0 was killed by SIGTERM']);
});
