/** A tensor that is asked for in every step, some steps ahead: the sender writes it without being asked again.
 *
 *     steps      7      8      9     10     11 …
 *     slots      0      1      2      3      0 …           depth 4: each a buffer and a request index of its own
 *                │read  │came  │asked │asked │
 *                └──────┴─ half of the slots have been read and released ──▶ renew: asked for steps 11 and 12
 *
 *  Each slot is answered in each of its steps: by the tensor, or by `dead` or an error when its step ends without it. So slots are never
 *  written late, and are renewed in order. */
import { ShoalError } from '../../base/errors.ts';
import type { Cancel, Waiter } from '../table/rendezvous.ts';
import { readTensor, type TensorMetadata } from '../value/tensor-metadata.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import type { ReceiveMemory, ReceiveBuffer } from './pooled-memory.ts';
import type { TensorName } from './name-table.ts';
import { unanswered, type Unanswered } from './tensor-carrier.ts';
import type { Indexed } from './pending-table.ts';
import { TensorPlace } from './tensor-request.ts';

interface StandingRequestOptions {
  readonly index: number;
  readonly key: string;
  readonly name: TensorName;
  readonly firstStep: number;
  readonly buffers: readonly (ReceiveBuffer | undefined)[];
  readonly metadata: TensorMetadata | undefined;
  readonly memory: ReceiveMemory;
  renew(count: number): void;
  stop(): void;
}

/** free: read and released, to be renewed. */
type SlotState = 'asked' | 'came' | 'read' | 'free';

class StandingPlace extends TensorPlace {
  stepId: number;
  state: SlotState = 'asked';
  waiter: Waiter<TensorValue> | undefined;
  /** Undefined: a tensor came. */
  end: { readonly cause: ShoalError | undefined } | undefined;
  /** True if nobody will read the tensor. */
  isUnwanted = false;
  /** The request that goes on after the connection has ended. */
  moved: Unanswered | undefined;

  constructor(name: TensorName, stepId: number, buffer: ReceiveBuffer | undefined, metadata: TensorMetadata | undefined) {
    super(name);
    this.stepId = stepId;
    this.buffer = buffer;
    this.metadata = metadata;
  }
}

export class StandingRequest implements Indexed {
  readonly kind = 'standing';
  readonly index: number;
  readonly key: string;
  readonly #options: StandingRequestOptions;
  readonly #slots: readonly StandingPlace[];
  /** The slot that is renewed next, and the step it is for then. */
  #oldest = 0;
  #nextStep: number;
  #isStopped = false;

  constructor(options: StandingRequestOptions) {
    this.#options = options;
    this.index = options.index;
    this.key = options.key;
    this.#slots = options.buffers.map((buffer, k) => new StandingPlace(options.name, options.firstStep + k, buffer, options.metadata));
    this.#nextStep = options.firstStep + this.#slots.length;
  }

  get indices(): number {
    return this.#slots.length;
  }

  get count(): number {
    return this.#slots.length;
  }

  /** The step is one of those asked for, and nobody has read it. */
  covers(stepId: number): boolean {
    const slot = this.#slotOfStep(stepId);
    if (slot === undefined || slot.waiter !== undefined) return false;
    return slot.state === 'came' || (slot.state === 'asked' && !this.#isStopped);
  }

  /** The first step that was asked for and not answered. */
  get firstAsked(): number {
    return Math.min(this.#nextStep, ...this.#slots.filter(({ state }) => state === 'asked').map(({ stepId }) => stepId));
  }

  recv(stepId: number, waiter: Waiter<TensorValue>): Cancel {
    const slot = this.#slotOfStep(stepId)!;
    slot.waiter = waiter;
    // A tensor that came before it was asked for is looked at now.
    if (slot.state === 'came') this.#deliver(slot);
    return () => {
      if (slot.waiter === waiter) slot.waiter = undefined;
      else if (slot.moved !== undefined && slot.stepId === stepId) slot.moved.cancel();
    };
  }

  slotOf(index: number): StandingPlace {
    return this.#slots[(index - this.index) >>> 0];
  }

  onContent(index: number): void {
    const slot = this.slotOf(index);
    slot.contentOf(index);
    this.#came(index, slot, undefined);
  }

  onEnd(index: number, cause: ShoalError | undefined): void {
    this.#came(index, this.slotOf(index), { cause });
  }

  endStep(stepId: number): void {
    const slot = this.#slotOfStep(stepId);
    if (slot === undefined) return;
    if (slot.state === 'came') this.#free(slot);
    else if (slot.state === 'asked') slot.isUnwanted = true;
  }

  /** No more. @param cause that those who wait are told; default: `aborted`. */
  stop(cause: ShoalError = new ShoalError('aborted', 'the standing request was stopped')): void {
    if (this.#isStopped) return;
    this.#isStopped = true;
    this.#options.stop();
    for (const slot of this.#slots) this.#takeWaiter(slot)?.fail(cause);
  }

  /** The connection is over. What has come can be read. @returns receives that wait. */
  close(): Unanswered[] {
    this.#isStopped = true;
    return this.#slots.flatMap((slot) => {
      const { stepId } = slot;
      const waiter = this.#takeWaiter(slot);
      if (waiter === undefined) return [];
      slot.moved = unanswered([this.key], stepId, waiter, (carrier) => carrier.recv(stepId, this.key, waiter));
      return [slot.moved];
    });
  }

  /** Buffers that the sender may still write to; the others are given back. */
  quarantined(): ReceiveBuffer[] {
    const { memory } = this.#options;
    const left: ReceiveBuffer[] = [];
    for (const slot of this.#slots) {
      if (slot.buffer === undefined || slot.state === 'read') continue;
      if (slot.state === 'asked') left.push(slot.buffer);
      else memory.free(slot.buffer);
      slot.buffer = undefined;
    }
    return left;
  }

  #takeWaiter(slot: StandingPlace): Waiter<TensorValue> | undefined {
    const { waiter } = slot;
    slot.waiter = undefined;
    return waiter;
  }

  #came(index: number, slot: StandingPlace, end: StandingPlace['end']): void {
    if (slot.state !== 'asked') throw new ShoalError('protocol', `request ${index} is answered twice in step ${slot.stepId}`);
    slot.state = 'came';
    slot.end = end;
    if (slot.isUnwanted) this.#free(slot);
    else if (slot.waiter !== undefined) {
      const malformed = this.#deliver(slot);
      if (malformed !== undefined) throw malformed;
    }
  }

  /** @returns why what has come is no tensor; the waiter has been told. */
  #deliver(slot: StandingPlace): ShoalError | undefined {
    const { waiter, end, metadata } = slot;
    let value: TensorValue | undefined;
    let malformed: ShoalError | undefined;
    try {
      if (end === undefined) value = this.#read(slot, metadata!);
    } catch (thrown) {
      malformed = ShoalError.from(thrown);
    }
    slot.waiter = undefined;
    if (value?.release === undefined) this.#free(slot);
    const cause = malformed ?? end?.cause;
    if (cause === undefined) waiter!.receive(value);
    else waiter!.fail(cause);
    return malformed;
  }

  /** A value that stays in the slot until it is released has a `release`. */
  #read(slot: StandingPlace, metadata: TensorMetadata): TensorValue {
    const { buffer } = slot;
    if (buffer === undefined) return readTensor(metadata, { buffer: new ArrayBuffer(0), offset: 0 });
    const value = readTensor(metadata, { buffer: buffer.registered.region.buffer, offset: buffer.offset });
    if (metadata.dtype === 'string' || metadata.bytes === 0) return value;
    slot.state = 'read';
    let isReleased = false;
    const release = (): void => {
      if (isReleased) return;
      isReleased = true;
      if (this.#isStopped) this.#options.memory.free(buffer);
      else this.#free(slot);
    };
    return { ...value, release };
  }

  #free(slot: StandingPlace): void {
    slot.state = 'free';
    slot.isUnwanted = false;
    let count = 0;
    while (count < this.#slots.length && this.#slots[(this.#oldest + count) % this.#slots.length].state === 'free') count++;
    if (this.#isStopped || count < Math.ceil(this.#slots.length / 2)) return;
    for (let k = 0; k < count; k++) {
      const renewed = this.#slots[this.#oldest];
      renewed.state = 'asked';
      renewed.stepId = this.#nextStep++;
      this.#oldest = (this.#oldest + 1) % this.#slots.length;
    }
    this.#options.renew(count);
  }

  #slotOfStep(stepId: number): StandingPlace | undefined {
    const ahead = this.#nextStep - 1 - stepId;
    if (ahead < 0 || ahead >= this.#slots.length) return undefined;
    const slot = this.#slots[(this.#oldest + this.#slots.length - 1 - ahead) % this.#slots.length];
    return slot.stepId === stepId ? slot : undefined;
  }
}
