/** One step as a program sees it: tensors by name, to and from other workers. */
import { ShoalError } from '../base/errors.ts';
import { checkKind, checkOptions, describeValue, optionTable } from '../base/settings/options.ts';
import { dtypeOfArray, type TypedArray } from '../memory/dtype.ts';
import type { StepRendezvous } from './carriers/step-rendezvous.ts';
import type { WorkerIdentity } from './carriers/tensor-channel.ts';
import type { WorkerCore } from './carriers/worker-core.ts';
import type { RecvOptions } from './table/rendezvous.ts';
import { checkTensorValue, type TensorValue } from './value/tensor-value.ts';

/** What can be sent: a tensor of Shoal or anything with its fields; a typed array, as a vector; a string or several. */
export type Sendable = Pick<TensorValue, 'dtype' | 'shape' | 'data'> | TypedArray | string | readonly string[];

/** A tensor that has come. Its memory is used again when it is released; what is not released counts against `memoryBytesMax`. */
export interface ReceivedTensor extends TensorValue, Disposable {
  release(): void;
}

const recvKeys = optionTable<RecvOptions>({ signal: 'signal' });

export class WorkerStep {
  readonly stepId: number;
  readonly #core: WorkerCore;
  readonly #rendezvous: StepRendezvous;

  constructor(core: WorkerCore, stepId: number) {
    this.#core = core;
    this.stepId = stepId;
    this.#rendezvous = core.beginStep(stepId);
  }

  /** For `to` to receive by this name, once. Resolves when the value may be changed: it has left, or nobody will ask for it any more.
   *  @throws ShoalError `usage` for a name that was sent already, and for what is no value. */
  send(to: WorkerIdentity, name: string, value: Sendable): Promise<void> {
    const { dtype, shape, data } = checkTensorValue(valueOf(value));
    return new Promise((resolve) =>
      this.#rendezvous.send(tensorKey(this.#core, name, this.#core.self, to), { dtype, shape, data, release: resolve }),
    );
  }

  /** Says to who receives the name that there is no value in this step. */
  sendDead(to: WorkerIdentity, name: string): void {
    this.#rendezvous.send(tensorKey(this.#core, name, this.#core.self, to), undefined);
  }

  /** Waits for the tensor that `from` sends by this name in this step; undefined when it is dead. */
  async recv(from: WorkerIdentity, name: string, options?: RecvOptions): Promise<ReceivedTensor | undefined> {
    checkOptions('recv', options, recvKeys);
    return received(await this.#rendezvous.recvAsync(tensorKey(this.#core, name, from, this.#core.self), options));
  }

  /** One request for several names: waits for all. */
  async recvFused(from: WorkerIdentity, names: readonly string[], options?: RecvOptions): Promise<(ReceivedTensor | undefined)[]> {
    checkKind('recvFused: names', names, 'list');
    checkOptions('recvFused', options, recvKeys);
    const keys = names.map((name) => tensorKey(this.#core, name, from, this.#core.self));
    return (await this.#rendezvous.recvFused(keys, options)).map(received);
  }

  /** What is still asked for fails; what was sent and not asked for is dropped. */
  end(): void {
    this.#core.endStep(this.stepId);
  }

  /** Ends the step with a cause, which everybody who waits for it is told, here and elsewhere. */
  abort(cause: Error): void {
    if (!(cause instanceof Error)) throw new ShoalError('usage', `abort: the cause must be an Error, not ${describeValue(cause)}`);
    this.#core.endStep(this.stepId, new ShoalError('aborted', `step ${this.stepId} was aborted: ${cause.message}`, { cause }));
  }
}

/** @throws ShoalError `usage` for what is no name, and for what are no workers. */
export function tensorKey(core: WorkerCore, name: string, from: WorkerIdentity, to: WorkerIdentity): string {
  if (typeof name !== 'string' || name === '' || name.length > nameCharactersMax || name.includes(';'))
    throw new ShoalError(
      'usage',
      `the name of a tensor must be a text of 1 to ${nameCharactersMax} characters without ';', not ${describeValue(name).slice(0, 100)}`,
    );
  for (const worker of [from, to])
    if (typeof worker?.device !== 'string')
      throw new ShoalError(
        'usage',
        `'${name}' must go between workers: pass what \`connect\` or \`peer\` gives, not ${describeValue(worker)}`,
      );
  return core.key(name, from, to);
}

const nameCharactersMax = 1000;

function valueOf(value: Sendable): TensorValue {
  if (typeof value === 'string') return { dtype: 'string', shape: [], data: [value] };
  if (Array.isArray(value)) return { dtype: 'string', shape: [value.length], data: value as readonly string[] };
  if (ArrayBuffer.isView(value)) return { dtype: dtypeOfArray(value), shape: [value.length], data: value };
  return value as TensorValue;
}

function received(value: TensorValue | undefined): ReceivedTensor | undefined {
  if (value === undefined) return undefined;
  const { dtype, shape, data } = value;
  const release = (): void => value.release?.();
  return { dtype, shape, data, release, [Symbol.dispose]: release };
}
