/** The peers that count as lost: ZeroMQ sockets report no death of a peer, and no transport that of its host. A process that says nothing
 *  is asked by its pulse (pulse.ts), which a process that is idle, or too busy to say anything, answers as well.
 *
 *      heard ──silent for a while──▶ asked, again and again ──it runs──▶ as good as heard
 *                                            └── it has ended, or silent for too long ──▶ lost */
import type { Pulse } from './pulse.ts';

/** The time between two looks at who is silent. The silence after which a peer counts as lost is a setting. */
export const lookMs = 250;

/** The silence of one peer, since it was heard of last. It is measured in looks, not by a clock: a thread that is not scheduled, or
 *  computes, for seconds must not take its peers for silent, because their messages are waiting. */
export class Silence {
  readonly #limitMs: number;
  readonly #ask: () => Promise<Pulse>;
  /** The milliseconds since it was heard of. */
  ms = 0;
  #isAsking = false;
  #hasEnded = false;
  /** The peer's connection is open. One that has none, and runs, is silent all the same. */
  isConnected = true;

  /** @param limitMs so much silence and it is lost. @param ask asks it, or learns in another way, whether it runs. */
  constructor(limitMs: number, ask: () => Promise<Pulse>) {
    this.#limitMs = limitMs;
    this.#ask = ask;
  }

  heard(): void {
    this.ms = 0;
  }

  /** Looks at the peer; called every `lookMs`, and late calls do not count as silence. @returns why the peer counts as lost. */
  look(): string | undefined {
    this.ms += lookMs;
    if (this.#hasEnded) return 'has ended without a word';
    if (this.ms > this.#limitMs)
      return `has been silent for ${Math.round(this.ms / 1000)} s (SHOAL_KV_SILENCE_MS); is its process alive, or was it stopped?`;
    if (this.ms > this.#limitMs / 4) void this.#askNow();
    return undefined;
  }

  async #askNow(): Promise<void> {
    if (this.#isAsking) return;
    this.#isAsking = true;
    try {
      const pulse = await this.#ask();
      if (pulse === 'runs' && this.isConnected) this.heard();
      this.#hasEnded = pulse === 'ended';
    } catch {
      // The store, which says where it is, is lost: others hear of that as well.
    } finally {
      this.#isAsking = false;
    }
  }
}
