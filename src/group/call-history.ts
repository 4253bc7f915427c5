/** What one rank knows of its own calls on a group: the latest of them in full, the others by what its control block still
 *  says. The main thread makes calls of the lane by itself; they are known only from the block.
 *
 *  It must not know operations, other ranks, or why somebody asks. */
import type { ControlBlock } from '../collectives/control-block.ts';
import { decodeContract, describeCall, describeContract, type CollectiveCall } from './contract.ts';
import type { Report } from './diagnosis.ts';

export class CallHistory {
  readonly #own: ControlBlock;
  readonly #callsMax: number;
  readonly #calls: { sequence: number; call: CollectiveCall }[] = [];

  /** `own` is this rank's control block; the latest `callsMax` calls are kept. */
  constructor(own: ControlBlock, options: { callsMax: number }) {
    this.#own = own;
    this.#callsMax = options.callsMax;
  }

  /** Calls made so far, through either thread. */
  get called(): number {
    return this.#own.called;
  }

  remember(sequence: number, call: CollectiveCall): void {
    this.#own.called = Math.max(this.#own.called, sequence + 1);
    this.#calls.push({ sequence, call });
    if (this.#calls.length > this.#callsMax) this.#calls.shift();
  }

  /** The call number `sequence`; undefined when it was not made, went by the main thread alone, or is long ago. */
  find(sequence: number): CollectiveCall | undefined {
    return this.#calls.find((entry) => entry.sequence === sequence)?.call;
  }

  /** Calls that the main thread made by itself and of which the slots from `firstSlot` on still say what they were: the latest
   *  of every lane's turns, oldest first. The latest call of all may be underway. */
  calledAlone(firstSlot: number): { readonly sequence: number; readonly call: CollectiveCall; readonly done: boolean }[] {
    const found = this.#own.slots.flatMap((_, slot) => {
      const sequence = this.#own.published(slot) - 1;
      if (slot < firstSlot || sequence < 0 || this.find(sequence) !== undefined) return [];
      const { kind, dtype, sequence: agreed, ...rest } = decodeContract(this.#own.contract(slot));
      // The contract of another call: this one was announced without it being written.
      if (kind === undefined || dtype === undefined || agreed !== sequence) return [];
      return [{ sequence, call: { kind, dtype, ...rest }, done: sequence + 1 < this.called }];
    });
    return found.sort((a, b) => a.sequence - b.sequence);
  }

  /** What this rank knows of its own call number `sequence`. */
  report(sequence: number): Report {
    const call = this.find(sequence);
    if (call) return { text: describeCall(call, sequence), arrived: true };
    const announced = this.#announced(sequence);
    if (announced !== undefined) return { text: announced, arrived: true };
    const { called } = this;
    if (sequence < called) return { text: `made this call long ago and has made ${called} since`, arrived: true };
    return { text: `has not called it; ${this.#lastCall()}`, arrived: false };
  }

  #lastCall(): string {
    const { called } = this;
    if (called === 0) return 'it has called nothing yet';
    const last = called - 1;
    const call = this.find(last);
    return `its last call was ${call ? describeCall(call, last) : (this.#announced(last) ?? `#${last}`)}`;
  }

  /** The call as its contract says it, while its slot has not been used again. */
  #announced(sequence: number): string | undefined {
    const slot = this.#own.slots.findIndex((_, each) => this.#own.published(each) === sequence + 1);
    return slot < 0 ? undefined : describeContract(this.#own.contract(slot));
  }
}
