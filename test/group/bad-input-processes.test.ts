/** Limits, settings and recordings with real processes: the errors that a user meets when memory, ports or peers are not there. */
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, describe, expect, it, type TestContext } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { reservePort } from '../../src/base/testing/reserved-port.ts';
import { allGone, isRunning, shoal } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';
import { startRanks, type Outcome } from '../support/ranks.ts';
import { filesLeftBy } from '../support/shared-memory-files.ts';
import { loadNative, nativeUnavailableReason } from '../../src/memory/native.ts';

const fixture = 'bad-input';
const directory = temporaryFolder('bad-input', afterAll);

interface Report {
  readonly what: string;
  readonly ok: boolean;
  readonly code?: string;
  readonly message: string;
}

function reportOf({ lines }: Outcome, what: string): Report {
  const found = lines.find((line) => (line as Report).what === what);
  expect(found, `${what} in ${JSON.stringify(lines)}`).toBeDefined();
  return found as Report;
}

function needsAddon(context: TestContext): void {
  const enabled = process.env.SHOAL_NATIVE !== '0';
  if (loadNative({ enabled }) === undefined) context.skip(enabled ? nativeUnavailableReason() : 'the addon is switched off');
}

/** Variables as if ranks were started by hand or by torchrun: no launcher of ours serves the store. */
const byHand = { SHOAL_JOB: '', SHOAL_SECRET: '' };

describe('missing memory', () => {
  it('a tensor beyond the budget is out-of-memory with both sizes, and the group works on; a call beyond it ends the group for that reason', async () => {
    await using world = await startRanks({ fixture, n: 2, env: { SCENARIO: 'memory', SHOAL_SHARED_MEMORY_MAX: '8MiB' } });
    for (const outcome of await world.outcomes()) {
      expect(outcome.stderr).toBe('');
      for (const what of ['tensor', 'staged', 'after']) {
        const error = reportOf(outcome, what);
        expect(error).toMatchObject({ ok: false, code: 'out-of-memory', bytes: 2 ** 24 });
        expect(error.message).toMatch(/16777216 bytes does not fit the budget, \d+ of 8388608 bytes are in use/);
      }
      expect(reportOf(outcome, 'small').ok).toBe(true);
      expect(outcome.lines).toContainEqual({ sum: 2 });
      expect(outcome.code).toBe(0);
    }
  });

  it('a budget too tiny for a group at all ends its start, on every rank and in words', async () => {
    await using world = await startRanks({ fixture, n: 2, env: { SCENARIO: 'memory', SHOAL_SHARED_MEMORY_MAX: '1k' } });
    for (const outcome of await world.outcomes()) {
      const error = reportOf(outcome, 'init');
      expect(error).toMatchObject({ ok: false });
      expect(['out-of-memory', 'peer-lost']).toContain(error.code);
      expect(error.message).toMatch(/memory budget|rank [01]/);
      expect(outcome.code).toBe(3);
    }
    expect(filesLeftBy(world.ranks.map(({ child }) => child.pid))).toEqual([]);
  });

  it('a soft limit on file sizes (ulimit -f) does not count against shared memory', async () => {
    await using world = await startRanks({ fixture, n: 2, env: { SCENARIO: 'large' }, limits: 'ulimit -S -f 64' });
    for (const { lines, stderr, code } of await world.outcomes()) {
      expect(stderr).toBe('');
      expect(lines).toContainEqual({ sum: 3 });
      expect(code).toBe(0);
    }
  });

  it('the end of file descriptors (ulimit -n) is an error that says so, and no hang', async (context) => {
    needsAddon(context);
    await using world = await startRanks({ fixture, n: 2, env: { SCENARIO: 'descriptors' }, limits: 'ulimit -n 300' });
    for (const outcome of await world.outcomes()) {
      const error = reportOf(outcome, 'tensor');
      expect(error).toMatchObject({ ok: false, code: 'out-of-memory', bytes: 2 ** 20 });
      expect(error.message).toMatch(/ran out of file descriptors \(limit 300\) while .*; raise the limit \(ulimit -n\)/);
      expect(outcome.lines).toContainEqual({ made: true });
      // Whether the comm thread still gets the one descriptor that it needs is a matter of luck; its message then is not.
      const later = reportOf(outcome, 'small');
      if (!later.ok) expect(later.message).toMatch(/too many open files|ran out of file descriptors|rank \d/i);
      expect(outcome.code).toBe(0);
    }
  });
});

describe('addresses that do not answer', () => {
  it('an unreachable master: bounded tries, then the address and the time that passed', async () => {
    const port = await reservePort();
    const env = { SCENARIO: 'places', ...byHand, MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(port), SHOAL_SECRET: 's' };
    await using world = await startRanks({ fixture, n: 2, only: [1], env: { ...env, SHOAL_CONNECT_TIMEOUT_MS: '2500' } });
    const [outcome] = await world.outcomes();
    const error = reportOf(outcome, 'init');
    expect(error).toMatchObject({ ok: false, code: 'timeout' });
    expect(error.message).toContain(`127.0.0.1:${port}`);
    expect(error.message).toMatch(/\d+(\.\d+)? m?s/);
    expect(error.message).toContain('ECONNREFUSED');
    expect(outcome.code).toBe(3);
  });

  it('a port in use is named with the next step, by the rank that wants it', async () => {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    const env = { SCENARIO: 'places', ...byHand, MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(port), SHOAL_SECRET: 's' };
    await using world = await startRanks({ fixture, n: 2, only: [0], env });
    const [outcome] = await world.outcomes();
    server.close();
    const error = reportOf(outcome, 'init');
    expect(error.ok).toBe(false);
    expect(error.message).toMatch(new RegExp(`${port}.*EADDRINUSE`, 's'));
    expect(outcome.code).toBe(3);
  });
});

describe('waiting', () => {
  it('waitSync with a limit gives up alone: the operation goes on and ends well', async () => {
    await using world = await startRanks({ fixture, n: 2, env: { SCENARIO: 'wait twice' } });
    const first = await world.ranks[0].line<Report>((line) => line.what === 'first');
    expect(first).toMatchObject({ ok: false, code: 'timeout', timeoutMs: 50 });
    expect(first.message).toMatch(/all-reduce of group 'world' was not complete after 50 ms; it goes on/);
    expect(await world.ranks[0].line<{ done?: boolean }>(({ done }) => done !== undefined)).toEqual({ done: false });
    world.ranks[1].tell();
    const outcomes = await world.outcomes();
    for (const outcome of outcomes) {
      expect(outcome.stderr).toBe('');
      expect(reportOf(outcome, 'second').ok).toBe(true);
    }
  });
});

describe('the data plane', () => {
  const placesOf = ({ lines }: Outcome): unknown => lines.at(-1);

  it('ranks of one host share memory; with SHOAL_FABRICS=tcp they do not', async (context) => {
    needsAddon(context);
    for (const [fabrics, link] of [
      ['', 'shm'],
      ['tcp', 'tcp'],
    ]) {
      await using world = await startRanks({ fixture, n: 2, env: { SCENARIO: 'places', SHOAL_FABRICS: fabrics } });
      const outcomes = await world.outcomes();
      outcomes.forEach((outcome, rank) => {
        const links = [
          ['self', link],
          [link, 'self'],
        ];
        expect(placesOf(outcome)).toEqual({ hosts: [[0, 1]], localRank: rank, localSize: 2, links });
      });
    }
  });

  it('SHOAL_HOST_ID makes several hosts of one: memory within, TCP between', async (context) => {
    needsAddon(context);
    const envOf = (rank: number): Record<string, string> => ({ SHOAL_HOST_ID: rank < 2 ? 'left' : 'right' });
    await using world = await startRanks({ fixture, n: 4, env: { SCENARIO: 'places' }, envOf });
    const outcomes = await world.outcomes();
    outcomes.forEach((outcome, rank) => {
      expect(outcome.stderr).toBe('');
      const links = [
        ['self', 'shm', 'tcp', 'tcp'],
        ['shm', 'self', 'tcp', 'tcp'],
        ['tcp', 'tcp', 'self', 'shm'],
        ['tcp', 'tcp', 'shm', 'self'],
      ];
      expect(placesOf(outcome)).toEqual({ hosts: [[0, 1], [2, 3]], localRank: rank % 2, localSize: 2, links }); // prettier-ignore
    });
  });

  it('an impossible or unknown data plane is refused by name', async () => {
    for (const [n, env, message] of [
      [1, { SHOAL_FABRICS: 'carrier-pigeon' }, /unknown fabric 'carrier-pigeon' in SHOAL_FABRICS; use /],
      [2, { SHOAL_FABRICS: 'carrier-pigeon' }, /unknown fabric 'carrier-pigeon' in SHOAL_FABRICS; use /],
      [2, { SHOAL_FABRICS: 'shm', SHOAL_NATIVE: '0' }, /fabric shm cannot be used here: /],
    ] as const) {
      await using world = await startRanks({ fixture, n, env: { SCENARIO: 'places', ...env } });
      for (const outcome of await world.outcomes()) expect(reportOf(outcome, 'init').message).toMatch(message);
    }
  });
});

interface TraceEvent {
  readonly ph: string;
  readonly name: string;
  readonly pid: number;
  readonly ts: number;
}

/** Sends calls through the comm thread, which the recorders follow; the host path of small operations does not pass there. */
const inCommThread = { SHOAL_SYNC_BYTES: '0' };

describe('recordings', () => {
  it('SHOAL_TRACE leaves one file per rank, and shoal trace merge makes one timeline of them', async () => {
    const folder = join(directory, 'trace');
    await using world = await startRanks({ fixture, n: 2, env: { SCENARIO: 'steps', SHOAL_TRACE: folder, ...inCommThread } });
    for (const { stderr, code } of await world.outcomes()) expect({ stderr, code }).toEqual({ stderr: '', code: 0 });
    expect(readdirSync(folder).toSorted()).toEqual(['trace-rank-0.json', 'trace-rank-1.json']);

    const { stdout, stderr, code } = await shoal(['trace', 'merge', folder]).ended;
    expect({ stdout, stderr, code }).toEqual({ stdout: `merged 2 ranks into ${join(folder, 'trace.json')}\n`, stderr: '', code: 0 });
    const merged = JSON.parse(readFileSync(join(folder, 'trace.json'), 'utf8')) as { traceEvents: TraceEvent[] };
    for (const rank of [0, 1]) {
      const spans = merged.traceEvents.filter(({ ph, pid }) => ph === 'X' && pid === rank);
      const names = spans.map(({ name }) => name);
      expect(names.filter((name) => name.includes('all-reduce')).length, names.join(' ')).toBeGreaterThanOrEqual(3);
      expect(names.some((name) => name.includes('broadcast'))).toBe(true);
      for (const { ts } of spans) expect(ts).toBeGreaterThanOrEqual(0);
    }
    // The merge is repeated elsewhere: the merged file is not taken for a rank's.
    const again = await shoal(['trace', 'merge', folder, '--output', join(directory, 'again.json')]).ended;
    expect(again.code).toBe(0);
    expect(readFileSync(join(directory, 'again.json'), 'utf8')).toBe(readFileSync(join(folder, 'trace.json'), 'utf8'));
  });

  it('shoal trace merge refuses files that are not traces', async () => {
    for (const [args, message] of [
      [['trace', 'merge', join(directory, 'nowhere')], /cannot be read.*ENOENT/],
      [['trace', 'merge', 'src/trace'], /no trace-rank-<n>\.json in src\/trace; run with SHOAL_TRACE/],
      [['trace', 'merge'], /missing required argument 'folder'/],
    ] as const) {
      const { stderr, code } = await shoal(args).ended;
      expect(stderr).toMatch(message);
      expect(code).toBe(2);
    }
  });

  it('a failure leaves the last operations of every rank, with the call that failed', async () => {
    const folder = join(directory, 'flight');
    await using world = await startRanks({
      fixture,
      n: 3,
      env: { SCENARIO: 'mismatch', SHOAL_FLIGHT_RECORDER_DIR: folder, ...inCommThread },
    });
    await Promise.all([1, 2].map((rank) => world.ranks[rank].line((line: { called?: number }) => line.called === rank)));
    world.ranks[0].tell();
    for (const outcome of await world.outcomes()) expect(reportOf(outcome, 'call')).toMatchObject({ ok: false, code: 'mismatch' });
    expect(readdirSync(folder).toSorted()).toEqual([0, 1, 2].map((rank) => `flight-rank-${rank}.json`));
    for (const rank of [0, 1, 2]) {
      const dump = JSON.parse(readFileSync(join(folder, `flight-rank-${rank}.json`), 'utf8')) as { entries: Record<string, unknown>[] };
      expect(dump).toMatchObject({ rank });
      const failed = dump.entries.find(({ profiling_name: name }) => name === 'shoal:all_reduce');
      expect(failed).toMatchObject({ error: expect.stringContaining('disagree'), input_sizes: [[rank === 0 ? 3 : 4]], retired: true });
      expect(JSON.stringify(failed?.frames)).toContain('bad-input.mjs');
    }
  });

  it('a folder that cannot be written to costs the record, not the error that is recorded', async () => {
    // A file is where the folder should be.
    const taken = join(directory, 'taken');
    writeFileSync(taken, '');
    await using world = await startRanks({
      fixture,
      n: 3,
      env: { SCENARIO: 'mismatch', SHOAL_FLIGHT_RECORDER_DIR: taken, ...inCommThread },
    });
    await Promise.all([1, 2].map((rank) => world.ranks[rank].line((line: { called?: number }) => line.called === rank)));
    world.ranks[0].tell();
    for (const outcome of await world.outcomes()) {
      expect(reportOf(outcome, 'call')).toMatchObject({ ok: false, code: 'mismatch', message: expect.stringContaining('rank 0') });
    }
  });

  it('a failure leaves the calls before it too, whichever thread ran them', async () => {
    const folder = join(directory, 'flight-of-threads');
    await using world = await startRanks({ fixture, n: 3, env: { SCENARIO: 'mismatch after many', SHOAL_FLIGHT_RECORDER_DIR: folder } });
    for (const outcome of await world.outcomes()) expect(reportOf(outcome, 'call')).toMatchObject({ ok: false, code: 'mismatch' });
    for (const rank of [0, 1, 2]) {
      const dump = JSON.parse(readFileSync(join(folder, `flight-rank-${rank}.json`), 'utf8')) as { entries: Record<string, unknown>[] };
      // A rank may fail before it makes the last call: whether the one before has ended is then not known.
      const ended = dump.entries.filter(({ collective_seq_id: sequence }) => Number(sequence) < 19);
      const sequences = ended.map(({ collective_seq_id: sequence }) => Number(sequence)).toSorted((a, b) => a - b);
      expect(sequences).toEqual(Array.from({ length: 19 }, (_, sequence) => sequence));
      for (const entry of ended)
        expect(entry).toMatchObject({ profiling_name: 'shoal:all_reduce', input_sizes: [[2]], state: 'completed', retired: true });
    }
  });

  it('without SHOAL_TRACE and SHOAL_FLIGHT_RECORDER_DIR nothing is written', async () => {
    const folder = mkdtempSync(join(directory, 'cwd-'));
    await using world = await startRanks({ fixture, n: 3, env: { SCENARIO: 'mismatch' }, cwd: folder });
    world.ranks[0].tell();
    await world.outcomes();
    expect(readdirSync(folder)).toEqual([]);
  });
});

describe('shoal run', () => {
  it('kill -9 of a rank in the middle of training: the killed one is reported, nothing is left', async () => {
    // The survivors end by themselves, however long they take to report the reason.
    const grace = ['--grace', '60s'];
    await using job = shoal(['run', '-n', '3', ...grace, fixtureScript('scenario')], { env: { SCENARIO: 'kill while computing' } });
    const started = await job.output(/rank (\d) started \(pid (\d+)\)/, 3);
    await job.output(/"ready":\d+/, 3);
    const pids = started.map((match) => Number(match[2]));
    const victim = Number(started.find((match) => match[1] === '1')?.[2]);
    process.kill(victim, 'SIGKILL');
    const { code, stderr, stdout } = await job.ended;
    expect(code).toBe(137);
    expect(stderr).toMatch(/rank 1 failed first: it was killed by SIGKILL/);
    for (const rank of [0, 2]) {
      const line = stdout.split('\n').find((each) => each.startsWith(`[rank ${rank}] `) && each.includes('"what":"call"'));
      expect(line, stdout).toMatch(/"code":"peer-lost".*"peer":1/);
    }
    await allGone(pids);
    expect(pids.some(isRunning)).toBe(false);
    expect(filesLeftBy(pids)).toEqual([]);
  });
});
