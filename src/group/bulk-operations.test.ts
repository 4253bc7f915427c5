/** Many large operations between hosts in flight: few at a time have bytes under way, small ones do not wait for them. */
import { expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import type { FlightRecorder } from '../trace/flight-recorder.ts';
import { startRanks } from './testing/in-process-world.ts';

/** How many large operations were under way on a rank when each of them started, that one included. */
function largeUnderWay(flight: FlightRecorder, count: number): number[] {
  const spans = flight
    .dump()
    .entries.filter(({ input_sizes: [sizes] }) => sizes?.[0] === count)
    .map(({ time_discovered_started_ns: from, time_discovered_completed_ns: to }) => ({ from: from ?? Number.NaN, to: to ?? Number.NaN }));
  return spans.map(({ from }) => spans.filter((other) => other.from <= from && other.to > from).length);
}

it('large operations run two at a time in their order, a small one behind them does not wait for all', { timeout: 120_000 }, async () => {
  const hostIds = ['a', 'b', 'c'];
  const large = 6;
  const largeCount = 2 ** 20 + 5;
  await using world = await startRanks(hostIds.length, { kind: 'host', hostIds, clock: systemClock });
  const orders = await world.each(async (group) => {
    const counts = [...Array.from({ length: large }, () => largeCount), 3];
    const tensors = counts.map((count) => group.tensor('float32', [count]));
    tensors.forEach((x, k) => x.data.fill(10 ** group.rank * (k + 1)));
    const finished: number[] = [];
    await Promise.all(tensors.map(async (x, k) => finished.push((await group.allReduce(x), k))));
    tensors.forEach((x, k) => expect([x.data[0], x.data.at(-1)]).toEqual([111 * (k + 1), 111 * (k + 1)]));
    return finished;
  });
  for (const flight of world.flights) {
    const underWay = largeUnderWay(flight, largeCount);
    expect(underWay).toHaveLength(large);
    for (const each of underWay) expect([1, 2], `under way: ${underWay.join(' ')}`).toContain(each);
  }
  for (const finished of orders) {
    expect(finished.indexOf(large), `order ${finished.join(' ')}`).toBeLessThan(large);
    for (let k = 2; k < large; k++) expect(finished.indexOf(k), `order ${finished.join(' ')}`).toBeGreaterThan(finished.indexOf(k - 2));
  }
});
