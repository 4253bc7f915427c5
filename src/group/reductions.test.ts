/** Every operator has the same bits from every canonical algorithm, for every dtype: products and divisions too. The reference for
 *  floats is computed here: products and sums of the accumulator's precision, one division, one rounding to the element's. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../base/random.ts';
import { whyUnsupported } from '../collectives/build.ts';
import { algorithms } from '../collectives/registry.ts';
import { createKernels } from '../memory/kernels/create-kernels.ts';
import { dtypeInfo, dtypes, viewOf, type DType } from '../memory/dtype.ts';
import { combineOpOf, ReduceOp, reduceOps, checkReduceOp } from '../memory/reduce-op.ts';
import { canonicalTree, type AssociationTree } from '../plan/association.ts';
import type { Topology } from '../plan/topology.ts';
import type { CommGroup } from './api/process-group.ts';
import { startRanks, type InProcessOptions } from './testing/in-process-world.ts';

interface Reduction {
  readonly dtype: DType;
  readonly op: ReduceOp;
}

const reductions: readonly Reduction[] = dtypes.flatMap(({ name: dtype }) =>
  reduceOps.filter((op) => isDefined(op, dtype)).map((op) => ({ dtype, op })),
);

function isDefined(op: ReduceOp, dtype: DType): boolean {
  try {
    checkReduceOp(op, dtype);
    return true;
  } catch {
    return false;
  }
}

/** Conversions and one combination at a time: what a reduction is made of. */
const kernels = createKernels();

function valuesOf(dtype: DType, rank: number, count: number): Uint8Array {
  const random = seededRandom(rank + 77);
  const wide = Float64Array.from({ length: count }, () => (random.next() - 0.5) * 2 ** (random.integer(24) - 8));
  const bytes = new Uint8Array(count * dtypeInfo(dtype).bytes);
  kernels.convert(dtype, bytes, 'float64', new Uint8Array(wide.buffer));
  return bytes;
}

/** Unlike powers of two, and with more digits than 16-bit floats have. */
function factorOf(rank: number): number {
  return 1.1 + rank / 3;
}

/** One operation after the other, each rounded to the accumulator's type. */
function expectedOf({ dtype, op }: Reduction, tree: AssociationTree, count: number): Uint8Array {
  const accumulator = dtype === 'float16' || dtype === 'bfloat16' ? 'float32' : dtype;
  const bytes = count * dtypeInfo(accumulator).bytes;
  const leaf = (rank: number): Uint8Array => {
    const value = new Uint8Array(bytes);
    kernels.convert(accumulator, value, dtype, valuesOf(dtype, rank, count));
    if (op === ReduceOp.Premul)
      each(accumulator, value, (element) => element * (accumulator === 'float32' ? Math.fround(factorOf(rank)) : factorOf(rank)));
    return value;
  };
  const visit = (node: AssociationTree): Uint8Array => {
    if (node.kind === 'leaf') return leaf(node.rank);
    const result = new Uint8Array(bytes);
    kernels.reduce(accumulator, combineOpOf(op), [result], [visit(node.left), visit(node.right)], [0, 1, -1]);
    return result;
  };
  const total = visit(tree);
  if (op === ReduceOp.Avg) each(accumulator, total, (element) => element / ranksOf(tree));
  const result = new Uint8Array(count * dtypeInfo(dtype).bytes);
  kernels.convert(dtype, result, accumulator, total);
  return result;
}

function each(dtype: DType, bytes: Uint8Array, change: (value: number) => number): void {
  const view = viewOf(dtype as 'float32' | 'float64', bytes.buffer, 0, bytes.length / dtypeInfo(dtype).bytes);
  for (let i = 0; i < view.length; i++) view[i] = change(view[i]);
}

function ranksOf(tree: AssociationTree): number {
  return tree.kind === 'leaf' ? 1 : ranksOf(tree.left) + ranksOf(tree.right);
}

function canonicalFor(topology: Topology, count: number): string[] {
  const request = { collective: 'all-reduce', topology, count, elementBytes: 8 } as const;
  return algorithms
    .filter((one) => one.build['all-reduce'] && one.association === 'canonical' && whyUnsupported(one, request) === undefined)
    .map(({ name }) => name);
}

async function reduced(group: CommGroup, { dtype, op }: Reduction, count: number): Promise<Uint8Array> {
  const tensor = group.tensor(dtype, [count]);
  const bytes = new Uint8Array(tensor.region.buffer, tensor.byteOffset, tensor.bytes);
  bytes.set(valuesOf(dtype, group.rank, count));
  await group.allReduce(tensor, op === ReduceOp.Premul ? { op, factor: factorOf(group.rank) } : { op });
  const result = bytes.slice();
  group.release(tensor);
  return result;
}

interface Place {
  readonly n: number;
  readonly hosts: string;
  readonly kind: NonNullable<InProcessOptions['kind']>;
}

const places: readonly Place[] = [
  { n: 2, hosts: 'aa', kind: 'host' },
  { n: 3, hosts: 'aaa', kind: 'host' },
  { n: 4, hosts: 'abab', kind: 'host' },
  { n: 3, hosts: 'abc', kind: 'host' },
  { n: 5, hosts: 'aaaaa', kind: 'host' },
  { n: 6, hosts: 'abcdef', kind: 'host' },
];

describe.each(places)('$n ranks on hosts $hosts', ({ n, hosts, kind }) => {
  it('every operator on every dtype: one result, from all algorithms', async () => {
    await using world = await startRanks(n, { kind, hostIds: Array.from(hosts) });
    const { topology } = world.groups[0];
    const tree = canonicalTree(topology);
    const names = canonicalFor(topology, 64);
    expect(names.length).toBeGreaterThan(4);
    const ranks = Array.from({ length: n }, (_, rank) => rank);
    for (const backend of names) {
      const groups = await world.each(async (group) => (await group.newGroup(ranks, { backend })) as CommGroup);
      await fc.assert(
        fc.asyncProperty(fc.constantFrom(...reductions), fc.integer({ min: 1, max: 64 }), async (reduction, count) => {
          const expected = expectedOf(reduction, tree, count);
          const results = await Promise.all(groups.map((group) => reduced(group, reduction, count)));
          for (const result of results)
            expect(Buffer.compare(result, expected), `${reduction.dtype} ${reduction.op} by ${backend}`).toBe(0);
        }),
        { numRuns: 60, seed: n },
      );
      for (const reduction of reductions.filter(({ op }) => op === ReduceOp.Premul || op === ReduceOp.Avg)) {
        const results = await Promise.all(groups.map((group) => reduced(group, reduction, 33)));
        const expected = expectedOf(reduction, tree, 33);
        for (const result of results) expect(Buffer.compare(result, expected), `${reduction.dtype} ${reduction.op} by ${backend}`).toBe(0);
      }
      await Promise.all(groups.map((group) => group.destroy()));
    }
  });
});

it('a product beyond the range of a half is no infinity when the sum is within it', async () => {
  await using world = await startRanks(2);
  for (const backend of ['auto', 'tree', 'direct', 'ring', 'one-shot', 'halving-doubling']) {
    const sums = await world.each(async (group) => {
      const pair = (await group.newGroup([0, 1], { backend })) as CommGroup;
      const x = pair.tensor('float16', [1]);
      // 60000 × 1.5 − 60000 × 1.
      x.data[0] = group.rank === 0 ? 0x7b53 : 0xfb53;
      await pair.allReduce(x, { op: ReduceOp.Premul, factor: group.rank === 0 ? 1.5 : 1 });
      return x.data[0];
    });
    // 30000 is 0x7753.
    expect(sums, backend).toEqual([0x7753, 0x7753]);
  }
});
