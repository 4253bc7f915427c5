/** The facts that a receiver needs to allocate a tensor: dtype, shape, bytes. The dead flag is not part of them: a
 *  branch that is taken every other step must not cost a round trip each time. Metadata objects never change. */
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, viewOf } from '../../memory/dtype.ts';
import { countOf, dimensionsMax, sameShape } from '../../memory/tensor.ts';
import { decodeStrings, encodeStrings } from './string-codec.ts';
import { isStaged, type SentValue } from './staged-tensor.ts';
import type { TensorDType, TensorValue } from './tensor-value.ts';

export interface TensorMetadata {
  readonly dtype: TensorDType;
  readonly shape: readonly number[];
  /** On the wire: those of the elements, or of the serialised strings. */
  readonly bytes: number;
}

/** A value as it is written: its bytes, and what they are. */
export interface WritableTensor {
  readonly metadata: TensorMetadata;
  /** Undefined: they must be read first. */
  readonly bytes: ArrayBufferView | undefined;
}

export function writable(value: TensorValue): WritableTensor & { readonly bytes: ArrayBufferView };
export function writable(value: SentValue): WritableTensor;
export function writable(value: SentValue): WritableTensor {
  const { dtype, shape } = value;
  if (isStaged(value)) return { metadata: { dtype, shape, bytes: value.bytes }, bytes: undefined };
  const { data } = value;
  const bytes = dtype === 'string' ? encodeStrings(data as readonly string[]) : (data as ArrayBufferView);
  return { metadata: { dtype, shape, bytes: bytes.byteLength }, bytes };
}

/** The value that arrived in `memory`. @throws ShoalError `protocol` when it is not what the metadata say. */
export function readTensor({ dtype, shape, bytes }: TensorMetadata, memory: { buffer: ArrayBufferLike; offset: number }): TensorValue {
  if (dtype === 'string') return { dtype, shape, data: decodeStrings(new Uint8Array(memory.buffer, memory.offset, bytes), countOf(shape)) };
  return { dtype, shape, data: viewOf(dtype, memory.buffer, memory.offset, bytes / dtypeInfo(dtype).bytes) };
}

export function sameMetadata(a: TensorMetadata, b: TensorMetadata): boolean {
  return a === b || (a.bytes === b.bytes && a.dtype === b.dtype && sameShape(a.shape, b.shape));
}

/** Checks metadata from outside. @throws ShoalError `protocol` when dtype, shape and bytes disagree. */
export function checkMetadata(dtype: TensorDType, shape: readonly number[], bytes: number): TensorMetadata {
  if (shape.length > dimensionsMax)
    throw new ShoalError('protocol', `a tensor has ${shape.length} dimensions; at most ${dimensionsMax} are allowed`);
  const count = countOf(shape);
  const expected = dtype === 'string' ? bytes : count * dtypeInfo(dtype).bytes;
  // A string takes at least its tag and its length.
  const fits = dtype === 'string' ? bytes >= 2 * count : bytes === expected;
  if (!fits || !Number.isSafeInteger(count) || !Number.isSafeInteger(bytes))
    throw new ShoalError('protocol', `a tensor ${dtype}[${shape.join(', ')}] cannot have ${bytes} bytes`);
  return Object.freeze({ dtype, shape: Object.freeze([...shape]), bytes });
}
