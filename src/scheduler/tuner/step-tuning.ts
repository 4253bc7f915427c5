/** Tuning on one rank: counts steps by scheduled tensors, and gives each tensor the point of its step. One rank measures and
 *  decides, and tells the others.
 *
 *      rank 0   begin('w') ─▶ count ─▶ tuner: time of steps ─▶ change for step 110 ── told to all ──▶ schedule of points
 *      rank 1   begin('w') ─▶ count ────────────────────────────────────────────────────────────────▶ schedule of points
 *
 *  The n-th call of a tensor belongs to step n, on every rank and in any order of calls: so all ranks cut it alike. A step begins with the
 *  first tensor that is called once more than all were before. */
import type { Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import { PointSchedule } from './point-schedule.ts';
import { Tuner, type PointChange, type TunedPoint, type TuningSpec } from './tuner.ts';

/** A point that was found before, and the time of a step under it, if that was measured. */
export interface RememberedPoint {
  readonly point: TunedPoint;
  readonly stepMs?: number;
}

/** Storage that keeps points from one run to the next. */
export interface PointMemory {
  recall(model: string): RememberedPoint | undefined;
  keep(model: string, remembered: RememberedPoint): void;
}

export interface StepTuningOptions {
  readonly spec: TuningSpec;
  /** True on the rank that measures and decides. */
  readonly leads: boolean;
  readonly clock: Clock;
  readonly random: Random;
  /** Storage of found points. Default: none. */
  readonly memory?: PointMemory | undefined;
  /** Sends a change to all other ranks. */
  readonly tell: (change: PointChange) => void;
  /** Called when a step has begun that is the first under this point. */
  readonly onApplied: (change: PointChange) => void;
  /** Treatment of a change that comes too late. `apply`: it holds from the next step on; only for owners whose parts need not be
   *  alike on all ranks. Default: `refuse`. */
  readonly late?: 'refuse' | 'apply';
}

/** Most tensors that are told apart. */
const namesMax = 65_536;

export class StepTuning {
  readonly #options: StepTuningOptions;
  readonly #schedule = new PointSchedule();
  readonly #tuner: Tuner | undefined;
  /** Number of calls of each tensor. */
  readonly #counts = new Map<string, number>();
  /** Bytes of the tensors of the first step. */
  readonly #sizes = new Map<string, number>();
  #step = -1;
  #applied: PointChange | undefined;
  #model = '';

  constructor(options: StepTuningOptions) {
    this.#options = options;
    const { spec, random, leads } = options;
    if (leads) this.#tuner = new Tuner({ ...spec, random });
  }

  /** @returns the point under which this call of the tensor is cut; undefined: as before all tuning.
   *  @throws ShoalError `usage` for more names than a model has. */
  begin(name: string, bytes: number): TunedPoint | undefined {
    const step = this.#counts.get(name) ?? 0;
    if (step === 0 && this.#counts.size >= namesMax) {
      const message = `tuning counts the calls of each tensor, and has seen ${namesMax} names: give a tensor one name for all steps`;
      throw new ShoalError('usage', message);
    }
    this.#counts.set(name, step + 1);
    if (this.#tuner !== undefined && this.#step <= 0 && step === 0) this.#sizes.set(name, bytes);
    if (step > this.#step) this.#beginStep(step);
    const change = this.#schedule.at(step);
    if (change !== undefined && change.atStep > (this.#applied?.atStep ?? -1)) {
      this.#applied = change;
      this.#options.onApplied(change);
    }
    return change?.point;
  }

  /** Takes a decision of the leader. @throws ShoalError `mismatch` when it comes too late; `protocol`. */
  receive(change: PointChange): void {
    const atStep = this.#options.late === 'apply' ? Math.max(change.atStep, this.#schedule.earliest) : change.atStep;
    this.#schedule.add({ ...change, atStep });
  }

  #beginStep(step: number): void {
    this.#step = step;
    if (this.#tuner === undefined || this.#schedule.isFull) return;
    const { clock, memory } = this.#options;
    if (step === 1) {
      this.#model = signatureOf(this.#sizes);
      const remembered = memory?.recall(this.#model);
      if (remembered !== undefined) {
        this.#decide(this.#tuner.resume(step, remembered.point, remembered.stepMs));
        return;
      }
    }
    const before = this.#tuner.convergedMs;
    const change = this.#tuner.record(step, clock.now());
    if (change !== undefined) this.#decide(change);
    const { convergedMs, best } = this.#tuner;
    if (best === undefined) return;
    if (change?.isFinal === true) memory?.keep(this.#model, { point: best });
    else if (before === undefined && convergedMs !== undefined) memory?.keep(this.#model, { point: best, stepMs: convergedMs });
  }

  #decide(change: PointChange): void {
    this.receive(change);
    this.#options.tell(change);
  }
}

/** Signature of a model: the number of its tensors, their bytes, and a hash of names and sizes. */
function signatureOf(sizes: ReadonlyMap<string, number>): string {
  const tensors = [...sizes].map(([name, bytes]) => `${name}\n${bytes}`).toSorted((a, b) => (a < b ? -1 : 1));
  const bytes = [...sizes.values()].reduce((sum, each) => sum + each, 0);
  // FNV-1a, twice with different initial values.
  const hash = [0x811c9dc5, 0x050c5d1f].map((basis) => {
    let value = basis;
    for (const character of tensors.join('\n\n')) value = Math.imul(value ^ (character.codePointAt(0) ?? 0), 0x01000193) >>> 0;
    return value.toString(16).padStart(8, '0');
  });
  return `${tensors.length}-tensors-${bytes}-bytes-${hash.join('')}`;
}
