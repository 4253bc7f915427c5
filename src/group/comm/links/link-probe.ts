/** Times a link: the latency of a message, the cost per message, the cost per byte, the difference of the clocks. The other side replies
 *  and lends memory.
 *
 *      probe ──▶ answer                              a round trip; the shortest of several
 *      write × burst, probe ──▶ answer               the extra time of small writes: the cost of one
 *      write × pieces, probe ──▶ answer              the extra time of their bytes: the cost of a byte
 *      ping, own time ──▶ pong, peer's time          the difference of the clocks, by the shortest round trip (Cristian's algorithm)
 *
 *  Writes and messages of a link keep their order, so a reply proves that the writes before it have landed. */
import type { Clock } from '../../../base/clock.ts';
import { getOrMake } from '../../../base/collections/lists.ts';
import type { Region } from '../../../memory/region.ts';
import type { PeerLink } from './peer-link.ts';
import type { ScratchBlock, ScratchPool } from './scratch-pool.ts';
import { encodeControl, type ControlMessage } from './control-message.ts';
import { decodeNumbered, encodeNumbered, MessageType } from './wire.ts';

/** Rates of one link, in seconds and seconds per byte. */
export interface LinkRates {
  /** Time of a message on its way, without the cost of sending it. */
  readonly latency: number;
  readonly overhead: number;
  readonly byte: number;
}

const roundTrips = 8;
const burst = 32;
const burstBytes = 64;
const pieceBytes = 256 * 1024;
const pieces = 4;
const clockRounds = 5;
/** A peer that does not answer for so long is left alone. */
const answerTimeoutMs = 1000;

export interface LinkProbeOptions {
  readonly clock: Clock;
  /** Lends memory to peers, and holds what is written to theirs. */
  readonly scratch: ScratchPool;
}

/** Both ends of all links of a rank. */
export class LinkProbe {
  readonly #options: LinkProbeOptions;
  readonly #lent = new Map<PeerLink, ScratchBlock>();
  #waiting: { link: PeerLink; id: number; resolve: (value: number | undefined) => void } | undefined;
  #nextId = 1;

  constructor(options: LinkProbeOptions) {
    this.#options = options;
  }

  /** One link at a time. Undefined when the peer does not answer, or time stands still. */
  async measure(link: PeerLink): Promise<LinkRates | undefined> {
    const { scratch } = this.#options;
    const key = await this.#open(link);
    if (key === undefined) return undefined;
    const source = scratch.take(pieceBytes);
    try {
      return await this.#time(link, source.region, key);
    } catch {
      // The link was lost meanwhile: whoever depends on it is told by its close.
      return undefined;
    } finally {
      scratch.give(source);
      link.post(encodeControl({ type: 'probe-close' }));
    }
  }

  /** Milliseconds to add to this rank's wall time to get the peer's; 0 when the peer does not answer. One link at a time. */
  async clockOffsetMs(link: PeerLink): Promise<number> {
    const { clock } = this.#options;
    let [shortestMs, offsetMs] = [Infinity, 0];
    for (let round = 0; round < clockRounds; round++) {
      const sentMs = clock.wallNow();
      const answered = this.#wait(link, sentMs);
      link.post(encodeControl({ type: 'ping', sentMs }));
      const atMs = await answered;
      if (atMs === undefined) break;
      const nowMs = clock.wallNow();
      if (nowMs - sentMs < shortestMs) [shortestMs, offsetMs] = [nowMs - sentMs, atMs - (sentMs + nowMs) / 2];
    }
    return offsetMs;
  }

  // ── the other end ───────────────────────────────────────────────────────────────────────────────────────────────

  onMessage(link: PeerLink, message: Uint8Array): void {
    const id = decodeNumbered(message);
    if (message[0] === MessageType.Probe) link.post(encodeNumbered(MessageType.Answer, id));
    else this.#settle(link, id, id);
  }

  onControl(link: PeerLink, message: Extract<ControlMessage, { type: 'ping' | 'pong' | `probe-${string}` }>): void {
    switch (message.type) {
      case 'ping':
        link.post(encodeControl({ type: 'pong', sentMs: message.sentMs, atMs: this.#options.clock.wallNow() }));
        return;
      case 'pong':
        this.#settle(link, message.sentMs, message.atMs);
        return;
      case 'probe-open': {
        // A peer that gave up while this process was stopped asks again: the answer to the first question must hold for both.
        const block = getOrMake(this.#lent, link, () => this.#options.scratch.take(message.bytes));
        link.post(encodeControl({ type: 'probe-opened', key: block.key }));
        return;
      }
      case 'probe-opened':
        this.#settle(link, 0, message.key);
        return;
      case 'probe-close': {
        const block = this.#lent.get(link);
        this.#lent.delete(link);
        if (block) this.#options.scratch.give(block);
      }
    }
  }

  // ── this end ────────────────────────────────────────────────────────────────────────────────────────────────────

  async #time(link: PeerLink, region: Region, key: number): Promise<LinkRates | undefined> {
    const remote = link.remote(key);
    const write = (bytes: number, offset: number): Promise<void> =>
      link.connection.write({ region, offset: 0, bytes }, { region: remote, offset });
    const tripMs = await this.#shortestOf(roundTrips, link, () => []);
    // The first stream finds connections that have not yet learnt how much they may send.
    const stream = (): Promise<void>[] => Array.from({ length: pieces }, () => write(pieceBytes, 0));
    const streamMs = await this.#shortestOf(2, link, stream);
    const burstMs = await this.#shortestOf(3, link, () =>
      Array.from({ length: burst }, (_, index) => write(burstBytes, index * burstBytes)),
    );
    if (tripMs === undefined || streamMs === undefined || burstMs === undefined || tripMs <= 0) return undefined;
    // Sending is a part of a trip; a burst on a busy machine can say that it is more.
    const overheadMs = Math.min(Math.max(0, burstMs - tripMs) / burst, tripMs / 2);
    const byteMs = Math.max(0, streamMs - tripMs - overheadMs * pieces) / (pieceBytes * pieces);
    return { latency: (tripMs / 2 - overheadMs) / 1e3, overhead: overheadMs / 1e3, byte: byteMs / 1e3 };
  }

  /** Times some writes: from the first to the answer that says they have landed. */
  async #shortestOf(rounds: number, link: PeerLink, start: () => Promise<void>[]): Promise<number | undefined> {
    const { clock } = this.#options;
    let shortestMs: number | undefined;
    for (let round = 0; round < rounds; round++) {
      const startMs = clock.now();
      const writes = start();
      const answered = this.#wait(link, this.#nextId);
      link.post(encodeNumbered(MessageType.Probe, this.#nextId++));
      const written = Promise.all(writes);
      written.catch(() => undefined);
      const answer = await answered;
      const tookMs = clock.now() - startMs;
      if (answer === undefined) return undefined;
      await written;
      if (shortestMs === undefined || tookMs < shortestMs) shortestMs = tookMs;
    }
    return shortestMs;
  }

  /** Key of the memory the peer lends. */
  #open(link: PeerLink): Promise<number | undefined> {
    const opened = this.#wait(link, 0);
    link.post(encodeControl({ type: 'probe-open', bytes: pieceBytes }));
    return opened;
  }

  /** The peer's answer to number or time `id`; undefined when it does not answer. */
  #wait(link: PeerLink, id: number): Promise<number | undefined> {
    return new Promise((resolve) => {
      const timer = this.#options.clock.setTimer(answerTimeoutMs, () => this.#settle(link, id, undefined));
      this.#waiting = {
        link,
        id,
        resolve: (value) => {
          timer.cancel();
          resolve(value);
        },
      };
    });
  }

  #settle(link: PeerLink, id: number, value: number | undefined): void {
    const waiting = this.#waiting;
    if (waiting?.link !== link || waiting.id !== id) return;
    this.#waiting = undefined;
    waiting.resolve(value);
  }
}
