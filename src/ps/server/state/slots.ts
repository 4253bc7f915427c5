/** The memory of a server: slabs of values and of optimiser state, and the record of each slot. */
import { pushTo } from '../../../base/collections/lists.ts';
import { ShoalError } from '../../../base/errors.ts';
import { dtypeInfo, type DType } from '../../../memory/dtype.ts';
import type { DeclaredParameter, ParameterDirectory } from '../../protocol/parameter-directory.ts';
import type { Optimizer } from '../../optimizers/optimizer.ts';
import type { ValueCounters } from '../../protocol/value-space.ts';
import { stateNames, stateType } from '../../values/mixed-precision.ts';

const elementBytesMost = 8;

/** The values of a slab. While messages are made of it, nobody writes to it: what changes then goes to other memory. */
export interface ValueMemory {
  readonly bytes: Uint8Array;
  readers: number;
}

export interface Slab {
  readonly dtype: DType;
  memory: ValueMemory;
  /** One array per state of the optimiser, with as many elements as there are values. */
  states: Uint8Array[];
}

/** Most bytes of value memory that is kept for the next message that is under way when values change. */
const spareBytesMost = 64 * 2 ** 20;

export class ServerSlots {
  readonly #server: number;
  readonly #directory: ParameterDirectory;
  readonly slabs: Slab[] = [];
  /** The slab of each slot, and its place in it, in bytes. */
  readonly slab: number[] = [];
  readonly start: number[] = [];
  readonly end: number[] = [];
  /** Updates applied. */
  readonly version: number[] = [];
  /** Workers whose pushes were the last one of them, since this process serves. */
  readonly workers: number[] = [];
  /** Updates applied since the optimiser was set. */
  readonly steps: number[] = [];
  /** Spare memory by its length. */
  readonly #spare = new Map<number, ValueMemory[]>();
  #spareBytes = 0;
  readonly counters: ValueCounters;

  constructor(server: number, directory: ParameterDirectory, counters: ValueCounters = { bytesCopied: 0 }) {
    this.counters = counters;
    this.#server = server;
    this.#directory = directory;
  }

  get count(): number {
    return this.slab.length;
  }

  /** Takes memory for the slots that the directory has and we have not. @throws ShoalError `out-of-memory`. */
  grow(optimizer: Optimizer | undefined): void {
    const records = this.#directory.slots(this.#server);
    const sizes: number[] = [];
    const dtypeOf: DType[] = [];
    const before = this.slabs.length;
    for (let slot = this.count; slot < records.length; slot++) {
      const { slab, elements, parameter } = records[slot];
      const { dtype } = this.#directory.parameter(parameter);
      const start = sizes[slab - before] ?? 0;
      sizes[slab - before] = start + elements * dtypeInfo(dtype).bytes;
      dtypeOf[slab - before] = dtype;
      this.slab.push(slab);
      this.start.push(start);
      this.end.push(sizes[slab - before]);
      this.version.push(0);
      this.workers.push(0);
      this.steps.push(0);
    }
    for (const [k, bytes] of sizes.entries()) {
      this.slabs.push({
        dtype: dtypeOf[k],
        memory: { bytes: allocate(bytes), readers: 0 },
        states: statesOf(optimizer, dtypeOf[k], bytes),
      });
    }
  }

  /** Fresh state for another optimiser: zeros. */
  resetStates(optimizer: Optimizer | undefined): void {
    for (const slab of this.slabs) slab.states = statesOf(optimizer, slab.dtype, slab.memory.bytes.byteLength);
    this.steps.fill(0);
  }

  dtype(slot: number): DType {
    return this.slabs[this.slab[slot]].dtype;
  }

  /** Values of slots `from` to `to − 1`, of one slab, to be read now. */
  values(from: number, to: number): Uint8Array {
    return this.slabs[this.slab[from]].memory.bytes.subarray(this.start[from], this.end[to - 1]);
  }

  /** The same, to be changed. */
  writable(from: number, to: number): Uint8Array {
    const slab = this.slabs[this.slab[from]];
    const { memory } = slab;
    if (memory.readers > 0) {
      slab.memory = this.#memory(memory.bytes.byteLength);
      slab.memory.bytes.set(memory.bytes);
      this.counters.bytesCopied += memory.bytes.byteLength;
    }
    return this.values(from, to);
  }

  /** States of slots `from` to `to − 1`, of one slab, to be read or changed. */
  states(from: number, to: number): Uint8Array[] {
    const { dtype, states } = this.slabs[this.slab[from]];
    const times = stateBytes(dtype, 1);
    return states.map((array) => array.subarray(this.start[from] * times, this.end[to - 1] * times));
  }

  /** Values and states of a slot, to be read; to be changed after `writable`. */
  memories(slot: number): Uint8Array[] {
    return [this.values(slot, slot + 1), ...this.states(slot, slot + 1)];
  }

  /** The bytes of the values of a slot, and of its states with this optimiser. */
  bytesOf(slot: number, optimizer: Optimizer | undefined): number {
    const [dtype, bytes] = [this.dtype(slot), this.end[slot] - this.start[slot]];
    return bytes + stateNames(optimizer, dtype).length * stateBytes(dtype, bytes);
  }

  /** Memory for all new values of a slab that has these slots and no others, when messages need the present one; undefined: it may
   *  be written over. `replace` makes it the slab's. */
  fresh(from: number, to: number): ValueMemory | undefined {
    const { memory } = this.slabs[this.slab[from]];
    const isWhole = this.start[from] === 0 && this.end[to - 1] === memory.bytes.byteLength;
    return isWhole && memory.readers > 0 ? this.#memory(memory.bytes.byteLength) : undefined;
  }

  replace(slot: number, memory: ValueMemory): void {
    this.slabs[this.slab[slot]].memory = memory;
  }

  /** One slot, and nothing beside it in its slab. */
  isLone(first: number, slots: number): boolean {
    return slots === 1 && this.start[first] === 0 && this.end[first] === this.slabs[this.slab[first]].memory.bytes.byteLength;
  }

  /** Memory that is a slot's values and nothing else, for a message: it stays as it is until `giveBack`. */
  lend(slot: number): ValueMemory {
    const { memory } = this.slabs[this.slab[slot]];
    memory.readers++;
    return memory;
  }

  giveBack(slot: number, memory: ValueMemory): void {
    memory.readers--;
    const { byteLength } = memory.bytes;
    if (memory.readers > 0 || this.slabs[this.slab[slot]]?.memory === memory || this.#spareBytes + byteLength > spareBytesMost) return;
    pushTo(this.#spare, byteLength, memory);
    this.#spareBytes += byteLength;
  }

  #memory(bytes: number): ValueMemory {
    const spare = this.#spare.get(bytes)?.pop();
    if (spare === undefined) return { bytes: allocate(bytes), readers: 0 };
    this.#spareBytes -= bytes;
    return spare;
  }

  parameterOf(slot: number): DeclaredParameter {
    return this.#directory.parameter(this.#directory.slots(this.#server)[slot].parameter);
  }

  describe(slot: number): string {
    return this.#directory.describeSlot(this.#server, slot);
  }
}

/** The bytes as they are where elements may begin there, else a copy: buffers of sockets begin at any address. */
export function aligned(bytes: Uint8Array, counters: ValueCounters): Uint8Array {
  if (bytes.byteOffset % elementBytesMost === 0) return bytes;
  counters.bytesCopied += bytes.byteLength;
  return new Uint8Array(bytes);
}

/** The bytes of states that so many bytes of values need. */
function stateBytes(dtype: DType, bytes: number): number {
  return (bytes / dtypeInfo(dtype).bytes) * dtypeInfo(stateType(dtype)).bytes;
}

function statesOf(optimizer: Optimizer | undefined, dtype: DType, bytes: number): Uint8Array[] {
  return stateNames(optimizer, dtype).map(() => allocate(stateBytes(dtype, bytes)));
}

function allocate(bytes: number): Uint8Array {
  try {
    return new Uint8Array(new ArrayBuffer(bytes));
  } catch (error) {
    throw new ShoalError('out-of-memory', `a server cannot have ${bytes} bytes for parameters; use more servers`, { bytes, cause: error });
  }
}
