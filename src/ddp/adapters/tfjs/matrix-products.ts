/** Products of transposed matrices for TensorFlow.js' wasm backend. Backward passes of dense layers consist of them, and the
 *  backend's kernels compute large ones 6 to 60 times as slowly as the product without transposition, which XNNPACK computes.
 *  Here one matrix is transposed first, in the way that moves the fewest elements:
 *
 *      Aᵀ·B    (Aᵀ)·B, of some rows of both after the other, so that they stay in the cache
 *      A·Bᵀ    A·(Bᵀ), or, where B is larger than A and the result, (B·(Aᵀ))ᵀ
 *      Aᵀ·Bᵀ   (B·A)ᵀ
 *
 *  Sums are added up in the order of XNNPACK: not the bits of the backend's own kernel. Batches of several matrices stay as they are. */
import * as tf from '@tensorflow/tfjs';

/** The parts of the wasm backend, version 4, that are used here. */
interface WasmBackend {
  makeOutput?(shape: number[], dtype: tf.DataType): tf.TensorInfo;
  typedArrayFromHeap?(info: tf.TensorInfo): Float32Array;
  disposeData(dataId: object): unknown;
}

type Heap = Required<WasmBackend>;

/** Products of fewer multiply-adds than this are left to the backend: they are not slow there. */
const multiplyAddsMin = 4096;
/** Rows and columns of a block that is transposed at once: its source and its result both fit in the cache. */
const side = 16;

/** Rows of both matrices that are multiplied at once, where the sums have eight times as many addends or more. */
const rowsAtOnce = 1024;

/** Kernels that this file has registered. */
const registered = new Set<tf.KernelFunc>();

/** Replaces the kernels of the wasm backend, if it is in use, for all programs of this process. @returns the names of replaced kernels. */
export function addTransposedProducts(): readonly string[] {
  const backendName = tf.getBackend();
  if (backendName !== 'wasm') return [];
  const makers = { BatchMatMul: productKernel, _FusedMatMul: fusedKernel };
  return Object.entries(makers).flatMap(([kernelName, kernelOver]) => {
    const known = tf.getKernel(kernelName, backendName);
    if (known === undefined || registered.has(known.kernelFunc)) return [];
    const kernelFunc = kernelOver(known.kernelFunc);
    registered.add(kernelFunc);
    // Unregistering first avoids the warning that the kernel is there already.
    tf.unregisterKernel(kernelName, backendName);
    tf.registerKernel({ ...known, kernelFunc });
    return [kernelName];
  });
}

function productKernel(own: tf.KernelFunc): tf.KernelFunc {
  return (call) => {
    const { inputs, attrs, backend } = call;
    const { a, b } = inputs as Record<string, tf.TensorInfo>;
    const { transposeA, transposeB } = attrs as unknown as { transposeA: boolean; transposeB: boolean };
    if (!isSlow(a, b, transposeA, transposeB) || !hasHeap(backend)) return own(call);
    const heap: Heap = backend;
    const [aRows, aColumns] = a.shape.slice(-2);
    const [bRows, bColumns] = b.shape.slice(-2);
    const outer = a.shape.length > b.shape.length ? a.shape.slice(0, -2) : b.shape.slice(0, -2);
    const times = (left: tf.TensorInfo, right: tf.TensorInfo): tf.TensorInfo =>
      own({ inputs: { a: left, b: right }, attrs: { transposeA: false, transposeB: false }, backend }) as tf.TensorInfo;
    const result = ((): tf.TensorInfo => {
      if (transposeA && transposeB) return releasing(heap, times(b, a), (product) => transposed(heap, product));
      if (transposeA && aRows === bRows && aRows >= 8 * rowsAtOnce) return sumOfProducts(heap, a, b, times);
      if (transposeA) return releasing(heap, transposed(heap, a), (aT) => times(aT, b));
      // Elements moved by each way; XNNPACK moves the right operand once more, because it packs it.
      const [ofB, ofOthers] = [2 * bRows * bColumns, 2 * aRows * aColumns + aRows * bRows];
      if (ofB <= ofOthers) return releasing(heap, transposed(heap, b), (bT) => times(a, bT));
      const product = releasing(heap, transposed(heap, a), (aT) => times(b, aT));
      return releasing(heap, product, (it) => transposed(heap, it));
    })();
    return { ...result, shape: [...outer, transposeA ? aColumns : aRows, transposeB ? bRows : bColumns] };
  };
}

/** The kernel with bias and activation. The backend's own one adds the bias once for every 48 addends of a transposed product. */
function fusedKernel(own: tf.KernelFunc): tf.KernelFunc {
  return (call) => {
    const { inputs, attrs, backend } = call;
    const { a, b } = inputs as Record<string, tf.TensorInfo>;
    const { transposeA, transposeB } = attrs as unknown as { transposeA: boolean; transposeB: boolean };
    if (!(transposeA || transposeB) || !isPair(a, b) || !hasHeap(backend)) return own(call);
    const heap: Heap = backend;
    const left = transposeA ? transposed(heap, a) : a;
    const right = transposeB ? transposed(heap, b) : b;
    const plain = { ...attrs, transposeA: false, transposeB: false };
    const result = own({ inputs: { ...inputs, a: left, b: right }, attrs: plain, backend });
    if (left !== a) heap.disposeData(left.dataId);
    if (right !== b) heap.disposeData(right.dataId);
    return result;
  };
}

/** Aᵀ·B of high matrices. */
function sumOfProducts(
  heap: Heap,
  a: tf.TensorInfo,
  b: tf.TensorInfo,
  times: (left: tf.TensorInfo, right: tf.TensorInfo) => tf.TensorInfo,
): tf.TensorInfo {
  const [rows, columns] = a.shape.slice(-2);
  const width = b.shape[b.shape.length - 1];
  const sum = heap.makeOutput([columns, width], 'float32');
  heap.typedArrayFromHeap(sum).fill(0);
  for (let first = 0; first < rows; first += rowsAtOnce) {
    const count = Math.min(rowsAtOnce, rows - first);
    const left = heap.makeOutput([columns, count], 'float32');
    const right = heap.makeOutput([count, width], 'float32');
    const aRange = heap.typedArrayFromHeap(a).subarray(first * columns, (first + count) * columns);
    transposeInto(aRange, heap.typedArrayFromHeap(left), count, columns);
    heap.typedArrayFromHeap(right).set(heap.typedArrayFromHeap(b).subarray(first * width, (first + count) * width));
    const product = times(left, right);
    const [to, from] = [heap.typedArrayFromHeap(sum), heap.typedArrayFromHeap(product)];
    for (let index = 0; index < to.length; index++) to[index] += from[index];
    for (const { dataId } of [left, right, product]) heap.disposeData(dataId);
  }
  return sum;
}

function isSlow(a: tf.TensorInfo, b: tf.TensorInfo, transposeA: boolean, transposeB: boolean): boolean {
  if (!(transposeA || transposeB) || !isPair(a, b)) return false;
  const [rows, columns] = a.shape.slice(-2);
  return rows * columns * b.shape[b.shape.length - (transposeB ? 2 : 1)] >= multiplyAddsMin;
}

/** True for one matrix each. Inner sides that do not agree are refused by the kernel. */
function isPair(a: tf.TensorInfo, b: tf.TensorInfo): boolean {
  const isOne = ({ shape, dtype }: tf.TensorInfo): boolean =>
    dtype === 'float32' && shape.length >= 2 && shape.slice(0, -2).every((length) => length === 1);
  return isOne(a) && isOne(b);
}

function hasHeap(backend: unknown): backend is Heap {
  const { makeOutput, typedArrayFromHeap } = backend as WasmBackend;
  return typeof makeOutput === 'function' && typeof typedArrayFromHeap === 'function';
}

/** Frees the matrix that was made for the product, after its use. */
function releasing(heap: Heap, made: tf.TensorInfo, use: (made: tf.TensorInfo) => tf.TensorInfo): tf.TensorInfo {
  try {
    return use(made);
  } finally {
    heap.disposeData(made.dataId);
  }
}

/** A new matrix without batch dimensions. The backend's own kernel takes three times as long for a high and narrow one. */
function transposed(heap: Heap, matrix: tf.TensorInfo): tf.TensorInfo {
  const [rows, columns] = matrix.shape.slice(-2);
  const out = heap.makeOutput([...matrix.shape.slice(0, -2), columns, rows], 'float32');
  // The views come last, because making `out` may have moved the heap.
  transposeInto(heap.typedArrayFromHeap(matrix), heap.typedArrayFromHeap(out), rows, columns);
  return out;
}

function transposeInto(from: Float32Array, to: Float32Array, rows: number, columns: number): void {
  for (let row0 = 0; row0 < rows; row0 += side) {
    const rowEnd = Math.min(rows, row0 + side);
    for (let column0 = 0; column0 < columns; column0 += side) {
      const columnEnd = Math.min(columns, column0 + side);
      for (let column = column0; column < columnEnd; column++) {
        let source = row0 * columns + column;
        let target = column * rows + row0;
        for (let row = row0; row < rowEnd; row++) {
          to[target++] = from[source];
          source += columns;
        }
      }
    }
  }
}
