import fc from 'fast-check';
import { expect, it } from 'vitest';
import { flag, integer, list, literal, number, object, optional, record, tagged, text, type Shape } from './schema.ts';

const fits = (shape: Shape<unknown>, value: unknown): boolean => shape.read(value) !== undefined;

it.each([
  [number(), [0, -1.5, 1e300], [NaN, Infinity, '1', null, undefined, 1n]],
  [number({ min: 0, max: 2 }), [0, 2, 0.5], [-0.1, 2.1]],
  [integer({ min: 1 }), [1, 2 ** 53 - 1], [0, 1.5, 2 ** 53, '1', true]],
  [text(3), ['', 'abc'], ['abcd', 3, null]],
  [flag(), [true, false], [0, 'true', undefined]],
  [literal('a', 'b'), ['a', 'b'], ['c', '', 1]],
  [list(integer(), 2), [[], [1, 2]], [[1, 2, 3], ['1'], { length: 0 }, [undefined]]],
  [record(text()), [{}, { a: 'b' }], [[], { a: 1 }, null, new Map()]],
  [optional(text()), [undefined, 'a'], [null, 1]],
  [
    object({ a: text(), b: optional(integer()) }),
    [{ a: '' }, { a: '', b: 1 }, { a: '', c: 1 }],
    [{}, { a: '', b: '1' }, { b: 1 }, [], null],
  ],
] as [Shape<unknown>, unknown[], unknown[]][])('shape %#', (shape, right, wrong) => {
  for (const value of right) expect(fits(shape, value), JSON.stringify(value)).toBe(true);
  for (const value of wrong) expect(fits(shape, value), String(value)).toBe(false);
});

it('gives back what it has looked at, and nothing that comes with it', () => {
  const shape = tagged({ one: { n: integer(), part: optional(object({ t: text() })) }, two: {} });
  expect(shape.read({ type: 'one', n: 1, part: { t: 'x', more: 1 }, other: 2 })?.value).toEqual({ type: 'one', n: 1, part: { t: 'x' } });
  expect(shape.read(JSON.parse('{"type":"two","__proto__":{"n":1}}'))?.value).toEqual({ type: 'two' });
  for (const wrong of [{ type: 'three' }, { type: 'constructor' }, { n: 1 }, 'one', null, { type: ['one'], n: 1 }])
    expect(shape.read(wrong)).toBeUndefined();
  const inherited = Object.assign(Object.create({ n: 1 }) as object, { type: 'one' });
  expect(shape.read(inherited)).toBeUndefined();
});

it('never throws, whatever JSON holds', () => {
  const shape = tagged({ a: { list: list(record(number())), text: optional(text(2)) } });
  fc.assert(fc.property(fc.jsonValue(), (value) => void shape.read(value)));
});
