/** The rendezvous of one step in one task: sends stay here until they are asked for, by this task or by others; receives of what this
 *  task sends are local, all others go to the sender's task. */
import { setMaxListeners } from 'node:events';
import type { ShoalError } from '../../base/errors.ts';
import type { LocalRendezvous } from '../../rendezvous/table/local-rendezvous.ts';
import type { RecvOptions } from '../../rendezvous/table/rendezvous.ts';
import type { StepRendezvous } from '../execute/step.ts';
import { parseDeviceName } from '../structure/device-name.ts';
import type { Value } from '../structure/value.ts';
import type { ReceivingStep, TensorReceiver } from './tensor-receiver.ts';

/** `/job:ps/task:1`: the process of a device. */
export function taskOf(device: string): string {
  const { job = '', task = 0 } = parseDeviceName(device);
  return taskName(job, task);
}

export function taskName(job: string, task: number): string {
  return `/job:${job}/task:${task}`;
}

export class TaskRendezvous implements StepRendezvous {
  readonly #local: LocalRendezvous<Value>;
  readonly #receiver: TensorReceiver;
  readonly #task: string;
  readonly #step: ReceivingStep;
  readonly #abort = new AbortController();
  readonly #awaited = new Set<string>();
  #requests = 0;

  constructor(options: { local: LocalRendezvous<Value>; receiver: TensorReceiver; task: string; stepId: number }) {
    this.#local = options.local;
    this.#receiver = options.receiver;
    this.#task = options.task;
    this.#step = { stepId: options.stepId, onRequest: () => void this.#requests++ };
    // One for every receive that waits.
    setMaxListeners(0, this.#abort.signal);
  }

  get awaited(): readonly string[] {
    return [...this.#awaited, ...this.#local.awaited];
  }

  /** Of receives from other tasks. */
  get requests(): number {
    return this.#requests;
  }

  send(key: string, value: Value | undefined): void {
    this.#local.send(key, value);
  }

  async recvAsync(key: string, options?: RecvOptions): Promise<Value | undefined> {
    const task = this.#senderOf(key);
    if (task === this.#task) return this.#local.recvAsync(key, options);
    const [value] = await this.#recv(task, [key], options);
    return value;
  }

  recvFused(keys: readonly string[], options?: RecvOptions): Promise<readonly (Value | undefined)[]> {
    const task = this.#senderOf(keys[0]);
    return task === this.#task ? this.#local.recvFused(keys, options) : this.#recv(task, keys, options);
  }

  startAbort(cause: ShoalError): void {
    this.#abort.abort(cause);
    this.#local.startAbort(cause);
  }

  async #recv(task: string, keys: readonly string[], options: RecvOptions | undefined): Promise<readonly (Value | undefined)[]> {
    if (this.#abort.signal.aborted) throw this.#abort.signal.reason;
    for (const key of keys) this.#awaited.add(key);
    try {
      const { signal } = this.#abort;
      const either = options?.signal === undefined ? signal : AbortSignal.any([signal, options.signal]);
      return await this.#receiver.recv(task, this.#step, keys, either);
    } catch (thrown) {
      if (this.#abort.signal.aborted) throw this.#abort.signal.reason;
      throw thrown;
    } finally {
      for (const key of keys) this.#awaited.delete(key);
    }
  }

  #senderOf(key: string): string {
    return taskOf(key.slice(0, key.indexOf(';')));
  }
}
