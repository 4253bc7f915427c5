/** Every bound of the messaging layer, with its default. Plain data. */
import { ShoalError } from '../base/errors.ts';
import { checkOptions, integer, noOptions } from '../base/schema.ts';

/** Bounds of queues, windows and messages; positive integers. */
export interface MessagingLimits {
  /** Messages a sender holds for one destination that does not take them, connected or not. Default 16,384. */
  readonly queueMessages: number;
  /** The same in bytes; the message that passes the bound is the last one taken. Default 256 MiB. */
  readonly queueBytes: number;
  /** Messages on their way to one peer that it has not received with `receive` yet. Default 8,192. */
  readonly windowMessages: number;
  /** The same in bytes; one larger message is let through alone. Default 32 MiB. */
  readonly windowBytes: number;
  /** Largest message, frames and header; of a socket, no more than of its context. Peers are told. Default 1 GiB. */
  readonly messageBytes: number;
  /** Most frames of a message, pointers included; of a socket, no more than of its context. Peers are told. Default and
   *  most 65,535. */
  readonly frames: number;
  /** Destinations a router knows or buffers for. Default 65,536. */
  readonly peers: number;
  /** Time in which a dealer tries to get a lost connection back, in milliseconds. Default 60,000. */
  readonly reconnectMs: number;
}

/** Most frames, and bytes of one, that a packet can express (wire.ts). */
export const framesMost = 0xffff;
export const frameBytesMost: number = 2 ** 30 - 1;

/** The bounds of a context that names none. */
export const defaultLimits: MessagingLimits = {
  queueMessages: 16_384,
  queueBytes: 256 * 2 ** 20,
  windowMessages: 8_192,
  windowBytes: 32 * 2 ** 20,
  messageBytes: 2 ** 30,
  frames: framesMost,
  peers: 65_536,
  reconnectMs: 60_000,
};

const limitOptions = new Map(Object.keys(defaultLimits).map((name) => [name as keyof MessagingLimits, integer({ min: 1 })]));

/** @throws ShoalError `usage` for a limit that does not exist, for anything but positive safe integers, and for more frames than a
 *  packet can say. */
export function limitsOf(changes: Partial<MessagingLimits> = noOptions, base: MessagingLimits = defaultLimits): MessagingLimits {
  checkOptions('limits', changes, limitOptions);
  const limits = { ...base, ...changes };
  if (limits.frames > framesMost) throw new ShoalError('usage', `limit frames is ${limits.frames}; a message has at most ${framesMost}`);
  return limits;
}

/** The limits of a socket: the context's with changes. @throws ShoalError `usage` also for larger messages than the context's backends
 *  take. */
export function socketLimits(context: MessagingLimits, changes?: Partial<MessagingLimits>): MessagingLimits {
  const limits = limitsOf(changes, context);
  for (const name of ['messageBytes', 'frames'] as const) {
    if (limits[name] <= context[name]) continue;
    throw new ShoalError('usage', `limit ${name} of a socket is ${limits[name]}, of its context ${context[name]}; raise the context's`);
  }
  return limits;
}

/** Bytes of a packet beside the last of its messages: prefix, padding, and messages before it. */
const packetSlackBytes = 2 * 2 ** 20;

/** Bytes of all parts of a packet, at most: what a backend takes before it knows what is in them. */
export function packetBytesMost({ messageBytes }: MessagingLimits): number {
  return messageBytes + packetSlackBytes;
}
