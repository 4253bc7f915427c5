/** The regions that the two ends of a libfabric connection write to. Providers drop a write with a wrong key in silence, and some drop
 *  everything behind it. So the first write to an rkey asks the target for access, and the writer refuses ranges outside; the key is
 *  libfabric's own check.
 *
 *      writer   claim(rkey) ──▶   ◀── grant(address, key)   writes …   ◀── withdraw(rkey)   withdrawn(rkey) ──▶   target
 *
 *  It must not know how messages travel. */
import { ShoalError } from '../../../base/errors.ts';
import type { Grant, LibfabricConnectionOptions } from './libfabric-connection-options.ts';
import { grantLayout, MessageKind } from './libfabric-message.ts';

interface Range {
  readonly rkey: number;
  readonly from: number;
  readonly until: number;
}

type Options = Pick<LibfabricConnectionOptions, 'order' | 'grantOf'>;
type Say = (kind: number, rkey: number, payload?: Uint8Array) => void;

export class WriteAccess {
  readonly #options: Options;
  readonly #say: Say;
  readonly #grants = new Map<number, Grant>();
  readonly #claimed = new Set<number>();
  /** Ranges of writes under way, by slot. */
  readonly #ranges = new Map<number, Range>();
  /** rkeys that the peer has withdrawn while writes to them are under way. */
  readonly #leaving = new Set<number>();
  /** Regions of this end that the peer may write to, each with the callback of the end of its withdrawal, if that has begun. */
  readonly #granted = new Map<number, (() => void) | undefined>();

  /** @param say sends a message to the peer's end of this. */
  constructor(options: Options, say: Say) {
    this.#options = options;
    this.#say = say;
  }

  // ── writes of this end ─────────────────────────────────────────────────────────────────────────────────────────

  /** The access to a region of the peer; undefined until the peer has granted it. */
  grantFor(rkey: number): Grant | undefined {
    const grant = this.#grants.get(rkey);
    if (grant === undefined && !this.#claimed.has(rkey)) {
      this.#claimed.add(rkey);
      this.#say(MessageKind.Claim, rkey);
    }
    return grant;
  }

  /** Number of writes under way. */
  get underWay(): number {
    return this.#ranges.size;
  }

  overlaps(rkey: number, from: number, until: number): boolean {
    for (const range of this.#ranges.values()) if (range.rkey === rkey && range.from < until && from < range.until) return true;
    return false;
  }

  onWriting(slot: number, range: Range): void {
    this.#ranges.set(slot, range);
  }

  onWritten(slot: number): void {
    this.#ranges.delete(slot);
    for (const rkey of this.#leaving) this.#acknowledge(rkey);
  }

  // ── regions of this end ────────────────────────────────────────────────────────────────────────────────────────

  /** Withdraws a region from the peer, and calls `done` once the peer does not write to it any more; false: it never did. */
  withdraw(rkey: number, done: () => void): boolean {
    if (!this.#granted.has(rkey)) return false;
    this.#granted.set(rkey, done);
    this.#say(MessageKind.Withdraw, rkey);
    return true;
  }

  /** The peer writes nothing any more. */
  end(): void {
    for (const done of this.#granted.values()) done?.();
    this.#granted.clear();
  }

  // ── messages of the peer ───────────────────────────────────────────────────────────────────────────────────────

  /** @throws ShoalError `protocol`. */
  onMessage(kind: number, rkey: number, payload: Uint8Array): void {
    switch (kind) {
      case MessageKind.Claim: {
        const grant = this.#options.grantOf(rkey);
        if (grant === undefined) throw new ShoalError('protocol', `write to unknown rkey ${rkey}; was the region deregistered?`);
        this.#granted.set(rkey, undefined);
        this.#say(MessageKind.Grant, rkey, grantLayout.encode(grant));
        break;
      }
      case MessageKind.Grant:
        if (!this.#claimed.has(rkey)) throw new ShoalError('protocol', `rkey ${rkey} was granted unasked`);
        this.#grants.set(rkey, grantLayout.decode(payload));
        break;
      case MessageKind.Withdraw:
        this.#grants.delete(rkey);
        this.#claimed.delete(rkey);
        this.#acknowledge(rkey);
        break;
      default:
        this.#granted.get(rkey)?.();
        this.#granted.delete(rkey);
    }
  }

  /** Confirms a withdrawal, behind every write to the region: where the provider keeps no order, when those are done. */
  #acknowledge(rkey: number): void {
    if (this.#options.order !== 'ordered' && this.overlaps(rkey, 0, Infinity)) {
      this.#leaving.add(rkey);
      return;
    }
    this.#leaving.delete(rkey);
    this.#say(MessageKind.Withdrawn, rkey);
  }
}
