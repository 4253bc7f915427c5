/** Heartbeats between connected processes, and who counts as lost: ZeroMQ sockets do not report the death of a peer. A
 *  heartbeat is a message without frames; its receiver replies to a heartbeat request. Whoever is too busy to send or answer any is asked
 *  by its pulse (pulse.ts).
 *
 *      heard ──silent for a while──▶ asked, again and again ──it runs──▶ as good as heard
 *                                            └── it has ended, or silent for too long ──▶ lost */
import type { Clock, Timer } from '../../base/clock.ts';
import { MessageType, Msg } from '../../messaging/msg.ts';
import type { Address } from '../../messaging/address.ts';
import type { Pulse } from './pulse.ts';

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
  #elapsedMs = 0;
  #timer: Timer | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#next();
  }

  /** Milliseconds, up to the last tick. */
  get nowMs(): number {
    return this.#elapsedMs;
  }

  close(): void {
    this.#timer?.cancel();
  }

  /** What a tick comes late does not count. */
  #next(): void {
    this.#timer = this.#clock.setTimer(heartbeatMs, () => {
      this.#elapsedMs += heartbeatMs;
      this.#next();
    });
  }
}

export interface SilenceOptions {
  readonly listening: ListeningTime;
  /** So much and it is lost. */
  readonly limitMs: number;
  /** Asks it, or learns in another way whether it runs. */
  readonly ask: () => Promise<Pulse>;
}

/** Of one peer, since it was heard of last. */
export class Silence {
  readonly #options: SilenceOptions;
  #heardMs: number;
  #isAsking = false;
  #hasEnded = false;
  /** The peer's connection is open. One that has none, and runs, is silent all the same. */
  isConnected = true;

  constructor(options: SilenceOptions) {
    this.#options = options;
    this.#heardMs = options.listening.nowMs;
  }

  get ms(): number {
    return this.#options.listening.nowMs - this.#heardMs;
  }

  heard(): void {
    this.#heardMs = this.#options.listening.nowMs;
  }

  /** To be called with every heartbeat. @returns why the peer counts as lost. */
  look(): string | undefined {
    const { limitMs } = this.#options;
    if (this.#hasEnded) return 'has ended without a word';
    if (this.ms > limitMs)
      return `has been silent for ${Math.round(this.ms / 1000)} s (SHOAL_KV_SILENCE_MS); is its process alive, or was it stopped?`;
    if (this.ms > limitMs / 4) void this.#ask();
    return undefined;
  }

  async #ask(): Promise<void> {
    if (this.#isAsking) return;
    this.#isAsking = true;
    try {
      const pulse = await this.#options.ask();
      if (pulse === 'runs' && this.isConnected) this.heard();
      this.#hasEnded = pulse === 'ended';
    } catch {
      // The store, which says where it is, is lost: others hear of that as well.
    } finally {
      this.#isAsking = false;
    }
  }
}
