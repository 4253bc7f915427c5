/** Rare events between the comm threads of two ranks, as JSON in a message of wire.ts. Every field is checked. */
import { errorCodes, ShoalError } from '../../../base/errors.ts';
import { count, flag, integer, list, literal, number, object, optional, parse, tagged, text, type ValueOf } from '../../../base/schema.ts';
import { postsPerMessage } from '../../../scheduler/order-agreement.ts';
import { MessageType, probeBytesMax } from './wire.ts';
import { scheduledNameMax } from '../../../call/group-spec.ts';
import { groupIdMax } from '../../../membership/group-numbers.ts';

const key = integer({ min: 1 });
const group = integer();
const remoteRegion = object({ rkey: count, bytes: number({ min: 0 }), handle: text(256) });
const roundSeconds = number({ min: 0, max: 1e3 });
const errorData = object({
  code: literal(...errorCodes),
  message: text(65536),
  rank: optional(integer()),
  peer: optional(integer()),
  operation: optional(text(256)),
  sequence: optional(number()),
  bytes: optional(number()),
  timeoutMs: optional(number()),
  resource: optional(text(256)),
  cause: optional(text(65536)),
});

const orderPost = object({
  key: text(scheduledNameMax),
  priority: number(),
  what: text(64),
  bytes: count,
  unitBytes: integer({ min: 1 }),
  parts: integer({ min: 1 }),
});

const controlMessage = tagged({
  /** A region of mine that your writes and maps may name by `key`. */
  region: { key, remote: remoteRegion },
  withdraw: { key },
  /** My control block of a group: the region `key`. `networkPath`: where sockets for its network path reach me; none: I cannot. */
  'group-open': { group: integer({ min: 0, max: groupIdMax }), key: integer(), networkPath: list(text(256), { max: 64 }) },
  /** Whether I have all my sockets of the group's network path, and how long a round trip to other hosts takes on them. */
  'network-path-ready': { group, ok: flag, roundTripUs: optional(number({ min: 0, max: 1e9 })) },
  /** Seconds per round of timing the group's network path; undefined: I could not. */
  'network-path-timed': { group, timings: optional(object({ tree: roundSeconds, all: roundSeconds, bytes: roundSeconds })) },
  /** I have called `calls` collectives on the group and will call no more. */
  leave: { group, calls: number() },
  /** The group has failed. */
  abort: { group, error: errorData, id: optional(integer()) },
  /** A group that you are not in has failed: that may be why I end. */
  'abort-elsewhere': { error: errorData, id: optional(integer()) },
  /** The reason that I may end for; none: it is over. */
  trouble: { error: optional(errorData), id: optional(integer()) },
  /** I am connected with all of you, and wait to be taken in. */
  waiting: {},
  /** Your message `id` has been read. */
  heard: { id: integer() },
  /** The group is about to fail with `code` because of operation `sequence`; this is what I know of my part. */
  report: {
    group,
    code: literal('mismatch', 'timeout'),
    sequence: number(),
    text: text(4096),
    arrived: flag,
    late: optional(flag),
    calls: optional(number()),
    waiting: optional(flag),
    timeoutMs: number(),
  },
  /** My posts for the order of a scheduled group (order-agreement.ts). */
  order: { group, round: count, batchBytes: integer({ min: 1 }), posts: list(orderPost, { max: postsPerMessage }) },
  /** The credit and partition of a scheduled group from a step on, by the rank that leads its tuning. */
  tuned: {
    group,
    atStep: count,
    point: object({ creditBytes: optional(integer({ min: 1 })), partitionBytes: optional(integer({ min: 1 })) }),
    isFinal: flag,
  },
  ping: { sentMs: number() },
  pong: { sentMs: number(), atMs: number() },
  /** The question for whom you wait. */
  whom: { id: integer({ min: 1 }) },
  /** The sender waits for these ranks of the world, in the call that the text describes; no ranks: it waits for nobody. */
  waits: { id: integer({ min: 1 }), text: text(4096), ranks: list(count, { max: 64 }) },
  /** Lend me memory to write to while I time our link. */
  'probe-open': { bytes: integer({ min: 1, max: probeBytesMax }) },
  'probe-opened': { key },
  'probe-close': {},
});

export type ControlMessage = ValueOf<typeof controlMessage>;

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export function encodeControl(message: ControlMessage): Uint8Array {
  const body = encoder.encode(JSON.stringify(message));
  const bytes = new Uint8Array(1 + body.length);
  bytes[0] = MessageType.Control;
  bytes.set(body, 1);
  return bytes;
}

/** @throws ShoalError `protocol` when the bytes are not a control message. */
export function decodeControl(message: Uint8Array): ControlMessage {
  let parsed: unknown;
  try {
    parsed = JSON.parse(decoder.decode(message.subarray(1)));
  } catch (cause) {
    throw new ShoalError('protocol', 'a control message is no JSON', { cause });
  }
  return parse('a control message', controlMessage, parsed);
}
