/** Processes that end with sockets or a distributed store open: they end with their own exit code, not aborted. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { describe, expect, it } from 'vitest';
import { fixtureCommand } from '../support/fixtures.ts';
import { KVJob } from '../support/kv-job.ts';

async function run(what: string, how: string, env: NodeJS.ProcessEnv = process.env): Promise<unknown[]> {
  const [program, ...args] = fixtureCommand('messaging-exit');
  const child = spawn(program, [...args, what, how], { stdio: ['ignore', 'pipe', 'pipe'], env });
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  child.stdout.resume();
  const [code, signal] = (await once(child, 'close')) as [number | null, string | null];
  // zeromq.js warns when its end takes half a second, which a busy machine may need; who waits for messages that nobody takes does not end.
  return [code, signal, /terminate called|what\(\)/.exec(stderr)?.[0]];
}

describe('a process ends with its own exit code', () => {
  it.each([
    { what: 'thread', how: 'exit', code: 7 },
    { what: 'thread', how: 'throw', code: 1 },
    { what: 'thread', how: 'terminate', code: 0 },
    { what: 'busy', how: 'exit', code: 7 },
    { what: 'busy', how: 'terminate', code: 0 },
    { what: 'connecting', how: 'exit', code: 7 },
    { what: 'connecting', how: 'terminate', code: 0 },
    { what: 'main', how: 'exit', code: 7 },
    { what: 'main', how: 'throw', code: 1 },
  ])('$what: $how', async ({ what, how, code }) => {
    expect(await run(what, how)).toEqual([code, null, undefined]);
  });

  it.each([
    { how: 'exit', code: 7 },
    { how: 'throw', code: 1 },
  ])('an open distributed store: $how', async ({ how, code }) => {
    await using job = await KVJob.start({ workers: 1, servers: 1 });
    expect(await run('store', how, job.environment('worker', 0))).toEqual([code, null, undefined]);
  });
});
