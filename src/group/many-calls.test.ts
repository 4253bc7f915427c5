/** Groups that have made more calls than 32 bits count. */
import { describe, expect, it } from 'vitest';
import { ControlBlock, controlBlockBytes } from '../collectives/control-block.ts';
import { CallHistory } from './comm/diagnosis/call-history.ts';
import { startRanks } from './testing/in-process-world.ts';

describe.each([2 ** 31 - 5, 2 ** 32 - 5, 2 ** 33 + 1])('after %i calls', (callsBefore) => {
  it.each(['host', 'network'] as const)('calls go on as ever: %s', async (kind) => {
    await using world = await startRanks(3, { kind, callsBefore, settings: { inFlightMax: 3 } });
    const results = await world.each(async (group) => {
      const sums = Array.from({ length: 25 }, (_, k) => Float64Array.of(group.rank + k));
      const large = group.tensor('float32', [100_000]);
      large.data.fill(group.rank);
      const output = new Int32Array(3);
      const works = sums.map((sum) => group.allReduce(sum));
      works.push(group.allReduce(large), group.allToAll(output, Int32Array.of(1, 2, 3), { inputSplits: [1, 1, 1] }), group.barrier());
      await Promise.all(works);
      return { sums: sums.map(([sum]) => sum), large: large.data[99_999], output: [...output] };
    });
    results.forEach((result, rank) => {
      const sums = Array.from({ length: 25 }, (_, k) => 3 + 3 * k);
      expect(result).toEqual({ sums, large: 3, output: Array.from({ length: 3 }, () => rank + 1) });
    });
  });

  it('ranks that disagree, and those that leave, are told apart from late ones', async () => {
    await using world = await startRanks(2, { callsBefore });
    const [first, second] = world.groups;
    for (let k = 0; k < 6; k++) await world.each((group) => group.barrier());
    const outcomes = await Promise.allSettled([first.allReduce(Float64Array.of(1)), second.broadcast(Float64Array.of(1))]);
    const number = `#${callsBefore + 6}`;
    for (const outcome of outcomes) {
      expect(outcome).toMatchObject({
        reason: { code: 'mismatch', message: expect.stringMatching(new RegExp(`all-reduce ${number} .*\\n.*broadcast ${number} `)) },
      });
    }
  });

  it('the log of calls that one thread made alone knows their numbers', () => {
    const shape = { slotCount: 2, signalMax: 1 };
    const own = new ControlBlock(new ArrayBuffer(controlBlockBytes(shape)), 0, shape);
    const history = new CallHistory(own, { callsMax: 4 });
    for (let k = 0; k < 100; k++) {
      own.called = callsBefore + k + 1;
      // An all-reduce of int8.
      own.logCall(callsBefore + k, Uint32Array.of(0, 0, k, 0, 0xffffffff, 0, 0));
    }
    expect(history.called).toBe(callsBefore + 100);
    const alone = history.calledAlone();
    expect(alone.map(({ sequence }) => sequence)).toEqual(
      Array.from({ length: alone.length }, (_, k) => callsBefore + 100 - alone.length + k),
    );
    expect(alone.length).toBeGreaterThanOrEqual(63);
    expect(history.report(callsBefore + 99).arrived).toBe(true);
  });
});
