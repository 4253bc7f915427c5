import { describe, expect, it } from 'vitest';
import { KeyTable } from './key-table.ts';

describe('keys', () => {
  it('are in the order of their registration, or of their priorities and names', () => {
    const layers = new KeyTable();
    for (const key of ['conv', 'dense', 'bias']) layers.register(key, 4);
    expect(layers.seal().map(({ key }) => key)).toEqual(['conv', 'dense', 'bias']);
    expect(layers.indexOf('dense')).toBe(1);
    const given = new KeyTable();
    given.register('b', 4, 1);
    given.register('c', 4, 0);
    given.register('a', 4, 1);
    expect(given.seal().map(({ key }) => key)).toEqual(['c', 'a', 'b']);
  });

  it('are registered once, and before the table is sealed', () => {
    const table = new KeyTable({ keysMax: 2 });
    table.register('a', 4);
    expect(() => table.register('a', 4)).toThrow("'a' is registered already");
    expect(() => table.indexOf('a')).toThrow('the table is not sealed yet');
    table.register('b', 4);
    expect(() => table.register('c', 4)).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
    table.seal();
    expect(() => table.register('c', 4)).toThrow("'c' is late: the table was sealed with 2 keys");
    expect(() => table.indexOf('c')).toThrow('it was never registered');
  });

  it.each<[string, (table: KeyTable) => unknown]>([
    ['a key that is no text', (table) => table.register(3 as never, 4)],
    ['negative bytes', (table) => table.register('a', -1)],
    ['a priority that is none', (table) => table.register('a', 1, NaN)],
    ['a table for no keys', () => new KeyTable({ keysMax: 0 })],
  ])('are not %s', (_, run) => {
    expect(() => run(new KeyTable())).toThrow(expect.objectContaining({ code: 'usage' }));
  });

  it('are the same on all ranks, or the first difference is named', () => {
    const table = (...keys: [string, number, number][]): KeyTable => {
      const made = new KeyTable();
      for (const [key, bytes, priority] of keys) made.register(key, bytes, priority);
      return made;
    };
    const own = table(['a', 4, 0], ['b', 8, 1]);
    own.compare(1, table(['b', 8, 1], ['a', 4, 0]).seal());
    const difference = (other: KeyTable): unknown => {
      try {
        return own.compare(1, other.seal());
      } catch (error) {
        return error;
      }
    };
    expect(difference(table(['a', 4, 1], ['b', 8, 0]))).toMatchObject({
      code: 'mismatch',
      peer: 1,
      message:
        "rank 1 schedules 'b' (priority 0, 8 bytes) where this rank schedules 'a' (priority 0, 4 bytes), at place 0; every rank registers the same keys, sizes and priorities",
    });
    expect(difference(table(['a', 4, 0]))).toMatchObject({ message: expect.stringContaining('schedules nothing') as string });
    expect(difference(table(['a', 4, 0], ['b', 9, 1]))).toMatchObject({ code: 'mismatch' });
  });
});
