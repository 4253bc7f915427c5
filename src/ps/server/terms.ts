/** Terms of servers. A term is the number of processes that have been a server, with the present one. Every message between servers bears
 *  its sender's; a receiver that knows a later one ignores it. */
import { isCount, Layout } from '../../base/bytes.ts';
import type { Address } from '../../messaging/address.ts';
import type { Msg } from '../../messaging/msg.ts';
import { malformed } from '../protocol/wire.ts';

/** The last frame of every message between servers. */
const termLayout = new Layout('a message between servers', { term: 'f53' });

export function withTerm(frames: readonly Uint8Array[], term: number): Uint8Array[] {
  return [...frames, termLayout.encode({ term })];
}

/** The latest term that a server has heard of, by other server. */
export class ServerTerms {
  readonly #latest = new Map<Address, number>();

  /** True for a message of a server that another process has become since. @throws ShoalError `protocol`. */
  isPast({ source, frames }: Msg): boolean {
    const frame = frames.at(-1);
    if (frame?.byteLength !== termLayout.bytes) throw malformed('a server does not say its term');
    const { term } = termLayout.decode(frame);
    const known = this.#latest.get(source) ?? 0;
    if (term > known) this.#latest.set(source, term);
    return term < known;
  }

  /** All of them, as JSON. */
  pack(): unknown[] {
    return [...this.#latest].map(([server, term]) => [String(server), term]);
  }

  /** Takes what `pack` made in the place of what is known. @throws ShoalError `protocol`. */
  unpack(packed: readonly unknown[]): void {
    this.#latest.clear();
    for (const entry of packed) {
      const [server, term] = Array.isArray(entry) ? (entry as unknown[]) : [];
      if (typeof server !== 'string' || !isCount(term)) throw malformed('a server without its term');
      this.#latest.set(BigInt(server), term);
    }
  }
}
