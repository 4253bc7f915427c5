/** Process groups of real processes: the conformance checks, and the behaviour when ranks disagree or die. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import type { ChromeTrace } from '../../src/trace/chrome.ts';
import { expectConformance } from '../support/expect-conformance.ts';
import { fixtureScript } from '../support/fixtures.ts';
import { startRanks } from '../support/ranks.ts';
import { testWorlds } from '../support/start-worlds.ts';
import type { TestWorld } from '../support/worlds.ts';
import { filesLeftBy } from '../support/shared-memory-files.ts';

interface Report {
  what: string;
  ok: boolean;
  code?: string;
  message?: string;
  peer?: number;
  ms?: number;
}

const isReport =
  (what: string) =>
  (line: Report): boolean =>
    line.what === what;

/** The links between ranks of a host: shared memory, and calls in the host path; or TCP, and calls on the network path. */
const missing = nativeUnavailableReason();
const fabricLists = missing === undefined ? ['', 'tcp'] : [''];
if (missing !== undefined) {
  const reason = `${missing}: ranks have TCP between them in all other tests`;
  it(`over TCP, whatever else there is (skipped: ${reason})`, (context) => context.skip(reason));
}

describe('conformance in real processes', () => {
  const worlds: readonly TestWorld[] = [
    { name: '2 ranks', n: 2 },
    ...(missing === undefined ? [{ name: '3 ranks over tcp', n: 3, env: { SHOAL_FABRICS: 'tcp' } }] : []),
    { name: '4 ranks, strict contract', n: 4, checks: 'planned', env: { SHOAL_CONTRACT: 'strict' } },
  ];
  testWorlds('conformance', worlds, expectConformance);
});

describe('threads and worlds', () => {
  /** A world for each kind of links, in the same processes. */
  const worldsOf = (name: string, n: number): readonly TestWorld[] =>
    fabricLists.map((fabrics) => ({ name: `${name}, fabrics "${fabrics}"`, n, env: { SHOAL_FABRICS: fabrics } }));

  describe('while the main threads are busy', () => {
    const name = 'all-reduces run and are done while a busy main thread never returns to its event loop';
    testWorlds('overlap', worldsOf(name, 2), async ({ said }, { name: world }) =>
      expect(await said(() => true)).toEqual([0, 1].map(() => ({ world, overlapped: true }))),
    );
  });

  describe('all-reduces, waited for in every way and with late ranks, are run once each', () => {
    const worlds = [2, 3].flatMap((n) => [
      { name: `large, ${n} ranks`, scenario: 'large', n },
      ...fabricLists.map((fabrics) => ({ name: `small, ${n} ranks, fabrics "${fabrics}"`, n, env: { SHOAL_FABRICS: fabrics } })),
    ]);
    testWorlds('large', worlds, async ({ said, ranks }, { name: world }) =>
      expect(await said(() => true)).toEqual(ranks.map(() => ({ world, wrong: 0 }))),
    );
  });

  describe('without the event loop', () => {
    const name = 'all-to-alls with splits are waited for and looked at';
    testWorlds('splits', worldsOf(name, 3), async ({ said }, { name: world }) =>
      expect(await said(() => true)).toEqual([0, 1, 2].map(() => ({ world, wrong: 0, busy: true }))),
    );
  });

  it('a script that ends without destroy leaves as one that calls it', async () => {
    await using world = await startRanks({ fixture: 'no-destroy', n: 3 });
    for (const { lines, stderr, code } of await world.outcomes()) {
      expect(stderr).toBe('');
      expect(lines).toEqual([{ sum: 6 }]);
      expect(code).toBe(0);
    }
  });

  it.each(['destroy', 'no destroy', 'exit'])(
    'calls that are never awaited are said once, with their place, at the end: %s',
    async (end) => {
      await using world = await startRanks({ fixture: 'unheeded', n: 3, env: { END: end } });
      const outcomes = await world.outcomes();
      expect(outcomes.map(({ code }) => code)).toEqual([0, 0, 0]);
      const said = outcomes.flatMap(({ stderr }) => stderr.split('\n').filter((line) => line !== ''));
      // At `process.exit` ranks cannot ask each other any more.
      expect(said.length).toBeLessThanOrEqual(end === 'exit' ? 3 : 1);
      const place = linesOf('unheeded').findIndex((line) => line.includes('void group.allReduce(x)')) + 1;
      const text = `(one call was|2 calls were) never awaited: all-reduce of group 'world' at unheeded\\.mjs:${place}\\. `;
      expect(said[0]).toMatch(new RegExp(`warn {2}${text}`));
    },
  );

  it('two worlds live in one process', async () => {
    await using other = await startRanks({ fixture: 'scenario', n: 2, only: [] });
    await using world = await startRanks({
      fixture: 'two-worlds',
      n: 2,
      env: { OTHER_JOB: other.job, OTHER_PORT: String(other.server.port) },
    });
    const outcomes = await world.outcomes();
    outcomes.forEach(({ lines, stderr }, rank) => {
      expect(stderr).toBe('');
      expect(lines).toEqual([{ a: rank, b: 1 - rank, x: 1, y: 10 }]);
    });
  });
});

describe('a call that one rank aborts', () => {
  it.each(fabricLists)('ends its group on every rank, by name, and no other, fabrics "%s"', async (fabrics) => {
    const traces = temporaryFolder('aborts');
    await using world = await startRanks({ fixture: 'aborts', n: 3, env: { SHOAL_FABRICS: fabrics, SHOAL_TRACE: traces } });
    for (const { lines, code } of await world.outcomes()) {
      const reports = lines as (Report & { sum?: number })[];
      for (const { what, ok, code: errorCode, message, sum } of reports) {
        if (what === 'world') expect(sum).toBe(3);
        else {
          expect({ what, ok, errorCode }).toEqual({ what, ok: false, errorCode: 'aborted' });
          expect(message).toMatch(/^rank 1 aborted (all-reduce|batch) of group '.*' by its signal \(enough\)/);
        }
      }
      expect(reports.length).toBeGreaterThanOrEqual(4);
      expect(code).toBe(0);
    }
    const { traceEvents } = JSON.parse(readFileSync(join(traces, 'trace-rank-1.json'), 'utf8')) as ChromeTrace;
    const spans = traceEvents.filter(({ name }) => name === 'waiting to abort');
    expect(spans.map(({ ph, cat }) => ({ ph, cat }))).toEqual([1, 2, 3].map(() => ({ ph: 'X', cat: 'user' })));
  });
});

/** Places of ranks; with announcements along a tree, ranks 1 and 2 hear of each other through rank 0 alone. */
const places: readonly (Omit<TestWorld, 'n' | 'name'> & { readonly place: string })[] = [
  { place: 'in the host path' },
  ...(missing === undefined ? [{ place: 'on the network path', env: { SHOAL_FABRICS: 'tcp' } }] : []),
  { place: 'along a tree of hosts', hosts: 'abc', env: { SHOAL_ALGORITHMS: 'all-reduce:tree' } },
];

describe('ranks that disagree: mismatch on every rank, naming every call', () => {
  const different = ['op', 'dtype', 'count', 'counts', 'root', 'kind'];
  const worlds = places.flatMap(({ place, ...options }) =>
    different.map((scenario) => ({ name: `different ${scenario}, ${place}`, scenario, n: 3, ...options })),
  );
  testWorlds('disagreements', worlds, async ({ ranks: [first, odd, last], said }) => {
    await said(({ called }) => called !== undefined, [first, last]);
    odd.tell();
    for (const { ok, code, message } of await said(({ what }) => what === 'call')) {
      expect({ ok, code }).toEqual({ ok: false, code: 'mismatch' });
      for (const rank of [0, 1, 2]) expect(message).toMatch(new RegExp(`rank ${rank}: \\S+ #0 .* at disagreements\\.mjs:\\d+`));
    }
  });
});

describe('two named all-reduces in swapped order: mismatch on every rank, no result', () => {
  const worlds = places
    .filter(({ hosts }) => hosts === undefined)
    .map(({ place, ...options }) => ({ name: place, scenario: 'swapped', n: 2, ...options }));
  testWorlds('disagreements', worlds, async ({ said }) => {
    const first = await said(({ what }) => what === 'first');
    const second = await said(({ what }) => what === 'second');
    for (const { ok, code } of [...first, ...second]) expect({ ok, code }).toEqual({ ok: false, code: 'mismatch' });
    for (const { message } of first) expect(message).toMatch(/rank 0: .*'a'.*\n.*rank 1: .*'b'/);
  });
});

describe.each(fabricLists)('ranks that make fewer calls, fabrics "%s"', (fabrics) => {
  const env = { SHOAL_FABRICS: fabrics };

  it('a rank that makes fewer calls: timeout that names it', async () => {
    await using world = await startRanks({ fixture: 'scenario', n: 3, env: { ...env, SCENARIO: 'fewer' } });
    for (const rank of [0, 2]) {
      const report = await world.ranks[rank].line<Report>(isReport('call'));
      expect(report).toMatchObject({ ok: false, code: 'timeout', peer: 1 });
      expect(report.message).toMatch(/waiting for rank 1/);
      expect(report.message).toMatch(/rank 1: had not called it by then; its last call was barrier #0/);
    }
  });

  it('a rank that makes fewer calls is named before one that is stopped, which may have called', async () => {
    await using world = await startRanks({ fixture: 'scenario', n: 3, env: { ...env, SCENARIO: 'fewer, and one stopped' } });
    await Promise.all(world.ranks.map((rank) => rank.line((line: { ready?: number }) => line.ready !== undefined)));
    world.ranks[0].kill('SIGSTOP');
    world.ranks[2].tell();
    const report = await world.ranks[2].line<Report>(isReport('call'));
    expect(report).toMatchObject({ ok: false, code: 'timeout', peer: 1 });
    expect(report.message).toMatch(
      /waiting for rank 1; perhaps for rank 0, which did not answer:\n  rank 0: did not answer\n  rank 1: had not/,
    );
  });

  it('a rank that leaves early: mismatch that names it, at once', async () => {
    await using world = await startRanks({ fixture: 'scenario', n: 3, env: { ...env, SCENARIO: 'leaves' } });
    for (const rank of [0, 2]) {
      const report = await world.ranks[rank].line<Report>(isReport('call'));
      expect(report).toMatchObject({ ok: false, code: 'mismatch' });
      expect(report.message).toMatch(/rank 1: left the group after 1 call$/m);
    }
  });
});

describe.each(fabricLists)('kill -9 of a rank, fabrics "%s"', (fabrics) => {
  const env = { SHOAL_FABRICS: fabrics };

  it.each(['kill in a collective', 'kill between collectives', 'kill while computing'])(
    '%s: survivors get peer-lost, without waiting for a timeout',
    async (scenario) => {
      await using world = await startRanks({ fixture: 'scenario', n: 3, env: { ...env, SCENARIO: scenario } });
      await Promise.all(world.ranks.map((rank) => rank.line((line: { ready?: number }) => line.ready !== undefined)));
      const names = new Set(world.ranks.flatMap((rank) => unixNames(rank.child.pid ?? 0)));
      const victim = world.ranks[1];
      victim.kill();
      await victim.exited;
      for (const rank of [world.ranks[0], world.ranks[2]]) rank.tell();
      for (const rank of [world.ranks[0], world.ranks[2]]) {
        const report = await rank.line<Report>(isReport('call'));
        expect(report).toMatchObject({ ok: false, code: 'peer-lost', peer: 1 });
        expect(report.message).toMatch(/rank 1 was lost/);
      }
      await Promise.all(world.ranks.map((rank) => rank.exited));
      expect([...names].filter((name) => unixTable().some((line) => line.includes(name)))).toEqual([]);
      expect(filesLeftBy(world.ranks.map(({ child }) => child.pid))).toEqual([]);
    },
  );

  it('during bootstrap: the others learn who is missing', async () => {
    await using world = await startRanks({ fixture: 'scenario', n: 3, env: { ...env, SCENARIO: 'leaves' }, only: [0, 1] });
    world.ranks[1].kill();
    const report = await world.ranks[0].line<Report>(isReport('init'));
    expect(report).toMatchObject({ ok: false, code: 'peer-lost', peer: 1 });
    expect(report.message).toMatch(/SIGKILL/);
  });

  it('during destroy: destroy of the others is bounded', async () => {
    await using world = await startRanks({ fixture: 'scenario', n: 3, env: { ...env, SCENARIO: 'kill during destroy' } });
    // All have left the barrier: a rank that dies now dies while the others destroy.
    await Promise.all(world.ranks.map((rank) => rank.line((line: { ready?: number }) => line.ready !== undefined)));
    world.ranks[1].kill();
    for (const rank of [0, 2]) {
      expect(await world.ranks[rank].line<Report>(isReport('destroy'))).toMatchObject({ ok: true });
      expect(await world.ranks[rank].exited).toMatchObject({ code: 0 });
    }
  });
});

describe('strangers and wrong configurations', () => {
  it('a second process with the same rank is refused by name', async () => {
    await using world = await startRanks({
      fixture: 'scenario',
      n: 2,
      env: { SCENARIO: 'leaves' },
      envOf: (rank) => (rank === 1 ? { RANK: '0' } : {}),
    });
    const reports = await Promise.race(world.ranks.map((rank) => rank.line<Report>(isReport('init'))));
    expect(reports).toMatchObject({ ok: false, code: 'config' });
    expect(reports.message).toMatch(/two processes claim rank 0/);
  });

  it('world sizes that disagree are refused by name', async () => {
    await using world = await startRanks({
      fixture: 'scenario',
      n: 2,
      env: { SCENARIO: 'leaves' },
      envOf: (rank) => (rank === 1 ? { WORLD_SIZE: '3', LOCAL_WORLD_SIZE: '3' } : {}),
    });
    const report = await world.ranks[0].line<Report>(isReport('init'));
    expect(report).toMatchObject({ ok: false, code: 'config' });
    expect(report.message).toMatch(/rank 1 has world size 3, rank 0 has 2/);
  });

  it('a wrong secret is refused', async () => {
    await using world = await startRanks({
      fixture: 'scenario',
      n: 2,
      env: { SCENARIO: 'leaves' },
      envOf: (rank) => (rank === 1 ? { SHOAL_SECRET: 'wrong' } : {}),
    });
    expect(await world.ranks[1].line<Report>(isReport('init'))).toMatchObject({ ok: false, code: 'auth' });
  });

  it('strangers on every port do not disturb the job', async () => {
    await using world = await startRanks({ fixture: 'scenario', n: 2, env: { SCENARIO: 'kill in a collective', SHOAL_FABRICS: 'tcp' } });
    await Promise.all(world.ranks.map((rank) => rank.line((line: { ready?: number }) => line.ready !== undefined)));
    const ports = world.ranks.flatMap((rank) => listeningPorts(rank.child.pid ?? 0));
    expect(ports.length).toBeGreaterThan(0);
    for (const port of [...ports, world.server.port]) await pester(port);
    world.ranks[1].kill();
    expect(await world.ranks[0].line<Report>(isReport('call'))).toMatchObject({ code: 'peer-lost', peer: 1 });
  });
});

/** The lines of a fixture's script. */
function linesOf(fixture: string): string[] {
  return readFileSync(fixtureScript(fixture), 'utf8').split('\n');
}

/** Random bytes, then an endless stream, until the other side closes. */
async function pester(port: number): Promise<void> {
  await new Promise<void>((resolve) => {
    const socket = connect(port, '127.0.0.1');
    const garbage = Buffer.alloc(65536, 0xa5);
    const pour = (): void => void (socket.writable && socket.write(garbage, () => pour()));
    socket.on('connect', pour);
    socket.on('error', () => undefined);
    socket.on('close', () => resolve());
  });
}

/** Inodes of a process's sockets. */
function socketInodes(pid: number): Set<string> {
  return new Set(
    readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
      try {
        return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1] ?? [];
      } catch {
        return [];
      }
    }),
  );
}

/** TCP ports on which a process listens. */
function listeningPorts(pid: number): number[] {
  const inodes = socketInodes(pid);
  return ['tcp', 'tcp6'].flatMap((table) =>
    readFileSync(`/proc/${pid}/net/${table}`, 'utf8')
      .split('\n')
      .slice(1)
      .map((line) => line.trim().split(/\s+/))
      .filter((fields) => fields[3] === '0A' && inodes.has(fields[9]))
      .map((fields) => parseInt(fields[1].split(':')[1], 16)),
  );
}

function unixTable(): string[] {
  return readFileSync('/proc/net/unix', 'utf8').split('\n').slice(1);
}

/** Names under which a process's Unix sockets are known. */
function unixNames(pid: number): string[] {
  const inodes = socketInodes(pid);
  return unixTable()
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => inodes.has(fields[6]) && fields[7] !== undefined)
    .map((fields) => fields[7].replace(/@+$/, ''));
}
