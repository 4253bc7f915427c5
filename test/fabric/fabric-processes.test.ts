/** Fabrics between real processes: bytes arrive, death is seen at once and by name, nothing is left. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { afterEach, describe, expect, it } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { fabricProviders } from '../../src/fabric/providers.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { sweepSharedMemory } from '../../src/fabric/providers/libfabric/libfabric-shm-files.ts';
import { fixtureCommand } from '../support/fixtures.ts';
import { filesLeftBy } from '../support/shared-memory-files.ts';

/** A bound on the mechanism, not on the machine's speed: less than the time until a silent connection is asked for a sign of life. */
const deathMs = 9000;

interface Rank {
  readonly process: ChildProcess;
  /** The next line that it prints. */
  next(): Promise<Record<string, unknown>>;
}

const started: Rank[] = [];
afterEach(async () => {
  for (const { process: child } of started.splice(0)) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
});

function startRank(...args: string[]): Rank {
  const [program, ...more] = fixtureCommand('fabric-rank');
  const child = spawn(program, [...more, ...args], { stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const rank = { process: child, next: async () => JSON.parse((await lines.next()).value as string) as Record<string, unknown> };
  started.push(rank);
  return rank;
}

/** Two ranks, after each has written into the other's memory and seen it. */
async function exchanged(provider: string): Promise<{ dialler: Rank; listener: Rank; address: { candidates: string[] } }> {
  const listener = startRank(provider, '1');
  const { address } = (await listener.next()) as { address: { candidates: string[] } };
  const dialler = startRank(provider, '0', JSON.stringify(address));
  for (const [rank, peer] of [
    [dialler, 1],
    [listener, 0],
  ] as const) {
    const events = [await rank.next(), await rank.next()];
    expect(events).toEqual(expect.arrayContaining([{ wrote: 8 * 1024 * 1024 }, { immediate: 100 + peer, peer, right: true }]));
  }
  return { dialler, listener, address };
}

/** The providers, with libfabric's `shm` beside the one that it takes first. */
const providers = [
  ...fabricProviders.map((provider) => ({ ...provider, title: provider.name })),
  { title: 'libfabric:shm', unavailable: () => libfabricUnavailable({ provider: 'shm' }) },
];

for (const { title: name, unavailable } of providers) {
  const reason = unavailable();
  describe.skipIf(reason !== undefined)(`${name} between processes${reason === undefined ? '' : ` (skipped: ${reason})`}`, () => {
    it('writes land in the other process, and an orderly end is one on both sides', async () => {
      const { dialler, listener } = await exchanged(name);
      const exited = once(dialler.process, 'exit');
      dialler.process.stdin!.write('close\n');
      expect(await dialler.next()).toMatchObject({ closed: 'orderly' });
      expect(await listener.next()).toMatchObject({ closed: 'orderly' });
      expect(await exited).toEqual([0, null]);
    });

    it.each(['dialler', 'listener'] as const)(
      'SIGKILL of the %s is peer-lost at the other, which does not wait for any time limit, and leaves nothing',
      async (victim) => {
        const ranks = await exchanged(name);
        const survivor = victim === 'dialler' ? ranks.listener : ranks.dialler;
        const killedAtMs = systemClock.wallNow();
        // The sockets of a process close before it has ended.
        const ended = once(ranks[victim].process, 'exit');
        ranks[victim].process.kill('SIGKILL');
        const end = await survivor.next();
        expect(end).toMatchObject({ closed: 'peer-lost', message: expect.stringContaining(`lost rank ${victim === 'dialler' ? 0 : 1}`) });
        expect((end.atMs as number) - killedAtMs).toBeLessThan(deathMs);
        survivor.process.kill('SIGKILL');
        await Promise.all([ended, once(survivor.process, 'exit')]);
        if (name === 'libfabric:shm') {
          // The next fabric of that kind would do the same.
          sweepSharedMemory();
          const pids = [ranks.dialler.process.pid, ranks.listener.process.pid];
          expect(filesLeftBy(pids)).toEqual([]);
          return;
        }
        const socket = /^shm:\/\/([^?]+)/.exec(ranks.address.candidates[0])?.[1];
        if (socket !== undefined) expect(readFileSync('/proc/net/unix', 'utf8')).not.toContain(socket);
      },
    );
  });
}
