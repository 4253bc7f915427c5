/** `shoal run` on several nodes: one launcher per node, here all on one machine, with real processes. */
import { chmod, writeFile } from 'node:fs/promises';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { systemClock, type Clock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { launch } from '../../src/launch/launch.ts';
import type { Launch } from '../../src/launch/launch-options.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { absentScript, allGone, rankScript, shoal, storeScript, type Running } from '../fixtures/launch-harness.ts';
import { freePort } from '../../src/base/testing/free-port.ts';

const pidsOf = (matches: readonly RegExpMatchArray[]): number[] => matches.map((match) => Number(match[1]));

interface NodeFlags {
  readonly port: number;
  readonly node: number;
  readonly nodes?: number;
  readonly secret?: string;
  readonly flags?: readonly string[];
}

function node({ port, node: index, nodes = 2, secret = 'a secret', flags = [] }: NodeFlags, ...script: readonly string[]): Running {
  const place = ['--nnodes', `${nodes}`, '--node-rank', `${index}`, '--master-addr', '127.0.0.1', '--master-port', `${port}`];
  return shoal(['run', ...place, '--grace', '50ms', ...flags, ...script], { env: { SHOAL_SECRET: secret } });
}

describe('shoal run --nnodes', () => {
  it('numbers ranks over nodes of different sizes, and all meet in one store', async () => {
    const port = await freePort();
    await using first = node({ port, node: 0, flags: ['-n', '1'] }, storeScript);
    await using second = node({ port, node: 1, flags: ['-n', '2'] }, storeScript);
    const ended = await Promise.all([first.ended, second.ended]);
    expect(ended.map(({ code }) => code)).toEqual([0, 0]);
    expect(ended[0].stdout.match(/met \d of \d/g)).toEqual(['met 0 of 3']);
    expect(ended[1].stdout.match(/met \d of \d/g)?.sort()).toEqual(['met 1 of 3', 'met 2 of 3']);
  });

  it('a failure on one node ends the job on all, with its exit code and by name', async () => {
    const port = await freePort();
    await using first = node({ port, node: 0 }, rankScript, 'restart', '9');
    await using second = node({ port, node: 1 }, rankScript, 'stay');
    const ended = await Promise.all([first.ended, second.ended]);
    expect(ended.map(({ code }) => code)).toEqual([5, 5]);
    expect(ended[0].stderr).toMatch(/rank 0 failed first: it exited with code 5/);
    expect(ended[1].stderr).toMatch(/rank 0 on node 0 \(.+\) failed first: it exited with code 5/);
  });

  it('the error of the rank that failed is told on all nodes', async () => {
    const port = await freePort();
    await using first = node({ port, node: 0 }, rankScript, 'throw', '0');
    await using second = node({ port, node: 1 }, rankScript, 'stay');
    const ended = await Promise.all([first.ended, second.ended]);
    expect(ended[0].stderr).toMatch(/shoal: rank 0 failed first: .+: Error: rank 0 cannot go on\n/);
    expect(ended[1].stderr).toMatch(/shoal: rank 0 on node 0 \(.+\) failed first: .+: Error: rank 0 cannot go on\n/);
  });

  it('a rank that ends well before it joins is named on all nodes', async () => {
    const port = await freePort();
    await using first = node({ port, node: 0 }, absentScript);
    await using second = node({ port, node: 1 }, absentScript);
    const ended = await Promise.all([first.ended, second.ended]);
    expect(ended.map(({ code }) => code)).toEqual([3, 3]);
    expect(ended[0].stdout).toContain('peer-lost, peer 1: rank 1 exited with code 0 before it joined');
  });

  it('restarts are those of all nodes', async () => {
    const port = await freePort();
    const flags = ['--max-restarts', '1'];
    await using first = node({ port, node: 0, flags }, rankScript, 'restart', '1');
    await using second = node({ port, node: 1, flags }, rankScript, 'restart', '1');
    const ended = await Promise.all([first.ended, second.ended]);
    expect(ended.map(({ code }) => code)).toEqual([0, 0]);
    expect(ended[0].stdout.match(/generation \d/g)).toEqual(['generation 0', 'generation 1']);
    // Rank 1 may be stopped in its first generation before it has printed anything.
    expect(ended[1].stdout.match(/generation \d/g)?.at(-1)).toBe('generation 1');
    for (const { stderr } of ended) expect(stderr).toContain('starting all ranks again, restart 1 of 1');
  });

  it('a launcher that is killed takes the job with it, on both sides', async () => {
    for (const [victim, survivor] of [
      [0, 1],
      [1, 0],
    ] as const) {
      const port = await freePort();
      await using first = node({ port, node: 0 }, rankScript, 'stay');
      await using second = node({ port, node: 1 }, rankScript, 'stay');
      const jobs = [first, second];
      const pids = pidsOf([...(await first.output(/ready (\d+)/, 1)), ...(await second.output(/ready (\d+)/, 1))]);
      process.kill(jobs[victim].pid, 'SIGKILL');
      const { code, stderr } = await jobs[survivor].ended;
      expect(code).toBe(1);
      expect(stderr).toMatch(victim === 0 ? /the launcher of node 0 was lost/ : /node 1 \(.+\) failed: its launcher was lost/);
      await allGone(pids);
    }
  });

  it('an interrupt on one node ends all', async () => {
    const port = await freePort();
    await using first = node({ port, node: 0 }, rankScript, 'stay');
    await using second = node({ port, node: 1 }, rankScript, 'stay');
    await Promise.all([first.output(/ready/, 1), second.output(/ready/, 1)]);
    process.kill(second.pid, 'SIGINT');
    const ended = await Promise.all([first.ended, second.ended]);
    expect(ended.map(({ code }) => code)).toEqual([130, 130]);
    expect(ended[0].stderr).toMatch(/node 1 \(.+\) failed: the launcher received SIGINT/);
  });

  it('an interrupt while waiting for the others ends the wait', async () => {
    await using first = node({ port: await freePort(), node: 1 }, rankScript, 'stay');
    await using second = shoal(['run', rankScript, 'stay']);
    // When another launcher has its ranks up, this one handles signals; a signal before that ends it as well.
    await second.output(/ready/, 1);
    process.kill(first.pid, 'SIGINT');
    const { code, signal } = await first.ended;
    expect(code === 130 || signal === 'SIGINT').toBe(true);
  });

  it('contradictions are refused by name, and do not disturb the job', async () => {
    const port = await freePort();
    await using first = node({ port, node: 0 }, rankScript, 'stay');
    await using second = node({ port, node: 1 }, rankScript, 'stay');
    await Promise.all([first.output(/ready/, 1), second.output(/ready/, 1)]);
    const [stranger, twin] = await Promise.all([
      node({ port, node: 1, secret: 'another secret' }, rankScript, 'stay').ended,
      node({ port, node: 1 }, rankScript, 'stay').ended,
    ]);
    expect(stranger.code).toBe(1);
    expect(stranger.stderr).toContain('different secrets');
    expect(twin.code).toBe(2);
    expect(twin.stderr).toMatch(/node rank 1 is taken by host .+ \(pid \d+\)/);
    process.kill(first.pid, 'SIGTERM');
    expect((await first.ended).code).toBe(143);
    expect((await second.ended).code).toBe(143);
  });

  it('nodes that do not come are named; a port in use is', async () => {
    const port = await freePort();
    const [lonely, odd] = await Promise.all([
      node({ port, node: 0, nodes: 3, flags: ['--join-timeout', '5s'] }, rankScript, 'stay').ended,
      node({ port, node: 2, nodes: 3 }, rankScript, 'stay').ended,
    ]);
    expect(lonely.code).toBe(1);
    expect(lonely.stderr).toContain('of 3 nodes, node 1 did not join within 5000 ms');
    expect(odd.code).toBe(1);
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '0.0.0.0', resolve));
    const taken = (server.address() as AddressInfo).port;
    const refused = await node({ port: taken, node: 0 }, rankScript, 'stay').ended;
    server.close();
    expect(refused.code).toBe(2);
    expect(refused.stderr).toMatch(/cannot listen on any:\d+: .*EADDRINUSE.*another job uses the port/);
  });

  it('needs a secret, which may be in a file', async () => {
    const port = await freePort();
    const without = await node({ port, node: 0, secret: '' }, rankScript, 'stay').ended;
    expect(without.code).toBe(2);
    expect(without.stderr).toContain('SHOAL_SECRET');
    const directory = temporaryFolder('launch');
    const file = join(directory, 'secret');
    await writeFile(file, 'from a file\n');
    await chmod(file, 0o640);
    const flags = ['--secret-file', file];
    const readable = await node({ port, node: 0, secret: '', flags }, rankScript, 'stay').ended;
    expect(readable.code).toBe(2);
    expect(readable.stderr).toBe(`shoal: --secret-file ${file} can be read by others (mode 640): chmod 600 ${file}\n`);
    await chmod(file, 0o600);
    await using first = node({ port, node: 0, secret: '', flags }, storeScript);
    await using second = node({ port, node: 1, secret: 'from a file' }, storeScript);
    expect((await first.ended).code).toBe(0);
    expect((await second.ended).code).toBe(0);
  });
});

/** A script for two nodes: node 0's rank takes as long as it may to end; node 1's fails when the other has had the time to begin. */
const slowRank = `if (process.env.RANK === '1') setTimeout(() => process.exit(5), 1000); else process.on('SIGTERM', () => {}); setInterval(() => {}, 1000);`;

/** One in a hurry, whose minutes are seconds. */
const hurriedClock: Clock = {
  ...systemClock,
  now: () => systemClock.now() * 20,
  setTimer: (delayMs, callback, options) => systemClock.setTimer(delayMs / 20, callback, options),
};

function startHere(
  node: number,
  masterPort: number,
  { clock = systemClock, killAfterMs = 1500 } = {},
): { run: Launch; said: () => string } {
  const stderr = new PassThrough();
  let said = '';
  stderr.setEncoding('utf8').on('data', (text: string) => (said += text));
  const run = launch({
    clock,
    random: systemRandom,
    command: [process.execPath, '-e', slowRank],
    directory: process.cwd(),
    environment: process.env,
    localSize: 1,
    nodes: 2,
    node,
    masterAddress: '127.0.0.1',
    masterPort,
    secret: 'a secret',
    maxRestarts: 1,
    graceMs: 50,
    killAfterMs,
    stdout: new PassThrough().resume(),
    stderr,
  });
  return { run, said: () => said };
}

it('a node that has not waited any longer for the others to stop is not waited for in the next generation', async () => {
  const masterPort = await freePort();
  const first = startHere(0, masterPort, { killAfterMs: 5000 });
  const second = startHere(1, masterPort, { clock: hurriedClock });
  const results = await Promise.all([first.run.result, second.run.result]);
  expect(second.said()).toContain('no restart: the other nodes did not stop');
  expect(first.said()).toMatch(/rank 1 on node 1 .* exited with code 5, .*; no restart: the other nodes did not stop/);
  expect(first.said()).not.toContain('starting all ranks again');
  for (const { exitCode, failure } of results) expect({ exitCode, failure }).toMatchObject({ exitCode: 5, failure: { rank: 1 } });
}, 120_000);

it('a signal between two generations ends the job on all nodes', async () => {
  const masterPort = await freePort();
  const [first, second] = [0, 1].map((node) => startHere(node, masterPort));
  await expect.poll(second.said, { timeout: 60_000 }).toContain('failed first: it exited with code 5');
  // The launcher waits for the other node's rank to end, before all are started again.
  second.run.signal('SIGINT');
  expect((await second.run.result).exitCode).toBe(130);
  const { exitCode, failure } = await first.run.result;
  expect({ exitCode, failure }).toMatchObject({ exitCode: 130, failure: { node: 1, text: 'the launcher received SIGINT', final: true } });
}, 120_000);
