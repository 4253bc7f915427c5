/** Kernels of hash tables, and of ids that are dealt to the parts of a table. */
import { ShoalError } from '../../base/errors.ts';
import type { Kernel, KernelTable } from '../execute/kernel.ts';
import type { Reference } from '../execute/variable-store.ts';
import type { Attributes } from '../structure/definition.ts';
import { countOf, elementsAs, elementsOf, elementsValue, emptyElements } from '../structure/elements.ts';
import type { Value } from '../structure/value.ts';
import { HashTable, type Admission } from './hash-table.ts';

const admissionOf = ({ filter_freq, steps_to_live }: Attributes): Admission => ({
  filterFreq: filter_freq as number,
  stepsToLive: steps_to_live as number,
});

const initialize: Kernel = ({ node, inputs: [ref, defaults] }) => {
  if (defaults.shape.length !== 2 || defaults.shape[0] === 0)
    throw new ShoalError('usage', 'the defaults of a table are rows, at least one');
  (ref as Reference).write(new HashTable(defaults, admissionOf(node.attributes)));
  return [];
};

const gather: Kernel = ({ inputs: [ref, keys] }) => {
  const table = (ref as Reference).peek() as HashTable;
  return [elementsValue(table.dtype, [...keys.shape, table.width], table.gather(keys))];
};

const load: Kernel = ({ node, inputs: [ref, ...exported] }) => {
  (ref as Reference).write(HashTable.of(exported, admissionOf(node.attributes)));
  return [];
};

const evict: Kernel = ({ inputs: [ref, step] }) => {
  changedTable(ref).evict(Number(elementsOf(step)[0]));
  return [];
};

/** A table, to be changed in place. */
export function changedTable(ref: Value): HashTable {
  return (ref as Reference).change((value) => (value as HashTable).copy());
}

const partitionIds: Kernel = ({ node: { attributes }, inputs: [ids] }) => {
  const [parts, total] = [attributes.num_partitions as number, attributes.rows as number];
  const strategy = placements[attributes.strategy as string];
  const [rows, places] = [0, 1].map(() => Array.from({ length: parts }, (): number[] => []));
  const keys: bigint[][] = Array.from({ length: parts }, () => []);
  const list = elementsOf(ids);
  for (let k = 0; k < list.length; k++) {
    if (strategy === undefined) {
      const part = Number(((BigInt(list[k]) % BigInt(parts)) + BigInt(parts)) % BigInt(parts));
      keys[part].push(BigInt(list[k]));
      places[part].push(k);
      continue;
    }
    const id = Number(list[k]);
    if (id < 0 || id >= total) throw new ShoalError('usage', `id ${id} at ${k} is outside a table of ${total} rows`);
    const [part, row] = strategy(id, parts, total);
    rows[part].push(row);
    places[part].push(k);
  }
  const valueOf = (dtype: string, each: readonly number[]): Value => elementsValue(dtype, [each.length], elementsAs(dtype, each));
  const found =
    strategy === undefined ? keys.map((each) => valueOf(ids.dtype, each as never)) : rows.map((each) => valueOf(ids.dtype, each));
  return [...found, ...places.map((each) => valueOf('int32', each))];
};

/** The part and the row there of an id; what is not here keeps its id, in the part of its remainder. */
const placements: Readonly<Record<string, (id: number, parts: number, total: number) => readonly [number, number]>> = {
  mod: (id, parts) => [id % parts, Math.floor(id / parts)],
  div: (id, parts, total) => {
    const [least, more] = [Math.floor(total / parts), total % parts];
    const large = more * (least + 1);
    if (id < large) return [Math.floor(id / (least + 1)), id % (least + 1)];
    return [more + Math.floor((id - large) / least), (id - large) % least];
  },
};

const joinElements: Kernel = ({ node, inputs }) => {
  const { dtype } = node.outputs[0];
  const count = inputs.reduce((sum, { shape }) => sum + countOf(shape), 0);
  const target = emptyElements(dtype, count);
  let at = 0;
  for (const input of inputs) {
    const elements = elementsOf(input);
    target.set(elements as never, at);
    at += elements.length;
  }
  return [elementsValue(dtype, [target.length], target)];
};

export const embeddingKernels: KernelTable = {
  InitializeKvVariable: initialize,
  KvResourceGather: gather,
  KvResourceExport: ({ inputs: [ref] }) => ((ref as Reference).peek() as HashTable).export(),
  KvResourceImport: load,
  KvResourceEvict: evict,
  PartitionIds: partitionIds,
  JoinElements: joinElements,
};
