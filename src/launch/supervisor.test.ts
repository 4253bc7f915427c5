import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { ConsoleSink } from './output/console-sink.ts';
import { Supervisor, type ProcessSpec, type SupervisorOptions } from './supervisor.ts';

function rank(index: number): ProcessSpec {
  return { kind: 'rank', name: `rank ${index}`, rank: index, localRank: index, command: ['sleep', '60'], environment: process.env };
}

function start(specs: ProcessSpec[], options: Partial<SupervisorOptions>): Supervisor {
  const sink = new ConsoleSink(new PassThrough());
  return new Supervisor({
    clock: systemClock,
    specs,
    directory: '/',
    stdout: sink,
    stderr: sink,
    prefix: () => '',
    route: () => ({ console: true, file: false }),
    logDir: undefined,
    report: () => {},
    onEnd: () => {},
    ...options,
  });
}

it('knows the end of a rank without which the others went on', async () => {
  const fails: ProcessSpec = { ...rank(1), command: ['sh', '-c', 'echo "Error: enough" >&2; exit 3'] };
  const elastic = { goOnWithout: (lost: number) => lost === 1, isWaiting: () => false } as unknown as SupervisorOptions['elastic'];
  const supervisor = start([rank(0), fails], {
    elastic,
    onEnd: ({ rank: lost }) => lost === 1 && setImmediate(() => supervisor.signal('SIGTERM')),
  });
  await supervisor.firstFailure;
  await supervisor.finish();
  expect(supervisor.failed(1)).toMatchObject({ rank: 1, isLost: true, text: 'exited with code 3' });
  expect(supervisor.failed(0)).toMatchObject({ rank: 0, isLost: false });
});

it('lets its process turn between two starts: who is told to stop by then starts no more', async () => {
  const ends: string[] = [];
  const supervisor = start([rank(0), rank(1), rank(2)], { onEnd: ({ name, text }) => ends.push(`${name} ${text}`) });
  setImmediate(() => supervisor.signal('SIGTERM'));
  expect(await supervisor.firstFailure).toMatchObject({ rank: 0, text: 'was killed by SIGTERM' });
  await supervisor.finish();
  expect(ends).toEqual(['rank 0 was killed by SIGTERM']);
});
