/** What a server saves: named tensors and text, together. Stored as one safetensors file. */
import type { DType } from '../../memory/dtype.ts';

export interface SnapshotTensor {
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Little-endian elements. */
  readonly data: Uint8Array;
}

export interface Snapshot {
  readonly tensors: ReadonlyMap<string, SnapshotTensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

/** A place for the latest snapshot. */
export interface SnapshotStore {
  /** Resolves when it is durable: a crash at any moment leaves this one or the one before, whole. */
  save(snapshot: Snapshot): Promise<void>;
  /** The latest; undefined when there is none. @throws ShoalError `system`, `protocol` for a damaged file. */
  load(): Promise<Snapshot | undefined>;
}
