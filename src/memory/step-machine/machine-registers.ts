/** The state of a program in memory that the addon reads and writes too.
 *
 *    byte 0        8          16        24       32
 *    │ pc float64 │ argument │ spin ns │ yields │ doorbells uint32 … │      a whole number of float64 */
import { assert } from '../../base/assert.ts';
import type { MachineState } from '../step-machine.ts';

/** Number of float64 before the doorbells. */
const registerWords = 4;

export class MachineRegisters implements MachineState {
  readonly words: Float64Array;
  readonly doorbells: Uint32Array;

  /** @param peers number of bits of the doorbell set that can be named; rounded up to a multiple of 64, at least 64. */
  constructor(peers: number) {
    assert(Number.isSafeInteger(peers) && peers >= 0, () => `peers is a count, not ${peers}`);
    this.words = new Float64Array(registerWords + Math.max(1, Math.ceil(peers / 64)));
    this.doorbells = new Uint32Array(this.words.buffer, registerWords * 8);
  }

  get pc(): number {
    return this.words[0];
  }
  set pc(index: number) {
    this.words[0] = index;
  }

  get argument(): number {
    return this.words[1];
  }
  set argument(value: number) {
    this.words[1] = value;
  }

  /** Sets how the next run waits. */
  setWaiting(spinNs: number, yields: boolean): void {
    this.words[2] = spinNs;
    this.words[3] = yields ? 1 : 0;
  }
}
