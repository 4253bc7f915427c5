/** The options of a server core, which has no sockets, threads or clock of its own. */
import type { Clock } from '../../../base/clock.ts';
import type { ShoalError } from '../../../base/errors.ts';
import type { Kernels } from '../../../memory/kernels.ts';
import type { ParameterKernels } from '../../../memory/parameter-kernels.ts';
import type { Address } from '../../../messaging/address.ts';
import type { Msg } from '../../../messaging/msg.ts';
import type { SnapshotStore } from '../../../checkpoint/snapshot.ts';
import type { GradientCodec } from '../../compression/codec.ts';
import type { Optimizer, OptimizerSpec } from '../../optimizers/optimizer.ts';
import type { KVTopology } from '../../protocol/topology.ts';
import type { RemoteValues, ValueCounters } from '../../protocol/value-space.ts';

/** `againMs`: when it is tried again, if not sooner, in milliseconds. */
export type CheckpointEvent =
  | { readonly state: 'failed'; readonly error: ShoalError; readonly againMs: number }
  | { readonly state: 'recovered' };

export interface ServerOptions {
  readonly topology: KVTopology;
  readonly group: number;
  readonly server: number;
  /** Differs each time a process serves; a safe integer from 1. */
  readonly incarnation: number;
  readonly clock: Clock;
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  readonly createOptimizer: (spec: OptimizerSpec) => Optimizer;
  /** By its number on the wire; undefined when there is none. */
  readonly codecOf: (code: number) => GradientCodec | undefined;
  /** Fire and forget: what is lost is asked for again after `peerUp`. Never calls back into the core. */
  readonly send: (destination: Address, msg: Msg) => void;
  /** The memory of a client; the same object each time for the same connection. */
  readonly valuesOf: (source: Address) => RemoteValues;
  /** Where the latest state is kept. Without it (and without standby) nothing survives the process. */
  readonly snapshots?: SnapshotStore;
  /** Milliseconds between snapshots of a changed state. Default 60,000. */
  readonly checkpointEveryMs?: number;
  /** A snapshot could not be written, for a reason that is new; or can be again. */
  readonly onCheckpoint?: (event: CheckpointEvent) => void;
  /** The files of a server of this group in a folder; for `saveState` and `loadState`. */
  readonly storeAt?: (folder: string, server: number) => SnapshotStore;
  /** Primary: where the standby is reached. */
  readonly standby?: Address;
  /** A standby: where the primary is reached. */
  readonly primary?: Address;
  readonly mode: 'primary' | 'standby';
  /** How many processes have been this server, with this one; of a standby, 0: it learns its primary's. */
  readonly term: number;
  /** Primary: the standby has the whole state, and from now on whatever is answered for. */
  readonly onStandbyInformed?: () => void;
  /** Updates of a slot between two exchanges with the master group. Default 1. */
  readonly syncEvery?: number;
  /** Milliseconds until less than that is exchanged, and until other groups hear of changes. Default 500. */
  readonly syncMs?: number;
  /** Counts what is copied. Default: its own. */
  readonly counters?: ValueCounters;
  /** A peer sent what no correct peer sends; nothing has changed. Close its connection. */
  readonly onFault?: (source: Address, error: ShoalError) => void;
  /** Every worker that this server's group serves has left; it may not have heard the answer yet. Called once. */
  readonly onServed?: () => void;
}
