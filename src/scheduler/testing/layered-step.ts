/** One training step of a layered model and a parameter server on virtual time: the backward pass makes gradients from the last layer
 *  to the first, each is pushed and its sum pulled, and the forward pass of the next step needs them from the first to the last. */
import { VirtualClock } from '../../base/clock.ts';
import { Core } from '../core.ts';
import type { Part } from '../task-parts.ts';
import { Task, type TaskOptions } from '../task.ts';

export interface LayeredStep {
  /** Time that each layer's tensor takes each way when it is alone. */
  readonly costs: readonly number[];
  /** Time of each layer's backward pass, and of its forward pass. */
  readonly computeCost: number;
  readonly partition: number;
  readonly credit: number;
  /** True: layers that are needed sooner go first; false: those that are ready first do. */
  readonly byPriority: boolean;
}

/** One direction of a network: a byte takes a unit of time; later transfers wait. */
class Wire {
  readonly #clock: VirtualClock;
  #freeAt = 0;

  constructor(clock: VirtualClock) {
    this.#clock = clock;
  }

  transfer(bytes: number, onArrival: () => void): void {
    this.#freeAt = Math.max(this.#freeAt, this.#clock.now()) + bytes;
    this.#clock.setTimer(this.#freeAt - this.#clock.now(), onArrival);
  }
}

class TransferTask extends Task {
  readonly #wire: Wire;
  readonly #isLate: boolean;
  readonly #onStart: (index: number) => void;
  readonly #onArrival: (index: number) => void;

  constructor(
    options: TaskOptions,
    transfer: { wire: Wire; isLate: boolean; onStart: (index: number) => void; onArrival: (index: number) => void },
  ) {
    super(options);
    this.#wire = transfer.wire;
    this.#isLate = transfer.isLate;
    this.#onStart = transfer.onStart;
    this.#onArrival = transfer.onArrival;
  }

  protected part({ bytes }: Part): TransferTask {
    const { name, operation, priority, link } = this;
    const transfer = { wire: this.#wire, isLate: this.#isLate, onStart: this.#onStart, onArrival: this.#onArrival };
    return new TransferTask({ name, operation, priority, link, bytes }, transfer);
  }

  protected override onPrepare(): void {
    if (!this.#isLate) this.notifyReady();
  }

  protected onDo(): void {
    this.#onStart(this.index);
    this.#wire.transfer(this.bytes, () => {
      this.notifyFinish();
      this.#onArrival(this.index);
    });
  }
}

/** @returns the time at which the step ends, and the layers of the pushed parts, in their order. */
export function runLayeredStep(step: LayeredStep): { end: number; pushed: number[] } {
  const { costs, computeCost, byPriority } = step;
  const clock = new VirtualClock();
  const wires = { push: new Wire(clock), pull: new Wire(clock) };
  const core = new Core({ clock, creditBytes: step.credit, partitionBytes: step.partition });
  core.start();
  const pushed: number[] = [];
  const arrived = costs.map(() => false);
  let computed = 0;
  let end = 0;
  let isComputing = false;

  const forward = (): void => {
    if (isComputing || computed === costs.length || !arrived[computed]) return;
    isComputing = true;
    clock.setTimer(computeCost, () => {
      isComputing = false;
      computed++;
      end = clock.now();
      forward();
    });
  };
  const exchange = (layer: number): void => {
    const options = { name: `layer ${layer}`, bytes: costs[layer], priority: byPriority ? layer : 0 };
    const onEnd = (): void => {
      arrived[layer] = true;
      forward();
    };
    const pull = new TransferTask(
      { ...options, operation: 'pull', link: 'pull', onEnd },
      { wire: wires.pull, isLate: true, onStart: () => undefined, onArrival: () => undefined },
    );
    core.post(pull);
    const parts = pull.children.length > 0 ? pull.children : [pull];
    const push = new TransferTask(
      { ...options, operation: 'push', link: 'push' },
      { wire: wires.push, isLate: false, onStart: () => void pushed.push(layer), onArrival: (index) => parts[index].notifyReady() },
    );
    core.post(push);
  };
  const backward = (layer: number): void => {
    clock.setTimer(computeCost, () => {
      exchange(layer);
      if (layer > 0) backward(layer - 1);
    });
  };
  backward(costs.length - 1);
  clock.advance(1e6);
  return { end, pushed };
}
