/** Memory for received tensors: size classes, slabs, what is used again, and its bound. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../../base/random.ts';
import { RegionTable } from '../../fabric/region-table.ts';
import { threadRegion } from '../../fabric/testing/regions.ts';
import { sizeClass, PooledMemory, type ReceiveBuffer } from './pooled-memory.ts';

function memoryOf(bytesMax: number) {
  const regions = new RegionTable({ random: seededRandom(1) });
  const budget = { bytesMax, bytes: 0 };
  const gone: number[] = [];
  const register = regions.register.bind(regions);
  const memory = new PooledMemory({ create: threadRegion, register, budget, slabBytes: 4096 });
  memory.onDeregister = (rkey) => gone.push(rkey);
  return { memory, budget, gone };
}

describe('memory for tensors', () => {
  it('has classes that hold what is asked for, with at most a fifth unused', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 2 ** 40 }), (bytes) => {
        const size = sizeClass(bytes);
        expect(size).toBeGreaterThanOrEqual(bytes);
        if (bytes > 64) expect(size).toBeLessThan(bytes * 1.25);
        expect(sizeClass(size)).toBe(size);
      }),
    );
  });

  it('gives no byte to two, whatever is allocated, freed and revoked, and none that is revoked while its key is valid', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.constantFrom('allocate', 'free', 'revoke'), fc.nat(2000)), { maxLength: 200 }), (actions) => {
        const { memory, budget, gone } = memoryOf(2 ** 20);
        const held: ReceiveBuffer[] = [];
        const revoked: ReceiveBuffer[] = [];
        for (const [action, size] of actions) {
          if (action === 'allocate' || held.length === 0) {
            const made = memory.allocate(size);
            held.push(made);
            for (const { registered, offset, bytes } of revoked)
              expect(registered === made.registered && offset < made.offset + made.bytes && made.offset < offset + bytes).toBe(false);
            expect(gone).not.toContain(made.registered.rkey);
            continue;
          }
          const [buffer] = held.splice(size % held.length, 1);
          if (action === 'free') memory.free(buffer);
          else {
            memory.revoke(buffer);
            revoked.push(buffer);
          }
        }
        for (const { registered } of held) expect(gone).not.toContain(registered.rkey);
        const places = held.map(({ registered, offset, bytes }) => ({
          rkey: registered.rkey,
          begin: offset,
          end: offset + bytes,
          of: registered.bytes,
        }));
        for (const [k, one] of places.entries()) {
          expect(one.end).toBeLessThanOrEqual(one.of);
          expect(places.slice(k + 1).filter((other) => other.rkey === one.rkey && other.begin < one.end && one.begin < other.end)).toEqual(
            [],
          );
        }
        expect(budget.bytes).toBeGreaterThanOrEqual(held.reduce((sum, { bytes }) => sum + bytes, 0));
        memory.close();
        expect(budget.bytes).toBe(0);
      }),
    );
  });

  it('takes the key of a region away when half of it is revoked and nothing of it is used', () => {
    const { memory, budget, gone } = memoryOf(2 ** 20);
    const buffers = Array.from({ length: 17 }, () => memory.allocate(256));
    const [first] = buffers;
    for (const buffer of buffers.slice(1, 8)) memory.revoke(buffer);
    expect(memory.allocate(256).registered).not.toBe(first.registered);
    memory.revoke(buffers[8]);
    for (const buffer of buffers.slice(9, 16)) memory.free(buffer);
    expect(gone).toEqual([]);
    memory.free(first);
    expect(gone).toEqual([first.registered.rkey]);
    const large = memory.allocate(100_000);
    memory.revoke(large);
    expect(gone).toEqual([first.registered.rkey, large.registered.rkey]);
    expect(budget.bytes).toBe(4096);
  });

  it('names the tensor that there is no memory for, not the slab', () => {
    const { memory } = memoryOf(4096 + 4095);
    memory.allocate(4096);
    expect(() => memory.allocate(100)).toThrow('no memory for a received tensor of 112 bytes, which shares a new slab of 4096 with others');
  });

  it('gives back what is free before it says that there is no more', () => {
    const { memory, gone } = memoryOf(10_000);
    const first = memory.allocate(6000);
    memory.free(first);
    const second = memory.allocate(8000);
    expect(gone).toEqual([first.registered.rkey]);
    expect(() => memory.allocate(4000)).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
    memory.free(second);
    expect(memory.allocate(8000)).toBe(second);
  });
});
