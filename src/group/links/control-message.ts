/** Rare events between the comm threads of two ranks, as JSON in a message of wire.ts. Every field is checked. */
import * as z from 'zod/mini';
import { errorCodes, ShoalError } from '../../base/errors.ts';
import { postsPerMessage } from '../../scheduler/order-agreement.ts';
import { groupIdMax, MessageType, probeBytesMax, scheduledNameMax } from './wire.ts';

const remoteRegion = z.object({
  rkey: z.int().check(z.gte(0)),
  bytes: z.number().check(z.gte(0)),
  handle: z.string().check(z.maxLength(256)),
});
const roundSeconds = z.number().check(z.gte(0), z.lte(1e3));
const errorData = z.object({
  code: z.enum(errorCodes),
  message: z.string().check(z.maxLength(65536)),
  rank: z.optional(z.int()),
  peer: z.optional(z.int()),
  operation: z.optional(z.string().check(z.maxLength(256))),
  sequence: z.optional(z.number()),
  bytes: z.optional(z.number()),
  timeoutMs: z.optional(z.number()),
  resource: z.optional(z.string().check(z.maxLength(256))),
  cause: z.optional(z.string().check(z.maxLength(65536))),
});

const orderPost = z.object({
  key: z.string().check(z.maxLength(scheduledNameMax)),
  priority: z.number(),
  what: z.string().check(z.maxLength(64)),
  bytes: z.int().check(z.gte(0)),
  unitBytes: z.int().check(z.gte(1)),
  parts: z.int().check(z.gte(1)),
});

const controlMessage = z.discriminatedUnion('type', [
  /** A region of mine that your writes and maps may name by `key`. */
  z.object({ type: z.literal('region'), key: z.int().check(z.gte(1)), remote: remoteRegion }),
  z.object({ type: z.literal('withdraw'), key: z.int().check(z.gte(1)) }),
  /** My control block of a group: the region `key`. `networkPath`: where sockets for its network path reach me; none: I cannot. */
  z.object({
    type: z.literal('group-open'),
    group: z.int().check(z.gte(0), z.lte(groupIdMax)),
    name: z.string().check(z.maxLength(1024)),
    key: z.int(),
    offset: z.int().check(z.gte(0)),
    networkPath: z.array(z.string().check(z.maxLength(256))).check(z.maxLength(64)),
  }),
  /** Whether I have all my sockets of the group's network path, and how long a round trip to other hosts takes on them. */
  z.object({
    type: z.literal('network-path-ready'),
    group: z.int(),
    ok: z.boolean(),
    roundTripUs: z.optional(z.number().check(z.gte(0), z.lte(1e9))),
  }),
  /** Seconds per round of timing the group's network path; undefined: I could not. */
  z.object({
    type: z.literal('network-path-timed'),
    group: z.int(),
    timings: z.optional(z.object({ tree: roundSeconds, all: roundSeconds, bytes: roundSeconds })),
  }),
  /** I have called `calls` collectives on the group and will call no more. */
  z.object({ type: z.literal('leave'), group: z.int(), calls: z.number() }),
  /** The group has failed. */
  z.object({ type: z.literal('abort'), group: z.int(), error: errorData, id: z.optional(z.int()) }),
  /** What may be the reason if I end; none: it is over. */
  z.object({ type: z.literal('trouble'), error: z.optional(errorData), id: z.optional(z.int()) }),
  /** Your message `id` has been read. */
  z.object({ type: z.literal('heard'), id: z.int() }),
  /** The group is about to fail with `code` because of operation `sequence`; this is what I know of my part. */
  z.object({
    type: z.literal('report'),
    group: z.int(),
    code: z.enum(['mismatch', 'timeout']),
    sequence: z.number(),
    text: z.string().check(z.maxLength(4096)),
    arrived: z.boolean(),
    late: z.optional(z.boolean()),
    calls: z.optional(z.number()),
    timeoutMs: z.number(),
  }),
  /** What I have for the order of a scheduled group (order-agreement.ts). */
  z.object({
    type: z.literal('order'),
    group: z.int(),
    round: z.int().check(z.gte(0)),
    batchBytes: z.int().check(z.gte(1)),
    posts: z.array(orderPost).check(z.maxLength(postsPerMessage)),
  }),
  /** Of a scheduled group, by the rank that leads its tuning: what all ranks schedule by, from a step on. */
  z.object({
    type: z.literal('tuned'),
    group: z.int(),
    atStep: z.int().check(z.gte(0)),
    point: z.object({ creditBytes: z.optional(z.int().check(z.gte(1))), partitionBytes: z.optional(z.int().check(z.gte(1))) }),
    isFinal: z.boolean(),
  }),
  z.object({ type: z.literal('ping'), sentMs: z.number() }),
  z.object({ type: z.literal('pong'), sentMs: z.number(), atMs: z.number() }),
  /** Whom do you wait for? */
  z.object({ type: z.literal('whom'), id: z.int().check(z.gte(1)) }),
  /** For these ranks of the world, in what the text says; none: for nobody. */
  z.object({
    type: z.literal('waits'),
    id: z.int().check(z.gte(1)),
    text: z.string().check(z.maxLength(4096)),
    ranks: z.array(z.int().check(z.gte(0))).check(z.maxLength(64)),
  }),
  /** Lend me memory to write to while I time our link. */
  z.object({ type: z.literal('probe-open'), bytes: z.int().check(z.gte(1), z.lte(probeBytesMax)) }),
  z.object({ type: z.literal('probe-opened'), key: z.int().check(z.gte(1)) }),
  z.object({ type: z.literal('probe-close') }),
]);

export type ControlMessage = z.infer<typeof controlMessage>;

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
  try {
    return controlMessage.parse(JSON.parse(decoder.decode(message.subarray(1))));
  } catch (cause) {
    throw new ShoalError('protocol', 'malformed control message', { cause });
  }
}
