/** Rows and numbers by key: sums of rows of a table, strings as numbers. */
import type { OpDefinition } from '../structure/definition.ts';
import { indexDTypes } from '../structure/graph-dtype.ts';
import { anyType, define, floating } from './op.ts';

const index = { kind: 'type', allowed: indexDTypes } as const;

/** Operations that programs add by `g.node`. */
export const lookupOps: readonly OpDefinition[] = [
  ...['SparseSegmentSum', 'SparseSegmentMean'].map((name) => ({
    ...define(
      name,
      { data: 'T', indices: 'Tidx', segment_ids: 'Tsegmentids' },
      { ...floating, Tidx: index, Tsegmentids: index },
      ({ inputs: [{ dtype, shape }] }) => [{ dtype, shape: shape === 'unknown' ? shape : [null, ...shape.slice(1)] }],
    ),
    isSparse: true,
  })),
  define(
    'StringToHashBucketFast',
    { input: 'string' },
    { num_buckets: { kind: 'int', least: 1 } },
    ({ inputs: [{ shape }], integer, fail }) => {
      if (integer('num_buckets') > 2 ** 31) fail(`${integer('num_buckets')} buckets are more than 2³¹`);
      return [{ dtype: 'int64', shape }];
    },
  ),
  define(
    'LookupTableFindV2',
    { keys: 'Tin', default_value: 'Tout', table_keys: 'Tin', table_values: 'Tout' },
    { Tin: anyType.T, Tout: anyType.T },
    ({ inputs: [{ shape }], dtype }) => [{ dtype: dtype('Tout'), shape }],
  ),
];
