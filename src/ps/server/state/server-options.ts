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
import type { ControlFields } from '../../protocol/wire-control.ts';
import type { ServerRequest, ServerSession } from './client-session.ts';
import type { ServerSlots } from './slots.ts';

/** `againMs`: when it is tried again, if not sooner, in milliseconds. */
export type CheckpointEvent =
  | { readonly state: 'failed'; readonly error: ShoalError; readonly againMs: number }
  | { readonly state: 'recovered' };

export interface ServerOptions {
  readonly topology: KVTopology;
  /** Workers come and go: no round waits for one that is lost or has left, and others may come in their place. Default false. */
  readonly elastic?: boolean;
  readonly group: number;
  readonly server: number;
  /** Differs each time a process serves; a safe integer from 1. */
  readonly incarnation: number;
  readonly clock: Clock;
  readonly kernels: Kernels;
  readonly parameterKernels: ParameterKernels;
  readonly createOptimizer: (spec: OptimizerSpec) => Optimizer;
  /** The codec with this number on the wire; undefined when there is none. */
  readonly codecOf: (code: number) => GradientCodec | undefined;
  /** Fire and forget: what is lost is asked for again after `peerUp`. Never calls back into the core. */
  readonly send: (destination: Address, msg: Msg) => void;
  /** The memory of a client; the same object each time for the same connection. */
  readonly valuesOf: (source: Address) => RemoteValues;
  /** The place where the latest state is kept. Without it (and without standby) nothing survives the process. */
  readonly snapshots?: SnapshotStore;
  /** Milliseconds between snapshots of a changed state. */
  readonly checkpointEveryMs: number;
  /** A snapshot could not be written, for a reason that is new; or can be again. */
  readonly onCheckpoint?: (event: CheckpointEvent) => void;
  /** The files of a server of this group in a folder; for `saveState` and `loadState`. */
  readonly storeAt: (folder: string, server: number) => SnapshotStore;
  /** Primary: where the standby is reached. */
  readonly standby?: Address;
  readonly mode: 'primary' | 'standby';
  /** The number of processes that have been this server, with this one; of a standby, 0: it learns its primary's. */
  readonly term: number;
  /** Primary: the standby has the whole state, and from now on whatever is answered for. */
  readonly onStandbyInformed?: () => void;
  /** Updates of a slot between two exchanges with the master group. */
  readonly syncEvery: number;
  /** Milliseconds until less than that is exchanged, and until other groups hear of changes. */
  readonly syncMs: number;
  /** Counts what is copied. Default: its own. */
  readonly counters?: ValueCounters;
  /** A peer sent what no correct peer sends; nothing has changed. Close its connection. */
  readonly onFault?: (source: Address, error: ShoalError) => void;
  /** Every worker that this server's group serves has left; it may not have heard the answer yet. Called once. */
  readonly onServed?: () => void;
}

/** A message to another server, without its addresses. */
export interface Outbound {
  readonly type: number;
  /** Default 0, as of `epoch`. */
  readonly request?: number;
  readonly epoch?: number;
  /** Default: none. */
  readonly frames?: readonly Uint8Array[];
}

/** Actions that the parts of a server ask of its core. */
export interface ServerActions {
  readonly counters: ValueCounters;
  /** Sends a message to the server with this one's number in another group. */
  readonly send: (group: number, message: Outbound) => void;
  /** Answers a transfer. */
  readonly respond: (request: ServerRequest) => void;
  /** Answers any other request. */
  readonly reply: (session: ServerSession, request: number, fields: ControlFields) => void;
  /** Hears nothing else until the promise is settled. */
  readonly pause: (until: Promise<void>) => void;
  /** True for a standby: its answers reach nobody. */
  readonly isSilent: () => boolean;
  /** Resolves when the present state survives this process, where servers save checkpoints. @throws ShoalError `system`. */
  readonly durable: () => Promise<void>;
  /** Tells a client which of its requests survive this process. */
  readonly tellDurable: (session: ServerSession) => void;
  /** Memory cannot be mapped here. */
  readonly onUnattached: () => void;
  /** Something can be sent to another server group. */
  readonly onDue: () => void;
  /** Values of other groups' workers have come, or the master has ours. */
  readonly onExchanged: () => void;
  /** Values or an optimiser have come from group 0. */
  readonly onFollowed: () => void;
  /** Requests that waited for a batch or an optimiser can be heard. */
  readonly onCommit: () => void;
}

/** Things that all parts of a server's state share. */
export interface ServerParts {
  readonly options: ServerOptions;
  readonly actions: ServerActions;
  readonly slots: ServerSlots;
  /** Slots of batches that can be used. */
  readonly committedSlots: number;
  /** Slots have a new value. */
  applied(from: number, to: number): void;
}
