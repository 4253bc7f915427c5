/** The memory of a server: slabs of values and of optimiser state, and what is known of each slot. */
import { ShoalError } from '../../../base/errors.ts';
import { dtypeInfo, type DType } from '../../../memory/dtype.ts';
import type { DeclaredParameter, ParameterDirectory } from '../../protocol/parameter-directory.ts';

export interface Slab {
  readonly dtype: DType;
  readonly bytes: Uint8Array;
  /** One array per state of the optimiser, as long as `bytes`. */
  states: Uint8Array[];
}

export class ServerSlots {
  readonly #server: number;
  readonly #directory: ParameterDirectory;
  readonly slabs: Slab[] = [];
  /** By slot: its slab, and where in it, in bytes. */
  readonly slab: number[] = [];
  readonly start: number[] = [];
  readonly end: number[] = [];
  /** Updates applied. */
  readonly version: number[] = [];
  /** Updates applied since the optimiser was set. */
  readonly steps: number[] = [];

  constructor(server: number, directory: ParameterDirectory) {
    this.#server = server;
    this.#directory = directory;
  }

  get count(): number {
    return this.slab.length;
  }

  /** Takes memory for the slots that the directory has and we have not. @throws ShoalError `out-of-memory`. */
  grow(stateCount: number): void {
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
      this.steps.push(0);
    }
    for (const [k, bytes] of sizes.entries()) {
      this.slabs.push({
        dtype: dtypeOf[k],
        bytes: allocate(bytes),
        states: Array.from({ length: stateCount }, () => allocate(bytes)),
      });
    }
  }

  /** Fresh state for another optimiser: zeros. */
  resetStates(stateCount: number): void {
    for (const slab of this.slabs) slab.states = Array.from({ length: stateCount }, () => allocate(slab.bytes.byteLength));
    this.steps.fill(0);
  }

  dtype(slot: number): DType {
    return this.slabs[this.slab[slot]].dtype;
  }

  /** Values of slots `from` to `to − 1`, of one slab. */
  values(from: number, to: number): Uint8Array {
    return this.slabs[this.slab[from]].bytes.subarray(this.start[from], this.end[to - 1]);
  }

  parameterOf(slot: number): DeclaredParameter {
    return this.#directory.parameter(this.#directory.slots(this.#server)[slot].parameter);
  }

  firstElement(slot: number): number {
    return this.#directory.slots(this.#server)[slot].firstElement;
  }

  describe(slot: number): string {
    return this.#directory.describeSlot(this.#server, slot);
  }
}

/** A copy in memory of our own. Buffers of sockets may begin at any address, which a typed array cannot tell. */
export function aligned(bytes: Uint8Array): Uint8Array {
  return new Uint8Array(bytes);
}

function allocate(bytes: number): Uint8Array {
  try {
    return new Uint8Array(new ArrayBuffer(bytes));
  } catch (error) {
    throw new ShoalError('out-of-memory', `a server cannot have ${bytes} bytes for parameters; use more servers`, { bytes, cause: error });
  }
}
