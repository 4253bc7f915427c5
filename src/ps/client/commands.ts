/** Messages between a worker's thread and the client of its process. Plain data only: it is cloned between
 *  threads; values themselves lie in regions that both map. */
import type { Environment } from '../../base/settings/settings.ts';
import type { CommChannel } from '../../comm/caller/comm-channel.ts';
import type { GuestEvent, PortEnd } from '../../comm/shared/thread-protocol.ts';
import type { RegionShare } from '../../memory/region.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { CompressionSpec } from '../compression/codec.ts';
import type { OptimizerSpec } from '../optimizers/optimizer.ts';
import type { BlobData } from '../values/blob-box.ts';
import type { InitEntry, KeylessInfo, RowsRequest, TransferEntry } from './client-options.ts';
import type { KVTopology } from '../protocol/topology.ts';
import type { PlaceOptions } from '../job/environment.ts';

/** A process's part in the job. */
export interface ClientPlan extends PlaceOptions {
  readonly environment: Environment;
}

/** One worker's end of a channel to the client. Transferred to the thread that uses it. */
export interface ClientTicket extends PortEnd {
  /** 0…localWorkers − 1. */
  readonly local: number;
}

interface Timed {
  readonly work: number;
  readonly priority: number;
  readonly timeoutMs: number | undefined;
}

/** A question of a worker to its client that comes without memory. Worker 0 sets the state and the optimiser. */
export type ClientQuestion =
  | { readonly type: 'barrier' }
  | { readonly type: 'optimizer'; readonly spec: OptimizerSpec }
  | { readonly type: 'state'; readonly direction: 'save' | 'load'; readonly folder: string }
  | { readonly type: 'info'; readonly key: string }
  | { readonly type: 'send-blob'; readonly worker: number; readonly blob: BlobData }
  | { readonly type: 'receive-blob'; readonly worker: number; readonly name: string; readonly timeoutMs: number };

/** `info` is answered by what is known of the parameter, `receive-blob` by the elements, all others by nothing. */
export type Answer = KeylessInfo | TypedArray | undefined;

/** A setting that a worker makes at its client, for all that it sends from now on. */
export type ClientSetting =
  | { readonly type: 'compression'; readonly spec: CompressionSpec }
  | { readonly type: 'credit'; readonly creditBytes: number };

export type ClientCommand =
  | { readonly type: 'map'; readonly region: number; readonly share: RegionShare }
  | { readonly type: 'unmap'; readonly region: number }
  | ClientSetting
  | { readonly type: 'init'; readonly work: number; readonly entries: readonly InitEntry[] }
  /** A list of transfers that is made again and again, known to the client by a number. */
  | { readonly type: 'batch'; readonly batch: number; readonly entries: readonly TransferEntry[] }
  | { readonly type: 'forget-batch'; readonly batch: number }
  | ({ readonly type: 'transfer'; readonly entries: readonly TransferEntry[] | number } & Timed)
  | { readonly type: 'rows'; readonly work: number; readonly direction: 'push' | 'pull'; readonly request: RowsRequest }
  | (ClientQuestion & { readonly work: number })
  /** Another thread of this process is a worker, too. */
  | { readonly type: 'attach'; readonly ticket: ClientTicket }
  | { readonly type: 'close'; readonly work: number };

/** A worker's place, which it knows once the client is up. */
export interface WorkerInfo {
  readonly worker: number;
  readonly workerGroup: number;
  readonly topology: KVTopology;
}

export type ClientEvent = GuestEvent<WorkerInfo, Answer>;

/** A worker's end of its channel to the client. */
export type ClientChannel = CommChannel<ClientCommand, WorkerInfo>;
