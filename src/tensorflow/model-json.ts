/** Graph models of TensorFlow.js: a `model.json` with a GraphDef as JSON, and files of weights beside it. */
import { dirname, isAbsolute, join } from 'node:path';
import { bytesOf, textOf } from '../base/bytes.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { describeValue, isPlainObject } from '../base/schema.ts';
import type { Fail } from '../graph/structure/definition.ts';
import { countOf, elementsOf, elementsValue } from '../graph/structure/elements.ts';
import type { Graph } from '../graph/structure/graph.ts';
import { elementBytes, isGraphDType } from '../graph/structure/graph-dtype.ts';
import { isShape } from '../graph/structure/shape.ts';
import type { Value } from '../graph/structure/value.ts';
import { graphFromJson, loadCodec } from './graph-def.ts';
import { graphOfProto } from './import-graph-def.ts';
import { bytesMax, readFile } from './tensor-bundle.ts';
import { hasElements, valueOfBytes } from './tensor.ts';
import type { ValueSource } from './translate.ts';
import { createKernels } from '../memory/kernels/create-kernels.ts';

/** @param path of `model.json`; files of weights are beside it.
 *  @throws ShoalError `system` when a file cannot be read, `protocol` for one that is no graph model, and whatever `importGraphDef`
 *  refuses. */
export async function importModelJson(path: string): Promise<Graph> {
  if (typeof path !== 'string') throw new ShoalError('usage', `importModelJson takes the path of a model.json, not ${describeValue(path)}`);
  const bad = (why: string): never => {
    throw new ShoalError('protocol', `${path} ${why}`);
  };
  const model = parsed((await readFile(path)).toString(), bad);
  const { modelTopology, modelInitializer, weightsManifest = [], format } = model;
  if (format === 'layers-model') throw new ShoalError('unsupported', `${path} is a layers model; convert it to a graph model`);
  if (!isPlainObject(modelTopology) || !Array.isArray((modelTopology as { node?: unknown }).node))
    return bad('has no modelTopology with nodes: it is no graph model');
  const weights = await readWeights(dirname(path), weightsManifest, bad);
  const valueOf: ValueSource = (node, fail) => {
    const found = weights.get(node.name) ?? weights.get(node.original ?? '');
    const inline = node.attr.value?.tensor ?? undefined;
    if (found === undefined && (inline === undefined || !hasElements(inline))) return fail('its value is not among the weights');
    return found;
  };
  const type = await loadCodec();
  const { node, ...rest } = graphFromJson(type, modelTopology);
  const names = new Set(node.map(({ name }) => name));
  // These nodes fill the tables; a table itself is in both graphs.
  const more = isPlainObject(modelInitializer) ? graphFromJson(type, modelInitializer).node.filter(({ name }) => !names.has(name)) : [];
  return graphOfProto(path, { ...rest, node: [...node, ...more] }, valueOf);
}

function parsed(text: string, bad: Fail): Record<string, unknown> {
  let model: unknown;
  try {
    model = JSON.parse(text);
  } catch (error) {
    return bad(`is no JSON: ${messageOf(error)}`);
  }
  return isPlainObject(model) ? (model as Record<string, unknown>) : bad('is no graph model');
}

interface WeightSpec {
  readonly name: string;
  readonly shape: readonly number[];
  readonly dtype: string;
  readonly quantization?: { readonly dtype: string; readonly min?: number; readonly scale?: number };
}

/** The files of a group are one after the other, and so are its weights in them. */
async function readWeights(folder: string, manifest: unknown, bad: Fail): Promise<ReadonlyMap<string, Value>> {
  if (!Array.isArray(manifest)) return bad('has a weightsManifest that is no list');
  const values = new Map<string, Value>();
  let left = bytesMax;
  for (const group of manifest as unknown[]) {
    const { paths, weights } = (isPlainObject(group) ? group : {}) as { paths?: unknown; weights?: unknown };
    if (!Array.isArray(paths) || !Array.isArray(weights)) return bad('has a weightsManifest without paths or weights');
    const files: Buffer[] = [];
    for (const path of paths as unknown[]) {
      files.push(await readFile(join(folder, checkedPath(path, bad)), left));
      left -= files.at(-1)!.byteLength;
    }
    const bytes = Buffer.concat(files);
    let at = 0;
    for (const each of weights as unknown[]) {
      const spec = checkedSpec(each, bad);
      const fail = (why: string): never => bad(`: weight '${spec.name}': ${why}`);
      const [value, length] = decode(spec, bytes.subarray(at), fail);
      if (values.has(spec.name)) fail('is there twice');
      values.set(spec.name, value);
      at += length;
    }
    if (at !== bytes.byteLength) bad(`has weights of ${at} bytes, but ${paths.join(', ')} ${bytes.byteLength}`);
  }
  return values;
}

/** Only files beside the model are read. */
function checkedPath(path: unknown, bad: Fail): string {
  if (typeof path !== 'string' || isAbsolute(path) || path.split(/[/\\]/).includes('..'))
    return bad(`names a file of weights that is not beside it: ${describeValue(path)}`);
  return path;
}

function checkedSpec(given: unknown, bad: Fail): WeightSpec {
  const { name, shape, dtype, quantization } = (isPlainObject(given) ? given : {}) as Partial<WeightSpec>;
  const isKnown = Array.isArray(shape) && isShape(shape) && !shape.includes(null);
  if (typeof name !== 'string' || !isKnown || !isGraphDType(dtype))
    return bad(`has a weight that is none: ${JSON.stringify(given).slice(0, 200)}`);
  if (quantization !== undefined && !isPlainObject(quantization)) return bad(`: weight '${name}': its quantization is none`);
  return { name, shape, dtype, quantization };
}

/** Decodes a weight. @returns it, and the number of its bytes in the file. */
function decode({ shape, dtype, quantization }: WeightSpec, bytes: Uint8Array, fail: Fail): [Value, number] {
  if (dtype === 'string') return decodeStrings(shape, bytes, fail);
  const stored = quantization?.dtype ?? dtype;
  if (quantization !== undefined && !['uint8', 'uint16', 'float16'].includes(stored)) return fail(`quantization as ${stored} is not known`);
  const length = countOf(shape) * (elementBytes(stored as 'uint8') ?? fail(`${stored} is not known`));
  if (!(length <= bytes.byteLength)) return fail(`needs ${length} bytes; the files have ${bytes.byteLength} left`);
  const value = valueOfBytes(stored as 'uint8', shape, bytes.subarray(0, length), fail);
  if (quantization === undefined) return [value, length];
  if (dtype !== 'float32' && dtype !== 'int32') return fail(`a quantized ${dtype} is not known`);
  const elements = elementsOf(value) as Uint8Array | Uint16Array;
  const { min, scale } = quantization;
  if (stored === 'float16' && dtype === 'int32') return fail('an int32 is not quantized as float16');
  if (stored === 'float16') {
    const floats = new Float32Array(elements.length);
    createKernels().convert('float32', bytesOf(floats), 'float16', bytesOf(elements));
    return [elementsValue(dtype, shape, floats), length];
  }
  if (typeof min !== 'number' || typeof scale !== 'number') return fail('its quantization has no min and scale');
  const wide = Float32Array.from(elements, (each) => each * scale + min);
  return [elementsValue(dtype, shape, dtype === 'int32' ? Int32Array.from(wide, Math.round) : wide), length];
}

/** Each with its length before it, in 32 bits. */
function decodeStrings(shape: readonly number[], bytes: Uint8Array, fail: Fail): [Value, number] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const data: string[] = [];
  let at = 0;
  for (let left = countOf(shape); left > 0; left--) {
    const length = at + 4 <= bytes.byteLength ? view.getUint32(at, true) : Infinity;
    if (at + 4 + length > bytes.byteLength) return fail('its strings are cut off');
    data.push(textOf(bytes.subarray(at + 4, at + 4 + length)));
    at += 4 + length;
  }
  return [{ dtype: 'string', shape, data }, at];
}
