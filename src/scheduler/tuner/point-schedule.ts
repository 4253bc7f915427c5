/** Schedule of the point of each step, the same on all ranks: a rank applies each change from the step that the change names. */
import { ShoalError } from '../../base/errors.ts';
import type { PointChange } from './tuner.ts';

/** A tensor that is rarely called may be at a step of long ago, so all changes are kept; each has taken a hundred steps. */
const changesMax = 65_536;

export class PointSchedule {
  readonly #changes: PointChange[] = [];
  /** The largest step that was asked for. */
  #step = -1;

  /** True when there is no room for another change. */
  get isFull(): boolean {
    return this.#changes.length >= changesMax;
  }

  /** First step from which the next change may hold. */
  get earliest(): number {
    return Math.max(this.#step, this.#changes.at(-1)?.atStep ?? -1) + 1;
  }

  /** Adds a change. @throws ShoalError `mismatch` when its step has begun here: other ranks run that step under another point. */
  add(change: PointChange): void {
    if (change.atStep <= this.#step) {
      const late = `the change of credit and partition for step ${change.atStep} arrived in step ${this.#step}`;
      throw new ShoalError('mismatch', `${late}; let stepsAhead be larger`);
    }
    const last = this.#changes.at(-1);
    if (last !== undefined && change.atStep <= last.atStep) {
      throw new ShoalError('protocol', `a change for step ${change.atStep} arrived after one for step ${last.atStep}`);
    }
    if (this.isFull) throw new ShoalError('protocol', `${changesMax} changes of credit and partition have arrived`);
    this.#changes.push(change);
  }

  /** The change that holds at the step; undefined before the first. Steps may be asked for in any order. */
  at(step: number): PointChange | undefined {
    this.#step = Math.max(this.#step, step);
    for (let index = this.#changes.length - 1; index >= 0; index--) if (this.#changes[index].atStep <= step) return this.#changes[index];
    return undefined;
  }
}
