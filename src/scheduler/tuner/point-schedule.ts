/** What a rank has been told to apply, until the step at which all of them do. */
import { ShoalError } from '../../base/errors.ts';
import type { PointChange, TunedPoint } from './tuner.ts';

/** Changes that wait, at most: a tuner decides on one after the other. */
const changesMax = 4;

export class PointSchedule {
  readonly #changes: PointChange[] = [];
  #step = -1;

  /** A change has arrived. @throws ShoalError `mismatch` when its step has begun here: other ranks run that step under another point. */
  add(change: PointChange): void {
    if (change.atStep <= this.#step) {
      const late = `the change of credit and partition for step ${change.atStep} arrived in step ${this.#step}`;
      throw new ShoalError('mismatch', `${late}; let stepsAhead be larger`);
    }
    const last = this.#changes.at(-1);
    if (last !== undefined && change.atStep <= last.atStep) {
      throw new ShoalError('protocol', `a change for step ${change.atStep} arrived after one for step ${last.atStep}`);
    }
    if (this.#changes.length >= changesMax) throw new ShoalError('protocol', `${changesMax} changes wait for their step already`);
    this.#changes.push(change);
  }

  /** A step begins. @returns what to apply before it. */
  begin(step: number): TunedPoint | undefined {
    if (!Number.isSafeInteger(step) || step <= this.#step) {
      throw new ShoalError('usage', `begin: steps go up; step ${step} came after step ${this.#step}`);
    }
    this.#step = step;
    const [next] = this.#changes;
    if (next === undefined || next.atStep > step) return undefined;
    this.#changes.shift();
    return next.point;
  }
}
