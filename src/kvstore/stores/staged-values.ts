/** The staging of one operation: values that are not tensors of the store are copied into its memory, and results back. It
 *  frees all of it at the end, with one exception: when an operation ended without a reply, a server may still
 *  write its result. Such memory is never reused. */
import type { ErrorCode, ShoalError } from '../../base/errors.ts';
import type { OwnValues, ValueBlock, ValueRef } from '../../ps/protocol/value-space.ts';
import { HeldValues } from '../calls/held-values.ts';
import type { Value } from '../calls/types.ts';

/** Errors that come from this side: no server has said that it is done. */
const unanswered: ReadonlySet<ErrorCode> = new Set(['timeout', 'peer-lost', 'aborted', 'closed']);

/** Memory of one value, until all is freed. */
export type StagedPlace = Pick<ValueBlock, 'ref' | 'view'>;

/** Small values share blocks of at most so many bytes, side by side: neighbours travel as one, and cost one block. */
const sharedBytesMost = 256 * 1024;
const smallBytesMost = 16 * 1024;

export class StagedValues {
  readonly #values: Pick<OwnValues, 'allocate'>;
  readonly #blocks: ValueBlock[] = [];
  readonly #results: (() => void)[] = [];
  readonly #held = new HeldValues();
  /** The block that small values are put into, and where the next one goes. */
  #shared: ValueBlock | undefined;
  #at = 0;
  /** Bytes of values that will be staged. */
  #expected: number;

  /** @param expectedBytes of all values together, as far as it is known. */
  constructor(values: Pick<OwnValues, 'allocate'>, expectedBytes: number) {
    this.#values = values;
    this.#expected = expectedBytes;
  }

  /** Nothing is staged: every value is reached where it is, and nothing is copied afterwards. */
  get empty(): boolean {
    return this.#blocks.length === 0 && this.#results.length === 0;
  }

  /** @param elementBytes what its beginning is aligned to. */
  take(bytes: number, elementBytes: number): StagedPlace {
    if (bytes > smallBytesMost) return this.#allocate(bytes);
    let at = Math.ceil(this.#at / elementBytes) * elementBytes;
    if (this.#shared === undefined || at + bytes > this.#shared.ref.bytes) {
      this.#shared = this.#allocate(Math.max(bytes, Math.min(this.#expected, sharedBytesMost)));
      at = 0;
    }
    const { ref, view } = this.#shared;
    this.#at = at + bytes;
    this.#expected -= bytes;
    return { ref: { region: ref.region, offset: ref.offset + at, bytes }, view: view.subarray(at, at + bytes) };
  }

  #allocate(bytes: number): ValueBlock {
    const block = this.#values.allocate(bytes);
    this.#blocks.push(block);
    return block;
  }

  copyIn(data: Uint8Array, elementBytes: number): StagedPlace {
    const place = this.take(data.byteLength, elementBytes);
    place.view.set(data);
    return place;
  }

  /** `out`, whose bytes are `data`, receives what is in the place when the operation has succeeded. */
  result(place: StagedPlace, out: Value, data: Uint8Array): ValueRef {
    this.#held.add(out);
    this.#results.push(() => data.set(place.view));
    return place.ref;
  }

  /** `out`, whose bytes are `data`, receives what the result has that was asked for before. */
  spread(result: Uint8Array, out: Value, data: Uint8Array): void {
    this.#held.add(out);
    this.#results.push(() => data.set(result));
  }

  copyOut(): void {
    for (const copy of this.#results) copy();
  }

  /** The operation begins. */
  hold(): void {
    this.#held.hold();
  }

  /** It has ended. */
  end(error: ShoalError | undefined): void {
    this.#held.letGo();
    this.free(error);
  }

  free(error?: ShoalError): void {
    if (error !== undefined && unanswered.has(error.code)) return;
    for (const block of this.#blocks) block.free();
  }
}
