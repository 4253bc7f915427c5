/** An all-reduce as a task of the scheduler. Its parts are ranges of the tensor's memory: every part is an operation of its own, and
 *  gives the same bits as the whole would, since the association of a sum is over ranks. It must not know when it starts. */
import type { ShoalError } from '../../../base/errors.ts';
import { dtypeInfo } from '../../../memory/dtype.ts';
import type { Part } from '../../../scheduler/task-parts.ts';
import { Task } from '../../../scheduler/task.ts';
import type { CollectiveCall } from '../../shared/call/contract.ts';
import type { BoundBuffer } from '../engine/operation.ts';

export interface AllReduceRequest {
  /** Name of the tensor, the same on all ranks. */
  readonly name: string;
  /** Smaller is sooner. */
  readonly priority: number;
  readonly call: CollectiveCall;
  readonly buffer: BoundBuffer;
  readonly timeoutMs: number;
}

export interface AllReduceTaskOptions extends AllReduceRequest {
  readonly link: string;
  /** Starts an operation. */
  readonly run: (task: AllReduceTask) => void;
  readonly onEnd: (error: ShoalError | undefined) => void;
}

export class AllReduceTask extends Task {
  readonly call: CollectiveCall;
  readonly buffer: BoundBuffer;
  readonly timeoutMs: number;
  readonly #options: AllReduceTaskOptions;

  constructor(options: AllReduceTaskOptions) {
    const { name, priority, call, buffer, link, onEnd } = options;
    super({ name, operation: call.kind, bytes: buffer.bytes, unitBytes: dtypeInfo(call.dtype).bytes, priority, link, onEnd });
    this.call = call;
    this.buffer = buffer;
    this.timeoutMs = options.timeoutMs;
    this.#options = options;
  }

  protected part({ offset, bytes }: Part): AllReduceTask {
    const { call, buffer } = this.#options;
    return new AllReduceTask({
      ...this.#options,
      call: { ...call, count: bytes / this.unitBytes },
      buffer: { ...buffer, offset: buffer.offset + offset, bytes },
    });
  }

  /** It is ready when its turn has come in the order of all ranks. */
  protected override onPrepare(): void {}

  protected onDo(): void {
    this.#options.run(this);
  }
}
