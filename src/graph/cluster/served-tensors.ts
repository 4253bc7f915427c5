/** Tensors that other tasks receive from here, by rendezvous' protocol. A tensor that was given stays until its step ends: its connection may
 *  break before it has come, and who asked for it asks again over the next one. It costs nothing: a step keeps its values that long. */
import { ShoalError } from '../../base/errors.ts';
import type { StepTable } from '../../rendezvous/table/step-table.ts';
import type { Cancel, Waiter } from '../../rendezvous/table/rendezvous.ts';
import type { TensorValue } from '../../rendezvous/value/tensor-value.ts';
import type { TensorAsker, TensorService } from '../rpc/rpc.ts';
import type { Value } from '../structure/value.ts';
import { tensorOf } from '../wire/tensors.ts';
import type { RequestWatch, TaskTrace } from './task-trace.ts';

export interface ServedTensorsOptions {
  readonly device: string;
  readonly incarnation: bigint;
  readonly steps: StepTable<Value>;
  readonly trace: TaskTrace;
}

/** One that was given. */
interface Given {
  readonly asker: TensorAsker;
  /** Undefined: dead. */
  readonly value: TensorValue | undefined;
}

export class ServedTensors implements TensorService {
  readonly device: string;
  readonly incarnation: bigint;
  readonly #steps: StepTable<Value>;
  readonly #trace: TaskTrace;
  /** By step and key; those of steps that have begun and not ended. */
  readonly #given = new Map<number, Map<string, Given>>();
  /** Of tensors on their way, by step and key; empty where nothing is recorded. */
  readonly #watches = new Map<string, RequestWatch>();

  constructor({ device, incarnation, steps, trace }: ServedTensorsOptions) {
    this.device = device;
    this.incarnation = incarnation;
    this.#steps = steps;
    this.#trace = trace;
  }

  take(asker: TensorAsker, stepId: number, key: string, waiter: Waiter<TensorValue>): Cancel {
    const before = this.#given.get(stepId)?.get(key);
    if (before !== undefined && before.asker.caller === asker.caller && before.asker.connection < asker.connection) {
      this.#give(asker, stepId, key, before.value);
      waiter.receive(before.value);
      return () => {};
    }
    const watch = this.#trace.watch([[stepId, key]]);
    if (watch !== undefined) this.#watches.set(`${stepId} ${key}`, watch);
    const cancel = this.#steps.take(stepId, key, {
      receive: (sent) => {
        watch?.ready(0);
        let value: TensorValue | undefined;
        try {
          value = sent === undefined ? undefined : tensorOf(sent);
        } catch (thrown) {
          waiter.fail(ShoalError.from(thrown));
          return;
        }
        this.#give(asker, stepId, key, value);
        waiter.receive(value);
      },
      fail: (cause) => {
        watch?.ready(0);
        waiter.fail(cause);
      },
    });
    if (watch === undefined) return cancel;
    return () => {
      this.#watches.delete(`${stepId} ${key}`);
      cancel();
    };
  }

  onAnswered(stepId: number, key: string): void {
    if (this.#watches.size === 0) return;
    const name = `${stepId} ${key}`;
    this.#watches.get(name)?.left(0);
    this.#watches.delete(name);
  }

  /** Nothing of it will be asked for again. */
  endStep(stepId: number): void {
    this.#given.delete(stepId);
  }

  #give(asker: TensorAsker, stepId: number, key: string, value: TensorValue | undefined): void {
    const ofStep = this.#given.get(stepId);
    if (ofStep === undefined) this.#given.set(stepId, new Map([[key, { asker, value }]]));
    else ofStep.set(key, { asker, value });
  }
}
