import { expect, it } from 'vitest';
import { checkOp, parseDtype, parseKinds, parseOp, parseSizes, sizesOf } from './options.ts';

const counts = { iterations: 20, warmup: 5 };
const range = { minBytes: 8, maxBytes: 32, stepBytes: 8, stepFactor: 1 };

it('steps through sizes by bytes or by a factor', () => {
  expect(sizesOf(range, counts).map(({ bytes }) => bytes)).toEqual([8, 16, 24, 32]);
  expect(sizesOf({ ...range, stepFactor: 2 }, counts)).toEqual([8, 16, 32].map((bytes) => ({ bytes, iterations: 20, warmup: 5 })));
});

it('refuses ranges that never end or are empty', () => {
  expect(() => sizesOf({ ...range, stepBytes: 0 }, counts)).toThrow(/--stepbytes/);
  expect(() => sizesOf({ ...range, minBytes: 0, stepFactor: 2 }, counts)).toThrow(/never grows/);
  expect(() => sizesOf({ ...range, minBytes: 64 }, counts)).toThrow(/exceeds --maxbytes/);
  expect(() => sizesOf({ ...range, maxBytes: 2 ** 30 }, counts)).toThrow(/more than 1000 sizes/);
});

it('reads lists of sizes with their iterations', () => {
  expect(parseSizes('8:2000,1KiB,64:100:0', counts)).toEqual([
    { bytes: 8, iterations: 2000, warmup: 5 },
    { bytes: 1024, iterations: 20, warmup: 5 },
    { bytes: 64, iterations: 100, warmup: 0 },
  ]);
  for (const bad of ['', '8:', '8:0', 'x', '8,,16', '8:1.5', '8:1:-1', '8:1:2:3'])
    expect(() => parseSizes(bad, counts)).toThrow(/not a size/);
  expect(() => parseSizes('8,'.repeat(1000) + '8', counts)).toThrow(/1001 sizes; at most 1000/);
});

it("understands nccl-tests' names and our own", () => {
  expect(['float', 'float32', 'half', 'double', 'bfloat16', 'int8'].map(parseDtype)).toEqual([
    'float32',
    'float32',
    'float16',
    'float64',
    'bfloat16',
    'int8',
  ]);
  expect(['sum', 'prod', 'product', 'avg', 'bxor'].map(parseOp)).toEqual(['sum', 'product', 'product', 'avg', 'bit-xor']);
  expect(() => parseDtype('quad')).toThrow(/double, float, half/);
  expect(() => parseOp('premul')).toThrow(/sum, prod/);
});

it('refuses operators that are not defined on the elements, for collectives that reduce', () => {
  expect(() => checkOp('all-reduce', 'bit-xor', 'float32')).toThrow(/--op bxor with --datatype float: .*needs an integer dtype/);
  expect(() => checkOp('reduce-scatter', 'avg', 'int32')).toThrow(/--op avg with --datatype int32: .*needs a float dtype/);
  checkOp('all-reduce', 'bit-xor', 'uint8');
  checkOp('broadcast', 'bit-xor', 'float32');
});

it('takes all types and operators that are defined on each other', () => {
  const shared = { collective: 'all-reduce', memory: 'shared' } as const;
  const all = parseKinds(shared, { datatype: 'all', op: 'all' });
  expect(all.filter(({ dtype }) => dtype === 'float16').map(({ op }) => op)).toEqual(['sum', 'product', 'min', 'max', 'avg']);
  expect(all.filter(({ op }) => op === 'bit-xor').map(({ dtype }) => dtype)).toContain('bool');
  expect(new Set(all.map(({ dtype }) => dtype)).size).toBe(12);
  expect(parseKinds(shared, { datatype: 'int8', op: 'all' }).map(({ op }) => op)).not.toContain('avg');
  const plain = parseKinds({ ...shared, memory: 'private' }, { datatype: 'all', op: 'sum' }).map(({ dtype }) => dtype);
  expect(plain).toEqual(['float64', 'float32', 'int64', 'int32', 'int16', 'int8', 'uint32', 'uint16', 'uint8']);
  expect(parseKinds({ ...shared, collective: 'broadcast' }, { datatype: 'half', op: 'all' })).toEqual([{ dtype: 'float16', op: 'sum' }]);
  expect(() => parseKinds(shared, { datatype: 'float', op: 'bxor' })).toThrow(/needs an integer dtype/);
});
