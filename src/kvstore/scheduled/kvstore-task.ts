/** One operation of a store as a task of the scheduler, with proxies in the dependency engine: functions that use its values through the
 *  engine keep their order, and the operation itself starts when the core says so.
 *
 *      real     the public variable of a value
 *      avatar   a second variable of the same memory, private to the task
 *      barrier  of a push-and-pull: a third one, so that its start does not wait for the variables of its communication
 *
 *      whole task                                         in parts: the same for each part, between two barriers of all
 *
 *      reads real ┐                                       writes real, barriers │ avatars of all parts
 *      start barrier ─▶ writes barrier │ avatar                  │
 *      start op         writes barrier │ avatar     notifyReady, completes when the core says `do`
 *      push-pull barrier  writes barrier, avatar                 │
 *      communication      writes avatar             the store's own push, pull, …
 *      end op             writes avatar             notifyFinish
 *      end barrier        writes real, avatar             reads the avatars of all parts, writes real
 *
 *  Peng et al., SOSP 2019, §3.3: dependency proxies. */
import type { ShoalError } from '../../base/errors.ts';
import type { DependencyEngine } from '../../engine/engine.ts';
import type { OnComplete } from '../../engine/operation.ts';
import type { Variable } from '../../engine/variable.ts';
import type { Part } from '../../scheduler/task-parts.ts';
import { Task, type TaskOptions } from '../../scheduler/task.ts';

export type KVOperation = 'init' | 'push' | 'pull' | 'push_pull' | 'row_push' | 'row_pull';

/** The store's operation on a range of bytes. Calls `onComplete` once. */
export type Communicate = (part: number, onComplete: OnComplete) => void;

export interface KVStoreTaskOptions extends Required<Pick<TaskOptions, 'name' | 'priority' | 'link'>> {
  readonly operation: KVOperation;
  /** The bytes of each part, in order: they are the store's, not the core's to choose. */
  readonly partBytes: readonly number[];
  readonly engine: DependencyEngine;
  /** Variables of the values that it reads and writes. */
  readonly real: readonly Variable[];
  /** Calls `ready` when the store may be given a part: now, or when what was called before has been given. */
  readonly inOrder: (ready: () => void) => void;
  readonly communicate: Communicate;
  readonly onEnd: (error: ShoalError | undefined) => void;
}

/** Barriers come before operations, operations before everything else of their priority. */
const barrierPriority = 1e7;
const operationPriority = 1e6;

export class KVStoreTask extends Task {
  readonly #options: KVStoreTaskOptions;
  readonly #index: number;
  readonly #avatar: Variable;
  readonly #barrier: Variable | undefined;
  /** Ends the start op. */
  #proceed: OnComplete | undefined;
  /** Ends the communication. */
  #arrive: OnComplete | undefined;
  #hasStarted = false;
  /** A parent's start barrier stands for those of all its parts. */
  #startBarrierPosted = false;
  #partsPosted = 0;

  constructor(options: KVStoreTaskOptions, index?: number) {
    const { name, operation, partBytes, priority, link, engine, onEnd } = options;
    const bytes = index === undefined ? partBytes.reduce((sum, each) => sum + each, 0) : partBytes[index];
    super({ name, operation, bytes, priority, link, immediate: operation === 'init', onEnd: index === undefined ? onEnd : undefined });
    this.#options = options;
    this.#index = index ?? 0;
    this.#avatar = engine.newVariable(`avatar of '${name}'`);
    this.#barrier = operation === 'push_pull' ? engine.newVariable(`barrier of '${name}'`) : undefined;
  }

  override countParts(): number {
    return this.#options.partBytes.length;
  }

  /** The parts that the store has. */
  protected override cut(): readonly Part[] {
    return this.#options.partBytes.map((bytes) => ({ offset: 0, bytes }));
  }

  protected part(_: Part, index: number): KVStoreTask {
    return new KVStoreTask(this.#options, index);
  }

  protected override onPrepare(): void {
    this.#postStartBarrier();
    this.#postStartOp();
    this.#postPushPullBarrier();
    this.#postCommunication();
    this.#postEndOp();
    this.#postEndBarrier();
  }

  protected override onImmediateDo(): void {
    this.#postStartBarrier();
    this.#postCommunication();
    this.#postEndOp();
    this.#postEndBarrier();
  }

  protected onDo(): void {
    this.#hasStarted = true;
    this.#proceed?.();
  }

  /** Functions that wait for the proxy, or the communication, hear why. */
  protected override onAbandon(error: ShoalError): void {
    if (this.#arrive !== undefined) this.#arrive(error);
    else if (!this.#hasStarted) this.#proceed?.(error);
  }

  // ── what the engine is given ───────────────────────────────────────────────────────────────────────────────────

  #postStartBarrier(): void {
    const { real } = this.#options;
    const parent = this.parent as KVStoreTask | undefined;
    if (parent === undefined) return this.#postBarrier('start barrier', real, [this.#first]);
    if (parent.#startBarrierPosted) return undefined;
    parent.#startBarrierPosted = true;
    return this.#postBarrier('start barrier', [], [...real, ...parent.#parts.map((part) => part.#first)]);
  }

  #postStartOp(): void {
    this.#postOp('start op', this.#first, (onComplete) => {
      this.#proceed = onComplete;
      this.#options.inOrder(() => this.state === 'posted' && this.notifyReady());
    });
  }

  #postPushPullBarrier(): void {
    if (this.#barrier !== undefined) this.#postBarrier('push-pull barrier', [], [this.#barrier, this.#avatar]);
  }

  #postCommunication(): void {
    const { communicate, operation } = this.#options;
    this.#postOp(operation, this.#avatar, (onComplete) => {
      let hasEnded = false;
      // The end of an operation that was given up comes late, and counts no more.
      this.#arrive = (error) => {
        if (hasEnded) return;
        hasEnded = true;
        onComplete(error);
      };
      communicate(this.#index, this.#arrive);
    });
  }

  #postEndOp(): void {
    this.#postOp('end op', this.#avatar, (onComplete) => {
      onComplete();
      this.notifyFinish();
    });
  }

  #postEndBarrier(): void {
    const { real } = this.#options;
    const parent = this.parent as KVStoreTask | undefined;
    if (parent === undefined) return this.#postBarrier('end barrier', [], [...real, this.#avatar]);
    if (++parent.#partsPosted < parent.children.length) return undefined;
    const avatars = parent.#parts.map((part) => part.#avatar);
    return this.#postBarrier('end barrier', avatars, real);
  }

  #postBarrier(what: string, reads: readonly Variable[], writes: readonly Variable[]): void {
    this.#options.engine.pushSync(() => undefined, reads, writes, this.#as(what, barrierPriority));
  }

  /** A task that was given up, or whose values are poisoned, ends without it. */
  #postOp(what: string, variable: Variable, run: (onComplete: OnComplete) => void): void {
    const body = (onComplete: OnComplete): void => {
      if (this.state === 'ended') onComplete(this.failure);
      else run(onComplete);
    };
    const onPoisoned = (error: ShoalError): void => this.notifyFinish(error);
    this.#options.engine.pushAsync(body, [], [variable], { ...this.#as(what, operationPriority), onPoisoned });
  }

  /** The variable that the start op waits for. */
  get #first(): Variable {
    return this.#barrier ?? this.#avatar;
  }

  get #parts(): readonly KVStoreTask[] {
    return this.children as readonly KVStoreTask[];
  }

  #as(what: string, priority: number): { readonly name: string; readonly priority: number } {
    const { name, parent } = this;
    const part = parent === undefined ? '' : `, part ${this.#index + 1}`;
    return { name: `${what} of '${name}'${part}`, priority: priority - this.priority };
  }
}
