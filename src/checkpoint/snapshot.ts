/** The data that a server saves: named tensors and text, together. Stored as one safetensors file. */
import type { DType } from '../memory/dtype.ts';

export interface SnapshotTensor {
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Little-endian elements. */
  readonly data: Uint8Array;
}

export interface Snapshot {
  readonly tensors: ReadonlyMap<string, SnapshotTensor>;
  /** The key `save` names the save that the snapshot is a part of, when several servers save together. */
  readonly metadata: Readonly<Record<string, string>>;
}

/** A place for the latest snapshot. */
export interface SnapshotStore {
  /** Resolves when it is durable: a crash at any moment leaves this one or the one before, whole. */
  save(snapshot: Snapshot): Promise<void>;
  /** The latest whole snapshot; undefined when there is none. With `save`, the one that has this text in its metadata.
   *  @throws ShoalError `system`, `protocol` naming the file when all snapshots are damaged. */
  load(save?: string): Promise<Snapshot | undefined>;
  /** The texts `save` of the snapshots in the folder, the latest first. Whether they are whole is not known. */
  saves(): Promise<string[]>;
}
