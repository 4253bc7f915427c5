/** What a connection over libfabric is given by its fabric. */
import type { Clock } from '../../base/clock.ts';
import type { ShoalError } from '../../base/errors.ts';
import type { Region } from '../../memory/region.ts';
import type { WriteRequest } from './libfabric-endpoint.ts';

/** How order is kept (libfabric-connection.ts). */
export type WriteOrder = 'ordered' | 'sequenced' | 'fenced';

/** What one end tells the other over the stream. */
export interface Probe {
  readonly provider: string;
  /** Of the endpoint. */
  readonly name: Uint8Array;
  readonly token: Uint8Array;
  /** Announcements and messages that it takes before it has given them on. */
  readonly credits: number;
}

/** Where a peer's region is, for the device. */
export interface Grant {
  readonly address: bigint;
  readonly key: bigint;
  readonly bytes: number;
}

export interface LibfabricConnectionOptions {
  readonly clock: Clock;
  readonly maxQueuedBytes: number;
  /** Announcements and messages that one end takes before it has given them on. */
  readonly credits: number;
  readonly order: WriteOrder;
  /** Longer writes travel as several. */
  readonly maxWriteBytes: number;
  /** What the device needs to read the region; its view and registration. */
  sourceOf(region: Region): Pick<WriteRequest, 'source' | 'registration'>;
  /** How peers write to a region of this fabric; undefined: it is not registered. */
  grantOf(rkey: number): Grant | undefined;
  /** Both ends have reached each other over the endpoints. */
  onReady(): void;
  /** Something was posted: the endpoint wants to be polled. */
  onActive(): void;
  /** Whether its descriptor is to be looked at. */
  watch(on: boolean): void;
  onEnded(): void;
  /** Something came that no member has sent. */
  onStrange(error: ShoalError): void;
}
