/** Sums have the bits of the canonical tree of the world, whatever canonical algorithm computes them, in whatever slices, with however
 *  many operations in flight, and wherever the numbers lie. The reference is computed here, one addition after another. */
import { describe, expect, it } from 'vitest';
import { seededRandom } from '../base/random.ts';
import type { Settings } from '../base/settings/settings.ts';
import { whyUnsupported } from '../collectives/build.ts';
import { algorithms } from '../collectives/registry.ts';
import { canonicalTree, type AssociationTree } from '../plan/association.ts';
import type { PlanRequest } from '../plan/ir.ts';
import { rankCount, separateHosts, type Topology } from '../plan/topology.ts';
import type { CommGroup } from './api/process-group.ts';
import { startRanks, type InProcessOptions } from './testing/in-process-world.ts';

/** Several slices and pieces of the small settings; what a mailbox holds. */
const [count, mailboxCount] = [6007, 1013];

const KiB = 1024;
const variants: Readonly<Record<string, Partial<Settings>>> = {
  'default settings': {},
  'slices of 4 KiB, one operation in flight': { sliceBytes: 4 * KiB, stagingBytes: 8 * KiB, inFlightMax: 1 },
  'slices of 16 KiB, staging for little more, three in flight': { sliceBytes: 16 * KiB, stagingBytes: 24 * KiB, inFlightMax: 3 },
};

interface Place {
  readonly name: string;
  /** One letter per rank. */
  readonly hosts: string;
  readonly kind: InProcessOptions['kind'];
}

const twoLevel: Readonly<Record<number, string>> = { 3: 'aab', 4: 'abab', 5: 'abbba', 6: 'aabbcc', 7: 'abcabca', 8: 'abbaabba' };

/** Beyond that, less of what takes long. */
const manyRanks = 5;

function placesOf(n: number): Place[] {
  const letters = 'abcdefgh'.slice(0, n);
  const sending: Place[] = n > manyRanks ? [] : [{ name: 'one host, by sending', hosts: 'a'.repeat(n), kind: 'network' }];
  const levels: Place[] = twoLevel[n] ? [{ name: `hosts ${twoLevel[n]}`, hosts: twoLevel[n], kind: 'host' }] : [];
  return [
    { name: 'one host', hosts: 'a'.repeat(n), kind: 'host' },
    ...sending,
    { name: 'every rank on its own host', hosts: letters, kind: 'host' },
    ...levels,
  ];
}

/** The input of each rank: magnitudes over 24 binary orders, so that the order of additions shows. */
const inputs = Array.from({ length: 8 }, (_, rank) => {
  const random = seededRandom(1000 + rank);
  return Float32Array.from({ length: count }, () => (random.next() - 0.5) * 2 ** (random.integer(24) - 12));
});

type Inputs = readonly Float32Array[];

/** The tree, node by node. */
function sumBy(tree: AssociationTree, values: Inputs): Float32Array {
  if (tree.kind === 'leaf') return values[tree.rank];
  const [left, right] = [sumBy(tree.left, values), sumBy(tree.right, values)];
  return left.map((value, i) => Math.fround(value + right[i]));
}

/** The upper halves: bfloat16 of numbers that it can represent. */
function upperHalves(values: Float32Array): Uint16Array {
  return new Uint16Array(values.buffer, values.byteOffset, values.length * 2).filter((_, i) => i % 2 === 1);
}

/** Numbers as bfloat16 keeps them: to the nearest, ties to even. */
function rounded(values: Float32Array): Float32Array {
  const bits = new Uint32Array(values.slice().buffer);
  return new Float32Array(bits.map((each) => (each + 0x7fff + ((each >>> 16) & 1)) & 0xffff0000).buffer);
}

function bitsOf(array: ArrayBufferView): string {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString('base64');
}

interface Expected {
  readonly float32: string;
  readonly bfloat16: string;
}

function expectedOf(topology: Topology, length: number): Expected {
  const tree = canonicalTree(topology);
  const values = inputs.map((each) => each.slice(0, length));
  const halves = rounded(sumBy(tree, values.map(rounded)));
  return { float32: bitsOf(sumBy(tree, values)), bfloat16: bitsOf(upperHalves(halves)) };
}

/** The canonical algorithms for a topology. Those that need one host load and store there. */
function canonicalFor(topology: Topology, kind: Place['kind']): string[] {
  const request: PlanRequest = {
    collective: 'all-reduce',
    topology: kind === 'network' ? separateHosts(rankCount(topology)) : topology,
    count: mailboxCount,
    elementBytes: 4,
  };
  const served = algorithms.filter((each) => each.build['all-reduce'] && whyUnsupported(each, request) === undefined);
  return served.filter(({ association }) => association === 'canonical').map(({ name }) => name);
}

/** The sum of everyone's input as a group has it that uses one algorithm: of tensors and private arrays, several in flight. */
async function sumsOf(world: CommGroup, algorithm: string, length: number): Promise<Expected[]> {
  const ranks = Array.from({ length: world.size }, (_, rank) => rank);
  const group = await world.newGroup(ranks, { backend: algorithm });
  if (!group) throw new Error('every rank is in the group');
  const input = inputs[world.rank].subarray(0, length);
  const halves = group.tensor('bfloat16', [length]);
  halves.data.set(upperHalves(rounded(input)));
  const privates = [0, 1, 2].map((k) => (k === 0 ? true : k === 1 ? false : world.rank % 2 === 0));
  const values = privates.map((isPrivate) => (isPrivate ? new Float32Array(length) : group.tensor('float32', [length])));
  const data = values.map((value) => (value instanceof Float32Array ? value : value.data));
  for (const each of data) each.set(input);
  await Promise.all([...values, halves].map((value) => group.allReduce(value)));
  await group.destroy();
  return data.map((each) => ({ float32: bitsOf(each), bfloat16: bitsOf(halves.data) }));
}

describe.each([2, 3, 4, 5, 6, 7, 8])('%s ranks', (n) => {
  it.each(placesOf(n))('$name: the canonical bits from all algorithms, with all settings', async ({ hosts, kind }) => {
    const used = new Set<string>();
    for (const [variant, settings] of Object.entries(variants).slice(n > manyRanks ? 1 : 0)) {
      await using world = await startRanks(n, { kind, hostIds: Array.from(hosts), settings });
      const { topology } = world.groups[0];
      for (const algorithm of canonicalFor(topology, kind)) {
        const length = algorithm === 'mailbox' ? mailboxCount : count;
        const expected = expectedOf(topology, length);
        for (const sum of (await world.each((group) => sumsOf(group, algorithm, length))).flat()) {
          expect(sum.float32 === expected.float32, `float32 by ${algorithm}, ${variant}`).toBe(true);
          expect(sum.bfloat16 === expected.bfloat16, `bfloat16 by ${algorithm}, ${variant}`).toBe(true);
        }
        used.add(algorithm);
      }
    }
    expect([...used]).toEqual(expect.arrayContaining(['mailbox', 'one-shot', 'tree', 'halving-doubling', 'direct']));
    const perHost = new Set(Array.from(hosts, (host) => Array.from(hosts).filter((each) => each === host).length));
    expect(used.has('fairring'), 'fairring: where hosts have equally many ranks').toBe(perHost.size === 1);
  });
});

it('ring, which is relaxed, differs: the inputs do tell orders apart', async () => {
  await using world = await startRanks(5);
  const expected = expectedOf(world.groups[0].topology, count);
  const sums = await world.each((group) => sumsOf(group, 'ring', count));
  expect(new Set(sums.flat().map(({ float32 }) => float32)).size, 'all ranks have the same bits').toBe(1);
  expect(sums[0][0].float32).not.toBe(expected.float32);
});
