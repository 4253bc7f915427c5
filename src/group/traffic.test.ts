/** The bytes that ranks say they have sent each other, whichever way calls take: compared with what went through their fabrics, and between
 *  the ways. */
import { describe, expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { countFabric, type FabricCounts } from '../fabric/testing/hooks/count.ts';
import { createRecorder } from '../trace/recorder.ts';
import { mergedTraffic, type TrafficRow } from '../trace/traffic.ts';
import type { CommGroup } from './api/process-group.ts';
import { startRanks, type InProcessOptions } from './testing/in-process-world.ts';

const n = 3;

/** Bytes by sender and receiver. */
async function trafficOf(options: InProcessOptions, body: (group: CommGroup) => Promise<unknown>): Promise<number[][]> {
  const recorders = Array.from({ length: 2 * n }, (_, at) => createRecorder({ clock: systemClock, thread: at < n ? 'main' : 'comm' }));
  await using world = await startRanks(n, { ...options, mainTrace: recorders.slice(0, n), trace: (rank) => recorders[n + rank] });
  await world.each(body);
  return matrixOf(mergedTraffic(recorders.map((recorder) => recorder.snapshot().traffic)));
}

function matrixOf(rows: readonly TrafficRow[]): number[][] {
  const matrix = Array.from({ length: n }, () => Array.from({ length: n }, () => 0));
  for (const [from, to, bytes] of rows) matrix[from][to] += bytes;
  return matrix;
}

/** The bytes that an all-gather moves: every rank's part to each other rank. */
const toAll = (bytes: number): number[][] => [0, 1, 2].map((from) => [0, 1, 2].map((to) => (from === to ? 0 : bytes)));

const ways: [string, InProcessOptions][] = [
  ['the engine on one host', { kind: 'host' }],
  ['the engine between hosts', { kind: 'network', hostIds: ['a', 'b', 'c'] }],
  ['the engine over TCP', { kind: 'tcp', hostIds: ['a', 'b', 'c'] }],
  ['the host path', { kind: 'host', fastPath: true }],
  ['the network path', { kind: 'network', fastPath: true, hostIds: ['a', 'b', 'c'] }],
];

describe.each(ways)('%s', (_, options) => {
  it('counts each byte once, whoever moves it', async () => {
    const settings = { algorithms: '*:direct' };
    const gathered = await trafficOf({ ...options, settings }, async (group) => {
      for (let call = 0; call < 5; call++) await group.allGather(new Int32Array(3 * n), new Int32Array(3).fill(group.rank));
    });
    expect(gathered).toEqual(toAll(5 * 12));
  });

  it('counts messages of two ranks at the sender', async () => {
    const sent = await trafficOf(options, async (group) => {
      if (group.rank === 0) await Promise.all([group.send(new Float64Array(2), 1), group.send(new Float32Array(5000), 2)]);
      else await group.recv(group.rank === 1 ? new Float64Array(2) : new Float32Array(5000), 0);
    });
    expect(sent).toEqual([
      [0, 16, 20_000],
      [0, 0, 0],
      [0, 0, 0],
    ]);
  });

  it('counts nothing of a call that fails', async () => {
    const failed = await trafficOf(options, async (group) => {
      const call = group.allReduce(new Float32Array(group.rank === 0 ? 4 : 5));
      await expect(call).rejects.toMatchObject({ code: 'mismatch' });
    });
    expect(failed).toEqual(toAll(0));
  });
});

it.each([1, 1000, 300_000])('is what fabrics have written: all-reduces, broadcasts and exchanges of %i elements', async (count) => {
  const counted: Readonly<FabricCounts>[] = [];
  const wrap: InProcessOptions['wrap'] = (inner, rank) => {
    const { fabric, counts } = countFabric(inner);
    counted[rank] = counts;
    return fabric;
  };
  const settings = { algorithms: 'all-reduce:ring;broadcast:tree;all-to-all:direct' };
  let before: number[] = [];
  const matrix = await trafficOf({ kind: 'network', hostIds: ['a', 'b', 'c'], wrap, settings }, async (group) => {
    await group.barrier();
    // Links were measured before.
    before = counted.map(({ sent }) => sent.writeBytes);
    await group.barrier();
    await group.allReduce(new Float32Array(count));
    await group.broadcast(new Float32Array(count), { root: 2 });
    await group.allToAll(new Float32Array(n * count), new Float32Array(n * count));
    await group.barrier();
  });
  const sums = matrix.map((row) => row.reduce((sum, bytes) => sum + bytes, 0));
  expect(sums).toEqual(counted.map(({ sent }, rank) => sent.writeBytes - before[rank]));
  expect(Math.min(...sums)).toBeGreaterThan(0);
});
