/** SavedModels of TensorFlow: a folder with `saved_model.pb`, a GraphDef with signatures, and `variables`, a checkpoint. */
import { join } from 'node:path';
import { ShoalError } from '../base/errors.ts';
import { anyList, checkOptions, describeValue, optionTable } from '../base/schema.ts';
import type { Graph } from '../graph/structure/graph.ts';
import type { DenseValue, Value } from '../graph/structure/value.ts';
import { inlined, inputsOf } from './functions.ts';
import { decoded, loadCodec, type NodeProto, type SavedModelProto, type TensorInfoProto } from './graph-def.ts';
import { graphOfProto } from './import-graph-def.ts';
import { readBundle, readFile } from './tensor-bundle.ts';
import { Budget, valueOfProto } from './tensor.ts';
import { fillsTable } from './translations.ts';

/** A graph, and the names by which it is used. */
export interface SavedModel {
  /** The graph that the signatures need, with `restore`; a `Session` runs it. */
  readonly graph: Graph;
  /** Node that gives all variables the values that were saved: `session.run([], [restore])`. */
  readonly restore: string;
  /** Names of tensors, to be fed and fetched, by signature and by their names in it. */
  readonly signatures: Readonly<Record<string, Signature>>;
}

/** A function of a SavedModel: the tensors that it takes, and that it gives. */
export interface Signature {
  /** Names of the tensors to feed, by the names that the signature gives them. */
  readonly inputs: Readonly<Record<string, string>>;
  /** Names of the tensors to fetch, by the names that the signature gives them. */
  readonly outputs: Readonly<Record<string, string>>;
}

/** Options of `importSavedModel`. */
export interface SavedModelOptions {
  /** Signatures that are imported, with the nodes that they need. Default: all whose names do not begin with `__`. */
  readonly signatures?: readonly string[];
}

const optionKeys = optionTable<SavedModelOptions>({ signatures: anyList });

/** Imports what the signatures of the graph that is tagged `serve` need.
 *  @param folder with `saved_model.pb`.
 *  @throws ShoalError `system` when a file cannot be read, `protocol` for one that is no SavedModel, and whatever `importGraphDef`
 *  refuses. */
export async function importSavedModel(folder: string, options: SavedModelOptions = {}): Promise<SavedModel> {
  if (typeof folder !== 'string')
    throw new ShoalError('usage', `importSavedModel takes the path of a folder, not ${describeValue(folder)}`);
  checkOptions('importSavedModel', options, optionKeys);
  const path = join(folder, 'saved_model.pb');
  const { metaGraphs } = decoded(await loadCodec('SavedModel'), await readFile(path), `SavedModel, in ${path}`) as SavedModelProto;
  const meta = metaGraphs.find(({ metaInfoDef }) => metaInfoDef?.tags.includes('serve')) ?? metaGraphs[0];
  if (meta?.graphDef == null) throw new ShoalError('protocol', `${path} has no graph`);
  const { signatureDef, graphDef } = meta;
  const wanted = options.signatures ?? Object.keys(signatureDef).filter((name) => !name.startsWith('__'));
  const missing = wanted.find((name) => !Object.hasOwn(signatureDef, name));
  if (missing !== undefined)
    throw new ShoalError('usage', `${path} has no signature '${missing}'; it has ${Object.keys(signatureDef).join(', ')}`);
  const signatures = Object.fromEntries(
    wanted.map((name): [string, Signature] => [
      name,
      { inputs: named(signatureDef[name].inputs), outputs: named(signatureDef[name].outputs) },
    ]),
  );
  const given = new Map(wanted.flatMap((name) => Object.values(signatureDef[name].inputs)).map((info) => [info.name, info]));
  const { nodes, restore, keys } = restored(inlined(graphDef).map((node) => fed(node, given.get(`${node.name}:0`))));
  const roots = [restore, ...Object.values(signatures).flatMap(({ outputs }) => Object.values(outputs))];
  const needed = reachable(nodes, [...roots, ...nodes.filter(fillsTable).map(({ name }) => name)]);
  const used = new Map([...keys].filter(([name]) => needed.has(name)));
  const values =
    used.size === 0 ? new Map<string, Value>() : await readBundle(join(folder, 'variables', 'variables'), new Set(used.values()));
  const graph = graphOfProto(
    path,
    { node: nodes.filter(({ name }) => needed.has(name)), versions: graphDef.versions, library: null },
    ({ name }) => values.get(used.get(name) ?? ''),
  );
  return { graph, restore, signatures };
}

/** An input of a signature is fed: what would compute it is not needed. */
function fed(node: NodeProto, info: TensorInfoProto | undefined): NodeProto {
  if (info === undefined || node.input.length === 0 || node.op.startsWith('Placeholder')) return node;
  const shape = info.tensorShape ?? { dim: [], unknownRank: true };
  return { ...node, op: 'Placeholder', input: [], attr: { dtype: { type: info.dtype }, shape: { shape } } };
}

function named(tensors: Readonly<Record<string, TensorInfoProto>>): Record<string, string> {
  return Object.fromEntries(Object.entries(tensors).map(([key, { name }]) => [key, name]));
}

/** The name in `^a`, `a:1` and `a`. */
function producer(input: string): string {
  return input.replace('^', '').replace(/:\d+$/, '');
}

interface Restored {
  readonly nodes: readonly NodeProto[];
  readonly restore: string;
  /** Keys of the checkpoint by constants. */
  readonly keys: ReadonlyMap<string, string>;
}

/** Makes constants of the tensors that a RestoreV2 reads from the checkpoint, and a NoOp that runs after all assignments of them. */
function restored(nodes: readonly NodeProto[]): Restored {
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const keys = new Map<string, string>();
  for (const node of nodes) {
    if (node.op !== 'RestoreV2') continue;
    const [, names, slices] = inputsOf(node).values.map((input) => textsOf(byName.get(producer(input))));
    if (slices?.some((each) => each !== ''))
      throw new ShoalError('unsupported', `RestoreV2 '${node.name}' reads slices of variables; it cannot be imported`);
    names?.forEach((key, slot) => keys.set(`${node.name}/tensor_${slot}`, key));
  }
  const constantOf = (input: string): string => {
    const name = producer(input);
    if (byName.get(name)?.op !== 'RestoreV2' || input.startsWith('^')) return input;
    return `${name}/tensor_${/:(\d+)$/.exec(input)?.[1] ?? 0}`;
  };
  const isRestored = (given: string): boolean => {
    let input = given;
    for (let steps = 0; steps <= nodes.length && !keys.has(constantOf(input)); steps++) {
      const node = byName.get(producer(input));
      if (node?.op !== 'Identity' || node.input.length === 0) return false;
      [input] = node.input;
    }
    return keys.has(constantOf(input));
  };
  const assigns = nodes.filter(({ op, input }) => (op === 'Assign' || op === 'AssignVariableOp') && isRestored(input[1] ?? ''));
  let restore = 'restore';
  while (byName.has(restore)) restore += '_';
  const made = [
    ...[...keys.keys()].map((name): NodeProto => ({ name, op: 'Const', input: [], attr: {}, device: '' })),
    { name: restore, op: 'NoOp', input: assigns.map(({ name }) => `^${name}`), attr: {}, device: '' },
  ];
  const rest = nodes.filter(({ op }) => op !== 'RestoreV2').map((node) => ({ ...node, input: node.input.map(constantOf) }));
  return { nodes: [...rest, ...made], restore, keys };
}

/** The strings of a Const. */
function textsOf(node: NodeProto | undefined): readonly string[] | undefined {
  const tensor = node?.op === 'Const' ? node.attr.value?.tensor : undefined;
  if (tensor === undefined) return undefined;
  const fail = (why: string): never => {
    throw new ShoalError('protocol', `Const '${node?.name}': ${why}`);
  };
  return (valueOfProto(tensor, new Budget(), fail) as DenseValue).data as readonly string[];
}

/** Names of nodes that others need. */
function reachable(nodes: readonly NodeProto[], roots: readonly string[]): ReadonlySet<string> {
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const needed = new Set<string>();
  const open = roots.map(producer);
  for (let name = open.pop(); name !== undefined; name = open.pop()) {
    if (needed.has(name)) continue;
    needed.add(name);
    open.push(...(byName.get(name)?.input ?? []).map(producer));
  }
  return needed;
}
