/** Memory that values keep: no byte is given out twice, regions go when nothing is written to them any more, and its bound. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { RegionTable } from '../../fabric/region-table.ts';
import { ArenaMemory } from './arena-memory.ts';
import type { ReceiveBuffer } from './pooled-memory.ts';

function memoryOf(bytesMax: number) {
  const regions = new RegionTable({ random: seededRandom(1) });
  const budget = { bytesMax, bytes: 0 };
  const gone: number[] = [];
  const made: number[] = [];
  const register: typeof regions.register = (region) => {
    const registered = regions.register(region);
    made.push(registered.rkey);
    return registered;
  };
  const memory = new ArenaMemory({ register, budget, arenaBytes: 4096 });
  memory.onDeregister = (rkey) => gone.push(rkey);
  return { memory, regions, budget, made, gone };
}

describe('memory that values keep', () => {
  it('gives no byte to two, ever, and registers what is waited for and nothing else', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.boolean(), fc.integer({ min: 1, max: 2000 })), { maxLength: 200 }), (actions) => {
        const { memory, regions, budget, made, gone } = memoryOf(2 ** 20);
        const awaited: ReceiveBuffer[] = [];
        const given = new Map<ArrayBufferLike, [from: number, to: number][]>();
        for (const [asks, size] of actions) {
          if (!asks && awaited.length > 0) {
            const [buffer] = awaited.splice(size % awaited.length, 1);
            if (size % 2 === 0) memory.free(buffer);
            else expect(memory.handOver(buffer)).toBeUndefined();
            continue;
          }
          const buffer = memory.allocate(size);
          const { registered, offset, bytes } = buffer;
          expect(bytes).toBeGreaterThanOrEqual(size);
          expect(offset % 64).toBe(0);
          expect(offset + bytes).toBeLessThanOrEqual(registered.bytes);
          const taken = given.get(registered.region.buffer) ?? [];
          given.set(registered.region.buffer, taken);
          expect(taken.every(([from, to]) => offset >= to || offset + bytes <= from)).toBe(true);
          taken.push([offset, offset + bytes]);
          awaited.push(buffer);
        }
        for (const { registered } of awaited) expect(regions.get(registered.rkey)).toBe(registered);
        expect(budget.bytes).toBe(awaited.reduce((sum, { bytes }) => sum + bytes, 0));
        // The arena that small tensors still come to, beside those that are waited for.
        expect(made.length - gone.length).toBeLessThanOrEqual(new Set(awaited.map(({ registered }) => registered)).size + 1);
        memory.close();
        memory.close();
        expect(budget.bytes).toBe(0);
        expect(new Set(gone).size).toBe(gone.length);
        for (const { registered } of awaited) expect(regions.get(registered.rkey)).toBeUndefined();
        expect(() => memory.allocate(1)).toThrow(/closed/);
      }),
    );
  });

  it('lets a large tensor be alone, so that who keeps it keeps nothing else', () => {
    const { memory, gone } = memoryOf(2 ** 20);
    const [small, large] = [memory.allocate(256), memory.allocate(257)];
    expect(small.registered.bytes).toBe(4096);
    expect(large.registered.bytes).toBe(320);
    memory.handOver(large);
    expect(gone).toEqual([large.registered.rkey]);
  });

  it('refuses what would be more than may be waited for, and sizes that there are not', () => {
    const { memory } = memoryOf(1000);
    memory.handOver(memory.allocate(900));
    memory.allocate(900);
    expect(() => memory.allocate(100)).toThrow(expect.objectContaining({ code: 'out-of-memory' }) as Error);
    expect(() => memoryOf(2 ** 60).memory.allocate(2 ** 52)).toThrow(expect.objectContaining({ code: 'out-of-memory' }) as Error);
  });
});
