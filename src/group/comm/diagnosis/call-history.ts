/** One rank's record of its own calls on a group: the latest in full, the others from the log in its control block. That log is the only
 *  record of calls on the host path and the network path, which the main thread makes by itself.
 *
 *  It must not know operations, other ranks, or the reason for a question. */
import type { ControlBlock } from '../../../collectives/control-block.ts';
import { decodeContract, describeCall, describeContract, type CollectiveCall } from '../../../call/contract.ts';
import type { Report } from './diagnosis.ts';

/** A call that the main thread made without its comm thread. */
export interface CallAlone {
  readonly sequence: number;
  readonly call: CollectiveCall;
  readonly done: boolean;
}

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
    // A main thread that maps the block has counted the call before it told of it, and may be counting the next one now.
    if (this.#own.called <= sequence) this.#own.called = sequence + 1;
    this.#calls.push({ sequence, call });
    if (this.#calls.length > this.#callsMax) this.#calls.shift();
  }

  /** The call number `sequence`; undefined when it was not made, went by the main thread alone, or is long ago. */
  find(sequence: number): CollectiveCall | undefined {
    return this.#calls.find((entry) => entry.sequence === sequence)?.call;
  }

  /** Calls that the main thread made by itself and that the log still has, oldest first. The latest call of all may be underway. */
  calledAlone(): CallAlone[] {
    return this.#own.loggedSequences.flatMap((sequence) => {
      const contract = this.find(sequence) === undefined ? this.#own.loggedCall(sequence) : undefined;
      if (contract === undefined) return [];
      const { kind, dtype, sequence: _, ...rest } = decodeContract(contract);
      if (kind === undefined || dtype === undefined) return [];
      return [{ sequence, call: { kind, dtype, ...rest }, done: sequence + 1 < this.called }];
    });
  }

  /** The report of this rank on its own call number `sequence`. */
  report(sequence: number): Report {
    const call = this.find(sequence);
    if (call) return { text: describeCall(call, sequence), arrived: true };
    const logged = this.#logged(sequence);
    if (logged !== undefined) return { text: logged, arrived: true };
    const { called } = this;
    // Announced by the main thread, which copies the arguments to where others reach them.
    if (sequence === called - 1) return { text: 'was making this call', arrived: true };
    if (sequence < called) return { text: `made this call long ago and has made ${called} since`, arrived: true };
    return { text: `had not called it by then; ${this.#lastCall()}`, arrived: false, calls: called };
  }

  #lastCall(): string {
    const { called } = this;
    if (called === 0) return 'it had called nothing';
    const last = called - 1;
    const call = this.find(last);
    return `its last call was ${call ? describeCall(call, last) : (this.#logged(last) ?? `#${last}`)}`;
  }

  /** A call that the main thread began by itself, as its contract says it. */
  #logged(sequence: number): string | undefined {
    const contract = this.#own.loggedCall(sequence);
    return contract && describeContract(contract);
  }
}
