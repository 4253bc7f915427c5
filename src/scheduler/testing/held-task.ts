/** A task without real bytes, which runs until the test ends it. */
import type { Part } from '../task-parts.ts';
import { Task, type TaskOptions } from '../task.ts';

export interface HeldTaskOptions extends Omit<TaskOptions, 'operation'> {
  readonly operation?: string;
  /** True: becomes ready when the test says so. Default: when it is prepared. */
  readonly isLate?: boolean;
  /** Called when the task starts. Default: it runs until it is told to finish. */
  readonly run?: (task: HeldTask) => void;
  readonly onAbandon?: (task: HeldTask) => void;
}

export class HeldTask extends Task {
  readonly #options: HeldTaskOptions;

  constructor(options: HeldTaskOptions) {
    const { isLate: _late, run: _run, onAbandon: _onAbandon, operation = 'push', ...rest } = options;
    super({ operation, ...rest });
    this.#options = options;
  }

  protected part({ bytes }: Part, index: number): HeldTask {
    return new HeldTask({ ...this.#options, name: `${this.name}.${index}`, bytes, onEnd: () => undefined });
  }

  protected override onPrepare(): void {
    if (!this.#options.isLate) this.notifyReady();
  }

  protected onDo(): void {
    this.#options.run?.(this);
  }

  protected override onAbandon(): void {
    this.#options.onAbandon?.(this);
  }
}
