/** A tensor that is read in pieces, as those of devices are: reads end in later turns, and when the test says so. */
import type { ShoalError } from '../../base/errors.ts';
import type { DType } from '../../memory/dtype.ts';
import type { StagedTensor } from '../value/staged-tensor.ts';
import type { TensorValue } from '../value/tensor-value.ts';

export interface TestTensor extends StagedTensor {
  readonly value: TensorValue;
  /** The causes that `release` was told. */
  readonly released: (ShoalError | undefined)[];
  /** Reads that have begun: where. */
  readonly reads: number[];
}

/** @param options.fails what reads end with; `turn`: what a read waits for; `rest`: what it waits for when the bytes are there. */
export function stagedTensor(
  value: TensorValue,
  options: { readonly fails?: ShoalError; readonly turn?: (at: number) => Promise<void>; readonly rest?: () => Promise<void> } = {},
): TestTensor {
  const { fails, turn = () => new Promise<void>((resolve) => void setImmediate(resolve)), rest } = options;
  const { buffer, byteOffset, byteLength } = value.data as ArrayBufferView;
  const released: (ShoalError | undefined)[] = [];
  const reads: number[] = [];
  return {
    value,
    released,
    reads,
    dtype: value.dtype as DType,
    shape: value.shape,
    bytes: byteLength,
    async read(at, target) {
      if (released.length > 0) throw new Error('read after it was released');
      reads.push(at);
      await turn(at);
      if (fails) throw fails;
      target.set(new Uint8Array(buffer, byteOffset + at, target.length));
      await rest?.();
    },
    release: (cause) => void released.push(cause),
  };
}
