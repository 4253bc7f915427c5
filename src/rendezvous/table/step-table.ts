/** The steps of one worker: a local rendezvous for each that has begun. Requests of other workers may precede a step; they are parked until
 *  it begins, up to a bound. Ended steps are remembered, up to a bound, so that late requests fail at once. */
import { ShoalError } from '../../base/errors.ts';
import { LocalRendezvous, type ValueOptions } from './local-rendezvous.ts';
import type { Asker, Cancel, Incarnations, Waiter } from './rendezvous.ts';

export interface StepTableOptions {
  readonly incarnations?: Incarnations;
  /** Steps at a time. Default 1,024. */
  readonly stepsMax?: number;
  /** Keys of one step. Default 1,000,000. */
  readonly keysMax?: number;
  /** Requests that wait for their step to begin. Default 65,536. */
  readonly parkedMax?: number;
  /** Ended steps that are remembered. Default 4,096. */
  readonly endedMax?: number;
}

interface Parked<V> {
  readonly key: string;
  readonly waiter: Waiter<V>;
  readonly asker: Asker | undefined;
  cancel: Cancel;
}

export class StepTable<V> {
  readonly #options: Required<Omit<StepTableOptions, 'incarnations'>> & Pick<StepTableOptions, 'incarnations'> & ValueOptions<V>;
  readonly #steps = new Map<number, LocalRendezvous<V>>();
  readonly #parked = new Map<number, Set<Parked<V>>>();
  /** In the order in which they ended, with why. */
  readonly #ended = new Map<number, () => ShoalError>();
  #parkedCount = 0;
  #closed: ShoalError | undefined;

  constructor(options: StepTableOptions & ValueOptions<V> = {}) {
    this.#options = { stepsMax: 1024, keysMax: 1_000_000, parkedMax: 65_536, endedMax: 4096, ...options };
  }

  /** Steps that have begun and not ended. */
  get size(): number {
    return this.#steps.size;
  }

  /** Requests that wait for their step to begin. */
  get parked(): number {
    return this.#parkedCount;
  }

  /** Begins a step, and serves what was parked for it.
   *  @throws ShoalError `usage` for a step that has begun already or has ended, `out-of-memory` beyond `stepsMax`. */
  begin(stepId: number): LocalRendezvous<V> {
    if (this.#closed !== undefined) throw this.#closed;
    checkStepId(stepId);
    const { stepsMax } = this.#options;
    if (this.#steps.has(stepId)) throw new ShoalError('usage', `step ${stepId} has begun already`);
    const ended = this.#ended.get(stepId)?.();
    if (ended !== undefined) throw new ShoalError('usage', `step ${stepId} cannot begin: ${ended.message}`, { cause: ended });
    if (this.#steps.size >= stepsMax)
      throw new ShoalError('out-of-memory', `${stepsMax} steps have begun and not ended; end some, or raise stepsMax`);
    const step = new LocalRendezvous<V>(this.#options);
    this.#steps.set(stepId, step);
    for (const parked of this.#unpark(stepId)) parked.cancel = takeFrom(step, parked.key, parked.waiter, parked.asker);
    return step;
  }

  /** Undefined before the step begins and after it has ended. */
  find(stepId: number): LocalRendezvous<V> | undefined {
    return this.#steps.get(stepId);
  }

  /** A request of another worker. The waiter is told of every failure, and may be called before this returns. */
  take(stepId: number, key: string, waiter: Waiter<V>, asker?: Asker): Cancel {
    const step = this.#steps.get(stepId);
    if (step !== undefined) return takeFrom(step, key, waiter, asker);
    const cause = this.#closed ?? this.#ended.get(stepId)?.() ?? this.#full(stepId);
    if (cause !== undefined) {
      waiter.fail(cause);
      return () => {};
    }
    return this.#park(stepId, key, waiter, asker);
  }

  /** A value that another worker was given has not left. @returns false when it cannot be asked for any more. */
  giveBack(stepId: number, key: string, value: V): boolean {
    return this.#steps.get(stepId)?.giveBack(key, value) ?? false;
  }

  /** Ends a step: requests that still wait in it fail with `aborted`. */
  end(stepId: number): void {
    this.#end(stepId, () => stepEnded(stepId));
  }

  /** Ends a step with a cause; also one that has not begun: what is parked for it fails, and it will not begin. */
  abort(stepId: number, cause: ShoalError): void {
    this.#end(stepId, () => cause);
  }

  /** Ends all steps; none will begin. */
  close(cause: ShoalError): void {
    this.#closed ??= cause;
    for (const stepId of new Set([...this.#steps.keys(), ...this.#parked.keys()])) this.abort(stepId, cause);
  }

  /** @param cause makes it when somebody is told. */
  #end(stepId: number, cause: () => ShoalError): void {
    checkStepId(stepId);
    if (this.#ended.has(stepId)) return;
    this.#ended.set(stepId, cause);
    for (const oldest of this.#ended.keys()) {
      if (this.#ended.size <= this.#options.endedMax) break;
      this.#ended.delete(oldest);
    }
    const step = this.#steps.get(stepId);
    this.#steps.delete(stepId);
    step?.end(cause);
    for (const { waiter } of this.#unpark(stepId)) waiter.fail(cause());
  }

  #full(stepId: number): ShoalError | undefined {
    const { parkedMax } = this.#options;
    if (this.#parkedCount < parkedMax) return undefined;
    return new ShoalError('out-of-memory', `step ${stepId} has not begun, and ${parkedMax} requests wait for such steps already`);
  }

  #park(stepId: number, key: string, waiter: Waiter<V>, asker: Asker | undefined): Cancel {
    let parkedOfStep = this.#parked.get(stepId);
    if (parkedOfStep === undefined) this.#parked.set(stepId, (parkedOfStep = new Set()));
    const ofStep = parkedOfStep;
    const parked: Parked<V> = {
      key,
      waiter,
      asker,
      cancel: () => {
        if (!ofStep.delete(parked)) return;
        this.#parkedCount--;
        if (ofStep.size === 0) this.#parked.delete(stepId);
      },
    };
    ofStep.add(parked);
    this.#parkedCount++;
    return () => parked.cancel();
  }

  /** The parked requests, in the order in which they came. */
  #unpark(stepId: number): readonly Parked<V>[] {
    const ofStep = this.#parked.get(stepId);
    if (ofStep === undefined) return [];
    const parked = [...ofStep];
    this.#parked.delete(stepId);
    this.#parkedCount -= parked.length;
    for (const each of parked) each.cancel = () => {};
    return parked;
  }
}

function takeFrom<V>(step: LocalRendezvous<V>, key: string, waiter: Waiter<V>, asker: Asker | undefined): Cancel {
  try {
    return step.take(key, waiter, asker);
  } catch (thrown) {
    waiter.fail(ShoalError.from(thrown));
    return () => {};
  }
}

/** @throws ShoalError `usage` for anything but an integer from 0 to 2^53 − 1. */
export function checkStepId(stepId: number): void {
  if (!Number.isSafeInteger(stepId) || stepId < 0)
    throw new ShoalError('usage', `${stepId} is no step id: it must be an integer from 0 to 2^53 − 1`);
}

/** The error of a request in a step that has ended. */
export function stepEnded(stepId: number): ShoalError {
  return new ShoalError('aborted', `step ${stepId} has ended`);
}
