/** Reduction and scaling in JavaScript, block by block over a small stack. Operands have passed check.ts.
 *
 *    sources  s0 ▓▓░░░░   s1 ▓▓░░░░   s2 ▓▓░░░░          one block of each
 *    stack    [s0][s1] ⊕→ [t0]  [t0][s2] ⊕→ target 0     temporaries belong to stack positions
 *    targets  target 0 ▓▓ ──copy──▶ target 1, target 2, … */
import { must } from '../../base/assert.ts';
import { dtypeInfo, viewOf, type DType, type DTypeViews } from '../dtype.ts';
import type { ReduceTree } from '../kernels.ts';
import type { CombineOp } from '../reduce-op.ts';
import { treeDepth } from './check.ts';
import { codecs } from './js-codecs.ts';
import {
  booleanLoops,
  combineLoops,
  divideFloat32,
  divideFloat64,
  multiplyFloat32,
  multiplyFloat64,
  type CombineLoop,
  type ValueArrays,
  type ValueType,
} from './js-loops.ts';
import { blockCount, type Scratch } from './js-scratch.ts';

const valueTypes: { readonly [D in DType]: ValueType } = {
  float64: 'float64',
  float32: 'float32',
  float16: 'float32',
  bfloat16: 'float32',
  int64: 'int64',
  int32: 'int32',
  int16: 'int32',
  int8: 'int32',
  uint32: 'uint32',
  uint16: 'int32',
  uint8: 'int32',
  bool: 'int32',
};

type Values = ValueArrays[ValueType];

/** A factor or divisor that is applied to results before they are stored. */
interface Finish {
  /** Applies it to float32 values; the number is a float32. */
  readonly float32: (values: Float32Array, from: number, count: number, by: number) => void;
  readonly float64: (values: Float64Array, from: number, count: number, by: number) => void;
}

const division = { float32: divideFloat32, float64: divideFloat64 };
const multiplication = { float32: multiplyFloat32, float64: multiplyFloat64 };

/** @param by undefined: results are stored as they are. */
export function reduceJs(
  scratch: Scratch,
  dtype: DType,
  op: CombineOp,
  targets: readonly Uint8Array[],
  sources: readonly Uint8Array[],
  tree: ReduceTree,
  by: number | undefined,
  finish: Finish = division,
): void {
  const views = sources.map((source) => elementsOf(dtype, source));
  const target = elementsOf(dtype, targets[0]);
  const count = target.length;
  const depth = treeDepth(tree, sources.length);
  const arrays = scratch.arrays(depth);
  const valueType = valueTypes[dtype];
  const temporaries = arrays[valueType];
  const codec = codecs[dtype];
  const loops = dtype === 'bool' ? booleanLoops : combineLoops[valueType];
  const combine = must(loops[op], () => `${op} is not defined on ${dtype}`) as CombineLoop<Values>;

  // Two sources need no temporaries, so no blocks.
  const block = codec === undefined && tree.length === 3 ? count : blockCount;
  const stack: Values[] = [];
  const starts: number[] = [];
  for (let from = 0; from < count; from += block) {
    const size = Math.min(block, count - from);
    let height = 0;
    for (let k = 0; k < tree.length; k++) {
      if (tree[k] >= 0) {
        if (codec === undefined) {
          stack[height] = views[tree[k]] as Values;
          starts[height] = from;
        } else {
          codec.load(arrays, height * blockCount, views[tree[k]] as never, from, size);
          stack[height] = temporaries;
          starts[height] = height * blockCount;
        }
        height++;
        continue;
      }
      height--;
      const last = codec === undefined && k === tree.length - 1;
      const to = last ? (target as Values) : temporaries;
      const start = last ? from : (height - 1) * blockCount;
      combine(to, start, stack[height - 1], starts[height - 1], stack[height], starts[height], size);
      stack[height - 1] = to;
      starts[height - 1] = start;
    }
    if (codec !== undefined) {
      if (by !== undefined) finish.float32(arrays.float32, 0, size, Math.fround(by));
      codec.store(target as never, from, arrays, 0, size);
    } else {
      // Both have elements of one type.
      if (stack[0] !== target) (target as Float32Array).set((stack[0] as Float32Array).subarray(starts[0], starts[0] + size), from);
      if (by === undefined) continue;
      if (target instanceof Float64Array) finish.float64(target, from, size, by);
      else finish.float32(target as Float32Array, from, size, Math.fround(by));
    }
  }
  for (let t = 1; t < targets.length; t++) targets[t].set(targets[0]);
}

/** Multiplies a float dtype's elements by the factor. */
export function scaleJs(scratch: Scratch, dtype: DType, target: Uint8Array, source: Uint8Array, factor: number): void {
  reduceJs(scratch, dtype, 'sum', [target], [source], [0], factor, multiplication);
}

function elementsOf<D extends DType>(dtype: D, bytes: Uint8Array): DTypeViews[D] {
  // A number of bytes that is not whole elements was refused before.
  return viewOf(dtype, bytes.buffer, bytes.byteOffset, bytes.byteLength / dtypeInfo(dtype).bytes);
}
