/** Picks the step machine: the addon's when it is there, else its twin. */
import type { Clock } from '../../base/clock.ts';
import type { Native } from '../native.ts';
import type { StepMachine } from '../step-machine.ts';
import { JsStepMachine } from './js.ts';
import { NativeStepMachine } from './native.ts';

export interface StepMachineOptions {
  readonly native?: Native | undefined;
  /** Clock that bounds spinning without the addon. */
  readonly clock: Clock;
}

export function createStepMachine(options: StepMachineOptions): StepMachine {
  return options.native === undefined ? new JsStepMachine(options.clock) : new NativeStepMachine(options.native);
}
