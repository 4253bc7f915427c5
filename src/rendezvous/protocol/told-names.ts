/** The names of tensors that a receiver has told, by number: the sender's counterpart of NameTable. */
import type { ByteReader } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import { parseRendezvousKey } from '../table/rendezvous-key.ts';

/** A key as it comes in a request. */
export interface ToldKey {
  readonly key: string;
  /** Sender, incarnation and receiver of the key. */
  readonly ends: string;
}

interface ToldName extends ToldKey {
  /** The key up to its frame; `key` is the one outside loops. */
  readonly text: string;
}

export class ToldNames {
  readonly #namesMax: number;
  readonly #names = new Map<number, ToldName>();

  constructor(namesMax: number) {
    this.#namesMax = namesMax;
  }

  /** @throws ShoalError `protocol` for too many, and for what is no key. */
  tell(index: number, text: string): void {
    if (this.#names.size >= this.#namesMax && !this.#names.has(index))
      throw new ShoalError('protocol', `the peer names more than ${this.#namesMax} tensors`);
    const key = `${text};0:0`;
    const { name } = parseRendezvousKey(key);
    this.#names.set(index, { text, key, ends: text.slice(0, -name.length - 1) });
  }

  /** @throws ShoalError `protocol` for a name that was not told, and for numbers that keys cannot hold. */
  readKey(reader: ByteReader): ToldKey {
    const index = reader.u32();
    const name = this.#names.get(index);
    if (name === undefined) throw new ShoalError('protocol', `a request names tensor ${index}, which was not told`);
    const [frame, iteration] = [reader.varint(), reader.varint()];
    // One string for all steps: tables find it by a hash that it has already.
    if (frame === 0 && iteration === 0) return name;
    const key = `${name.text};${frame}:${iteration}`;
    parseRendezvousKey(key);
    return { key, ends: name.ends };
  }
}
