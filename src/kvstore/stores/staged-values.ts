/** The staging of one operation: values that are not tensors of the store are copied into its memory, and results back. It
 *  frees all of it at the end, with one exception: when an operation ended without a reply, a server may still
 *  write its result. Such memory is never reused. */
import type { ErrorCode, ShoalError } from '../../base/errors.ts';
import type { ValueBlock, ValueRef } from '../protocol/value-space.ts';
import { HeldValues } from '../values/held-values.ts';
import type { Value } from '../values/types.ts';

/** Errors that come from this side: no server has said that it is done. */
const unanswered: ReadonlySet<ErrorCode> = new Set(['timeout', 'peer-lost', 'aborted', 'closed']);

export class StagedValues {
  readonly #allocate: (bytes: number) => ValueBlock;
  readonly #blocks: ValueBlock[] = [];
  readonly #results: (() => void)[] = [];
  readonly #held = new HeldValues();

  constructor(allocate: (bytes: number) => ValueBlock) {
    this.#allocate = allocate;
  }

  /** Nothing is staged: every value is reached where it is, and nothing is copied afterwards. */
  get empty(): boolean {
    return this.#blocks.length === 0 && this.#results.length === 0;
  }

  take(bytes: number): ValueBlock {
    const block = this.#allocate(bytes);
    this.#blocks.push(block);
    return block;
  }

  copyIn(data: Uint8Array): ValueBlock {
    const block = this.take(data.byteLength);
    block.view.set(data);
    return block;
  }

  /** `out`, whose bytes are `data`, receives what is in the block when the operation has succeeded. */
  result(block: ValueBlock, out: Value, data: Uint8Array): ValueRef {
    this.#held.add(out);
    this.#results.push(() => data.set(block.view));
    return block.ref;
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
