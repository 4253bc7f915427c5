/** The regions a fabric accepts remote writes into, by rkey. Every check of a remote write is here, so that all
 *  providers refuse the same things. It must not know how bytes arrive. */
import { ShoalError } from '../base/errors.ts';
import type { Random } from '../base/random.ts';
import type { Region } from '../memory/region.ts';
import type { RegisteredRegion } from './fabric.ts';

export interface RegionTableOptions {
  readonly random: Random;
  /** Makes the provider's text for peers that map the region. Default: empty. */
  readonly handleOf?: (region: Region) => string;
  /** Called after a region was taken out. */
  readonly onDeregister?: (rkey: number) => void;
}

interface Entry {
  readonly registered: RegisteredRegion;
  readonly view: Buffer;
}

/** Most regions that are registered at once. */
const maxRegions = 65_536;

export class RegionTable {
  readonly #options: RegionTableOptions;
  readonly #entries = new Map<number, Entry>();

  constructor(options: RegionTableOptions) {
    this.#options = options;
  }

  /** Registers a region. rkeys are random, never 0, and not reused while the region is registered.
   *  @throws ShoalError `out-of-memory` when the table is full. */
  register(region: Region): RegisteredRegion {
    const { random, handleOf } = this.#options;
    if (this.#entries.size >= maxRegions) {
      const message = `cannot register a region of ${region.bytes} bytes: ${maxRegions} are registered; deregister some`;
      throw new ShoalError('out-of-memory', message, { bytes: region.bytes });
    }
    const handle = handleOf?.(region) ?? '';
    let rkey = 0;
    while (rkey === 0 || this.#entries.has(rkey)) rkey = random.integer(0x1_0000_0000);
    const registered: RegisteredRegion = {
      rkey,
      bytes: region.bytes,
      handle,
      region,
      deregister: () => {
        if (this.#entries.get(rkey)?.registered === registered) {
          this.#entries.delete(rkey);
          this.#options.onDeregister?.(rkey);
        }
      },
    };
    this.#entries.set(rkey, { registered, view: Buffer.from(region.buffer, 0, region.bytes) });
    return registered;
  }

  /** The registration, or undefined when there is none (any more). */
  get(rkey: number): RegisteredRegion | undefined {
    return this.#entries.get(rkey)?.registered;
  }

  /** The bytes a remote write addresses.
   *  @throws ShoalError `protocol` for an unknown rkey or a range that is not inside the region. */
  locate(rkey: number, offset: number, bytes: number): Buffer {
    const entry = this.#entries.get(rkey);
    if (entry === undefined) {
      throw new ShoalError('protocol', `write of ${bytes} bytes to unknown rkey ${rkey}; was the region deregistered?`, { bytes });
    }
    checkRange(rkey, entry.view.length, offset, bytes);
    return entry.view.subarray(offset, offset + bytes);
  }

  clear(): void {
    for (const { registered } of [...this.#entries.values()]) registered.deregister();
  }
}

/** @throws ShoalError `protocol` when [offset, offset + bytes) is not inside a region of `regionBytes`. */
export function checkRange(rkey: number, regionBytes: number, offset: number, bytes: number): void {
  // Written without `offset + bytes`: the sum of two hostile numbers may round.
  const inside =
    Number.isSafeInteger(offset) &&
    Number.isSafeInteger(bytes) &&
    offset >= 0 &&
    bytes >= 0 &&
    offset <= regionBytes &&
    bytes <= regionBytes - offset;
  if (!inside) {
    const message = `write of ${bytes} bytes at offset ${offset} to rkey ${rkey} is outside its region of ${regionBytes} bytes`;
    throw new ShoalError('protocol', message, { bytes });
  }
}
