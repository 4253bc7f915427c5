/** The interface between a connection over libfabric and its fabric. */
import type { Clock } from '../../../base/clock.ts';
import type { ShoalError } from '../../../base/errors.ts';
import type { Region } from '../../../memory/region.ts';
import type { WriteRequest } from './libfabric-endpoint.ts';

/** Ways to keep the order of deliveries (libfabric-connection.ts). */
export type WriteOrder = 'ordered' | 'sequenced' | 'fenced';

/** One end's description of its endpoint, sent to the other over the stream. */
export interface Probe {
  /** Name of libfabric's provider. */
  readonly provider: string;
  /** Name of the endpoint. */
  readonly name: Uint8Array;
  readonly token: Uint8Array;
  /** Announcements and messages that this end accepts before it has delivered them. */
  readonly credits: number;
}

/** Address of a peer's region in the device's terms. */
export interface Grant {
  readonly address: bigint;
  readonly key: bigint;
  readonly bytes: number;
}

/** The token is the one that the peer's messages begin with. */
export interface LibfabricConnectionOptions extends Omit<Probe, 'name'> {
  readonly dials: boolean;
  readonly clock: Clock;
  readonly maxQueuedBytes: number;
  readonly order: WriteOrder;
  /** Largest write that travels in one piece; longer ones are split. */
  readonly maxWriteBytes: number;
  /** The device's access to a region that is read: its view and registration. */
  sourceOf(region: Region): Pick<WriteRequest, 'source' | 'registration'>;
  /** A peer's access to a region of this fabric; undefined: it is not registered. */
  grantOf(rkey: number): Grant | undefined;
  /** Called when both ends have reached each other over the endpoints. */
  onReady(): void;
  /** Called when the connection has ended, before `onEnded`; without effect unless it ended before it was ready. */
  onFailed(error: ShoalError): void;
  /** Called when something was posted, so that the endpoint is polled. */
  onActive(): void;
  /** Starts or stops watching the endpoint's descriptor. */
  watch(on: boolean): void;
  onEnded(): void;
  /** Called for data that no member has sent. */
  onStrange(error: ShoalError): void;
}
