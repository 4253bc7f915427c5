/** A client's request to one server: any message with a reply. A request is kept until it is answered and, if it changes
 *  state that the server may lose, until the server has it in a durable snapshot. */
import { must } from '../../base/assert.ts';
import type { ShoalError } from '../../base/errors.ts';
import type { Shape } from '../../base/schema.ts';
import type { Msg } from '../../messaging/msg.ts';
import { encodeControl, readControl, type ControlFields } from '../protocol/wire-control.ts';

/** The state for which a request is encoded: the parts of our memory that the server can reach, and the optimiser that we know of. */
export interface Reach {
  /** The regions that the server has mapped. */
  readonly regions: { isAttached(region: number): boolean };
  /** The number of times the optimiser has been set, as far as we know. */
  readonly optimizer: number;
  /** Less than half of the credit is left. */
  readonly shortOfCredit: boolean;
  /** `none`: nobody waits for values any more. */
  readonly values: 'wanted' | 'none';
}

export interface ClientRequest {
  readonly type: number;
  /** Larger goes first; raised when a later push of the same slots has a higher one. */
  priority: number;
  /** Values that go to the server or come from it. */
  readonly bytes: number;
  /** True when a server that restarts from a snapshot must hear it again. */
  readonly repeats: boolean;
  /** Regions that values lie in. */
  readonly regions: readonly number[];
  /** Slots that it pushes to; undefined when it pushes nothing. */
  readonly pushed: readonly { readonly firstSlot: number; readonly slots: number }[] | undefined;
  /** Frames for the server as it is now; called again when it is sent again. */
  encode(reach: Reach): Uint8Array[];
  /** Copies what may change after the answer, because the request must be kept longer. @returns bytes of memory taken. */
  retain(): number;
  /** Gives memory of `retain` back. */
  drop(): void;
  /** Once: the answer, or why there is none. */
  finish(error: ShoalError | undefined, msg: Msg | undefined): void;
}

/** A request with frames that never change. */
export function fixedRequest(fields: {
  readonly type: number;
  readonly priority?: number;
  readonly repeats?: boolean;
  readonly pushed?: ClientRequest['pushed'];
  readonly frames: readonly Uint8Array[];
  /** A frame before them that depends on what is known. */
  readonly head?: (reach: Reach) => Uint8Array;
  readonly finish: ClientRequest['finish'];
}): ClientRequest {
  const bytes = fields.frames.reduce((sum, frame) => sum + frame.byteLength, 0);
  return {
    type: fields.type,
    priority: fields.priority ?? Infinity,
    bytes,
    repeats: fields.repeats ?? false,
    regions: [],
    pushed: fields.pushed,
    encode: (reach) => (fields.head === undefined ? [...fields.frames] : [fields.head(reach), ...fields.frames]),
    retain: () => bytes,
    drop: () => undefined,
    finish: fields.finish,
  };
}

/** A request whose only frame are these fields. */
export function controlRequest(
  type: number,
  fields: ControlFields,
  finish: ClientRequest['finish'],
  { repeats = false }: { readonly repeats?: boolean } = {},
): ClientRequest {
  return fixedRequest({ type, repeats, frames: [encodeControl(fields)], finish });
}

/** Fields of an answer. @throws ShoalError `protocol`. */
export function answered<T>(msg: Msg | undefined, shape: Shape<T>): T {
  return readControl(must(msg, () => 'an answer without error has a message').frames[0], shape);
}
