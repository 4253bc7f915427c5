/** A tensor whose elements host code cannot reach, such as one in a device's memory: on a request, its pieces are read into host memory.
 *  It must not know devices. */
import { ShoalError } from '../../base/errors.ts';
import { viewOf, type DType } from '../../memory/dtype.ts';
import { countOf } from '../../memory/tensor.ts';
import { allocated, type Release, type TensorValue } from './tensor-value.ts';

/** Bytes of a piece of a tensor that is moved in pieces: large enough that reading one takes longer than beginning to, small enough that
 *  several overlap. */
export const stagedPieceBytes = 4 * 2 ** 20;

export interface StagedTensor {
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Bytes in all; a multiple of 4. */
  readonly bytes: number;
  /** target := the bytes from `at`. Several may be under way. */
  read(at: number, target: Uint8Array): Promise<void>;
  /** Called when nobody reads it any more. @param cause why it could not be read, or did not reach its receiver. */
  release: Release;
}

/** A value to send: in host memory, or to be read into it. */
export type SentValue = TensorValue | StagedTensor;

export function isStaged(value: SentValue): value is StagedTensor {
  return (value as Partial<StagedTensor>).read !== undefined;
}

/** The value as it is received where no pieces travel. */
export async function hostValue(value: SentValue): Promise<TensorValue> {
  if (!isStaged(value)) return value;
  const { dtype, shape, bytes } = value;
  try {
    const memory = allocated(bytes);
    if (bytes > 0) await value.read(0, new Uint8Array(memory));
    value.release();
    return { dtype, shape, data: viewOf(dtype, memory, 0, countOf(shape)) };
  } catch (thrown) {
    const cause = ShoalError.from(thrown);
    value.release(cause);
    throw cause;
  }
}
