import fc from 'fast-check';
import { expect, it } from 'vitest';
import {
  abortSignal,
  anyNumber,
  anyText,
  checkOptions,
  count,
  flag,
  integer,
  list,
  literal,
  nullable,
  number,
  object,
  optional,
  optionTable,
  parse,
  record,
  tagged,
  text,
  type Shape,
} from './schema.ts';

it.each([
  [number(), [0, -1.5, 1e300], [NaN, Infinity, '1', null, undefined, 1n]],
  [anyNumber, [0, Infinity], [NaN, '1']],
  [number({ min: 0, max: 2 }), [0, 2, 0.5], [-0.1, 2.1]],
  [number({ above: 0, below: 1 }), [0.5], [0, 1]],
  [integer({ min: 1 }), [1, 2 ** 53 - 1], [0, 1.5, 2 ** 53, '1', true]],
  [text(3), ['', 'abc'], ['abcd', 3, null]],
  [flag, [true, false], [0, 'true', undefined]],
  [literal('a', 'b'), ['a', 'b'], ['c', '', 1]],
  [list(integer(), { max: 2 }), [[], [1, 2]], [[1, 2, 3], ['1'], { length: 0 }, [undefined]]],
  [list(integer(), { min: 1 }), [[1]], [[]]],
  [record(anyText), [{}, { a: 'b' }], [[], { a: 1 }, null, new Map()]],
  [optional(anyText), [undefined, 'a'], [null, 1]],
  [nullable(anyText), [null, 'a'], [undefined, 1]],
  [
    object({ a: anyText, b: optional(integer()) }),
    [{ a: '' }, { a: '', b: 1 }, { a: '', c: 1 }],
    [{}, { a: '', b: '1' }, { b: 1 }, [], null],
  ],
  [object({ a: count }, { strict: true }), [{ a: 1 }], [{ a: 1, b: 2 }, {}]],
] as [Shape<unknown>, unknown[], unknown[]][])('shape %#', (shape, right, wrong) => {
  for (const value of right) expect(shape.problem(value), JSON.stringify(value)).toBeUndefined();
  for (const value of wrong) expect(shape.problem(value), String(value)).toBeTypeOf('string');
});

it('tells variants apart by their own type', () => {
  const shape = tagged({ one: { n: integer() }, two: {} });
  for (const right of [{ type: 'one', n: 1 }, { type: 'two' }]) expect(shape.problem(right)).toBeUndefined();
  const inherited = Object.assign(Object.create({ n: 1 }) as object, { type: 'one' });
  for (const wrong of [{ type: 'three' }, { type: 'constructor' }, { n: 1 }, 'one', null, { type: ['one'], n: 1 }, inherited])
    expect(shape.problem(wrong)).toBeTypeOf('string');
});

it('names the field that does not fit, and the values that would', () => {
  const world = object({ ranges: list(object({ from: count, algorithm: literal('ring', 'direct') })) });
  const read = (value: unknown) => () => parse('the answer of rank 3', world, value);
  expect(read({ ranges: [{ from: 0, algorithm: 'ring' }] })()).toEqual({ ranges: [{ from: 0, algorithm: 'ring' }] });
  expect(read({ ranges: [{ from: -1 }] })).toThrow(
    'the answer of rank 3 is not well formed: ranges[0].from must be a whole number from 0, not -1',
  );
  expect(read({ ranges: [{ from: 0, algorithm: 'tree' }] })).toThrow("ranges[0].algorithm must be one of 'ring', 'direct', not 'tree'");
  expect(read([])).toThrow('the answer of rank 3 is not well formed: it must be an object, not a list');
});

it('refuses options that are misspelt or of another kind', () => {
  const known = optionTable<{ timeoutMs?: number; signal?: AbortSignal }>({ timeoutMs: anyNumber, signal: abortSignal });
  const check = (options: { timeoutMs?: number; signal?: AbortSignal }) => () => checkOptions('allReduce', options, known);
  expect(check({ timeoutMs: 1 })).not.toThrow();
  expect(check({ timeoutMS: 1 } as object)).toThrow(
    "allReduce has no option 'timeoutMS'; did you mean 'timeoutMs'? (options: timeoutMs, signal)",
  );
  expect(check({ timeoutMs: '1' } as object)).toThrow("allReduce: option 'timeoutMs' must be a number, not '1'");
  expect(check([] as object)).toThrow('allReduce needs an object with timeoutMs, signal, not a list');
});

it('never throws, whatever JSON holds', () => {
  const shape = tagged({ a: { list: list(record(number())), text: optional(text(2)) } });
  fc.assert(fc.property(fc.jsonValue(), (value) => void shape.problem(value)));
});
