/** Stores between real processes, some of which are killed. */
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { reservePort } from '../../src/base/testing/reserved-port.ts';
import { openStore } from '../../src/store/open-store.ts';
import { start, type Running } from '../fixtures/launch-harness.ts';
import { fixtureCommand } from '../support/fixtures.ts';

const options = { clock: systemClock, random: systemRandom, secret: 's' };

function writer(url: string, rank: number, worldSize: number): Running {
  return start([...fixtureCommand('store-writer'), url, `${rank}`, `${worldSize}`]);
}

describe('stores between processes', () => {
  it('the file store survives writers that are killed at any moment; no sum is given twice', async () => {
    const directory = temporaryFolder('store');
    const url = `file://${directory}/store`;
    await using first = writer(url, 0, 3);
    await using second = writer(url, 1, 3);
    await using third = writer(url, 2, 3);
    const writers = [first, second, third];
    await Promise.all(writers.map((one) => one.output(/sum \d+/, 20)));
    const seen: number[] = [];
    for (const [i, victim] of writers.entries()) {
      process.kill(victim.pid, 'SIGKILL');
      const { stdout } = await victim.ended;
      seen.push(...[...stdout.matchAll(/sum (\d+)\n/g)].map((match) => Number(match[1])));
      // The other writers go on.
      const before = await Promise.all(writers.slice(i + 1).map(async (one) => (await one.output(/sum \d+/, 1)).length));
      await Promise.all(writers.slice(i + 1).map((one, k) => one.output(/sum \d+/, before[k] + 20)));
    }
    const { store } = await openStore(url, options);
    expect(new Set(seen).size).toBe(seen.length);
    // A killed writer may have added a number that it could not print any more: at most one each.
    const total = await store.add('n', 0);
    expect(total).toBeGreaterThanOrEqual(seen.length);
    expect(total).toBeLessThanOrEqual(seen.length + writers.length);
    await store.close();
  });

  it('the death of the process that serves a TCP store fails pending calls with peer-lost', async () => {
    const url = `tcp://127.0.0.1:${await reservePort()}`;
    await using zero = writer(url, 0, 2);
    const { store } = await openStore(url, { ...options, rank: 1, worldSize: 2, connectTimeoutMs: 60_000 });
    const pending = expect(store.get('never')).rejects.toMatchObject({ code: 'peer-lost', rank: 1 });
    expect(await store.add('mine', 1)).toBe(1);
    process.kill(zero.pid, 'SIGKILL');
    await pending;
    await expect(store.set('k', new Uint8Array())).rejects.toMatchObject({ code: 'peer-lost' });
    await store.close();
  });
});
