/** Heartbeats between connected, silent processes: ZeroMQ sockets do not report the death of a peer. A
 *  heartbeat is a message without frames; its receiver replies to a heartbeat request. */
import type { Clock } from '../../base/clock.ts';
import { MessageType, Msg } from '../../messaging/msg.ts';
import type { Address } from '../../messaging/address.ts';

export const heartbeatType = MessageType.user + 100;
const [asks, answers] = [0, 1];

export function heartbeat(source: Address, destination: Address): Msg {
  return make(source, destination, asks);
}

/** The answer, or undefined for an answer. */
export function heartbeatAnswer(msg: Msg): Msg | undefined {
  return msg.targetValue === asks ? make(msg.destination, msg.source, answers) : undefined;
}

function make(source: Address, destination: Address, kind: number): Msg {
  const msg = new Msg(source, destination);
  msg.type = heartbeatType;
  msg.setTarget(kind, 0);
  return msg;
}

/** How often. After how much silence a peer counts as lost is a setting. */
export const heartbeatMs = 250;

/** Time in which this thread was there to hear its peers. A thread that is not scheduled, or computes, for seconds must not take
 *  them for silent: their messages are waiting. */
export class ListeningTime {
  readonly #clock: Clock;
  #tickMs: number;
  #elapsedMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#tickMs = clock.now();
  }

  /** Milliseconds, up to the last tick. */
  get nowMs(): number {
    return this.#elapsedMs;
  }

  /** To be called every `heartbeatMs`; what it comes later than twice that does not count. */
  tick(): void {
    const nowMs = this.#clock.now();
    this.#elapsedMs += Math.min(nowMs - this.#tickMs, 2 * heartbeatMs);
    this.#tickMs = nowMs;
  }
}
