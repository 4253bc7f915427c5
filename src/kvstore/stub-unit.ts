/** Transfers as messages. A unit is a stretch of work for one server, small enough to be overtaken: a slice of a large
 *  parameter, or many small parameters. Its runs are kept as columns of numbers; neighbours that are neighbours on both
 *  sides are one run, so that ten thousand small parameters cost a handful of runs. */
import type { ShoalError } from '../base/errors.ts';
import type { Msg } from '../messaging/msg.ts';
import type { OwnValues, ValueBlock, ValueRef } from './value-space.ts';
import { decodeResponse, encodeRuns, KVMessage, SourceKind, TargetKind, type Run, type RunState } from './wire.ts';
import type { Reach, StubRequest } from './stub-request.ts';

/** Below it a copy into the message is cheaper than a reference. */
const referenceBytes = 8 * 1024;
/** From it on a value is a frame of its own, which nobody copies. */
const ownFrameBytes = 32 * 1024;
const noRegion = -1;

export interface Column {
  readonly slot: number;
  readonly slab: number;
  readonly round: number;
  readonly bytes: number;
  readonly push: ValueRef | undefined;
  readonly out: ValueRef | undefined;
  /** Of this piece within `push` and `out`. */
  readonly offset: number;
  /** Instead of `push`: a compressed gradient, and how. */
  readonly encoded?: { readonly code: number; readonly bytes: Uint8Array };
}

export interface UnitOptions {
  readonly values: OwnValues;
  readonly priority: number;
  /** Batches that the stub knows. */
  readonly batches: number;
  readonly type?: number;
  readonly finish: (error: ShoalError | undefined, unit: StubUnit, states: readonly RunState[]) => void;
}

export class StubUnit implements StubRequest {
  priority: number;
  bytes = 0;
  readonly #options: UnitOptions;
  readonly slots: number[] = [];
  readonly counts: number[] = [];
  readonly #rounds: number[] = [];
  readonly #sizes: number[] = [];
  readonly #sourceRegions: number[] = [];
  readonly #sourceOffsets: number[] = [];
  readonly #targetRegions: number[] = [];
  readonly #targetOffsets: number[] = [];
  readonly #encoded = new Map<number, { readonly code: number; readonly bytes: Uint8Array }>();
  readonly #slabs: number[] = [];
  #pushes = false;
  #retained: ValueBlock | undefined;
  /** Of the message as it was sent last: run on the wire of each run here. */
  #wireRuns: number[] = [];
  #wireCount = 0;
  /** By run: whether its values come in the answer. */
  #inline: boolean[] = [];
  #abandoned = false;

  constructor(options: UnitOptions) {
    this.#options = options;
    this.priority = options.priority;
  }

  get type(): number {
    return this.#options.type ?? (this.#pushes ? KVMessage.update : KVMessage.get);
  }

  get repeats(): boolean {
    return this.#pushes;
  }

  get pushed(): StubRequest['pushed'] {
    return this.#pushes ? { slots: this.slots, counts: this.counts } : undefined;
  }

  get pulls(): boolean {
    return this.#targetRegions.some((region) => region !== noRegion);
  }

  get regions(): readonly number[] {
    const regions = new Set([...this.#sourceRegions, ...this.#targetRegions]);
    regions.delete(noRegion);
    return [...regions];
  }

  add(column: Column): void {
    const { slot, slab, round, bytes, push, out, offset, encoded } = column;
    const sourceRegion = push === undefined || encoded !== undefined ? noRegion : push.region;
    const sourceOffset = sourceRegion === noRegion ? 0 : push!.offset + offset;
    const targetRegion = out === undefined ? noRegion : out.region;
    const targetOffset = out === undefined ? 0 : out.offset + offset;
    this.bytes += bytes;
    this.#pushes ||= push !== undefined || encoded !== undefined;
    const last = this.slots.length - 1;
    if (
      last >= 0 &&
      encoded === undefined &&
      slab === this.#slabs[last] &&
      slot === this.slots[last] + this.counts[last] &&
      round === this.#rounds[last] &&
      sourceRegion === this.#sourceRegions[last] &&
      targetRegion === this.#targetRegions[last] &&
      (sourceRegion === noRegion || sourceOffset === this.#sourceOffsets[last] + this.#sizes[last]) &&
      (targetRegion === noRegion || targetOffset === this.#targetOffsets[last] + this.#sizes[last]) &&
      !this.#encoded.has(last)
    ) {
      this.counts[last]++;
      this.#sizes[last] += bytes;
      return;
    }
    this.slots.push(slot);
    this.counts.push(1);
    this.#rounds.push(round);
    this.#sizes.push(bytes);
    this.#sourceRegions.push(sourceRegion);
    this.#sourceOffsets.push(sourceOffset);
    this.#targetRegions.push(targetRegion);
    this.#targetOffsets.push(targetOffset);
    if (encoded !== undefined) this.#encoded.set(this.slots.length - 1, encoded);
    this.#slabs.push(slab);
  }

  encode(reach: Reach, how: { readonly values: 'wanted' | 'none' }): Uint8Array[] {
    const values = this.#abandoned ? 'none' : how.values;
    const packed = new Packer();
    const runs: Run[] = [];
    this.#wireRuns = [];
    this.#inline = [];
    let slab = -1;
    for (let k = 0; k < this.slots.length; k++) {
      const run = this.#wireRun(k, reach, packed, values);
      this.#inline.push(run.target === TargetKind.inline);
      const last = runs.at(-1);
      if (last !== undefined && slab === this.#slabs[k] && continues(last, run)) {
        last.slots += run.slots;
        last.sourceBytes += run.sourceBytes;
      } else {
        runs.push(run);
      }
      slab = this.#slabs[k];
      this.#wireRuns.push(runs.length - 1);
    }
    this.#wireCount = runs.length;
    const { batches } = this.#options;
    return [encodeRuns({ batches, optimizer: reach.optimizer, runs }), ...packed.frames()];
  }

  #wireRun(k: number, reach: Reach, packed: Packer, values: 'wanted' | 'none'): Run {
    const bytes = this.#sizes[k];
    const run: Run = {
      firstSlot: this.slots[k],
      slots: this.counts[k],
      round: this.#rounds[k],
      source: SourceKind.none,
      target: TargetKind.none,
      codec: 0,
      sourceRegion: 0,
      sourceOffset: 0,
      sourceBytes: 0,
      targetRegion: 0,
      targetOffset: 0,
      rows: 0,
    };
    const encoded = this.#encoded.get(k);
    const sourceRegion = this.#sourceRegions[k];
    if (encoded !== undefined) {
      run.codec = encoded.code;
      inline(run, packed, encoded.bytes);
    } else if (sourceRegion !== noRegion) {
      const ref = { region: sourceRegion, offset: this.#sourceOffsets[k], bytes };
      if (bytes >= referenceBytes && reach.attached(sourceRegion)) {
        run.source = SourceKind.region;
        run.sourceRegion = sourceRegion;
        run.sourceOffset = ref.offset;
        run.sourceBytes = bytes;
      } else {
        inline(run, packed, reach.view(ref));
      }
    }
    const targetRegion = this.#targetRegions[k];
    if (targetRegion !== noRegion && values === 'wanted') {
      if (bytes >= referenceBytes && reach.attached(targetRegion)) {
        run.target = TargetKind.region;
        run.targetRegion = targetRegion;
        run.targetOffset = this.#targetOffsets[k];
      } else {
        run.target = TargetKind.inline;
      }
    }
    return run;
  }

  /** Nobody waits for values any more: their memory is in use for other things. */
  abandon(): void {
    this.#abandoned = true;
  }

  retain(): number {
    if (this.#retained !== undefined) return 0;
    let bytes = 0;
    for (let k = 0; k < this.slots.length; k++) if (this.#sourceRegions[k] !== noRegion) bytes += alignedBytes(this.#sizes[k]);
    if (bytes === 0) return 0;
    const block = this.#options.values.allocate(bytes);
    this.#retained = block;
    let at = 0;
    for (let k = 0; k < this.slots.length; k++) {
      if (this.#sourceRegions[k] === noRegion) continue;
      const ref = { region: this.#sourceRegions[k], offset: this.#sourceOffsets[k], bytes: this.#sizes[k] };
      block.view.set(this.#options.values.view(ref), at);
      this.#sourceRegions[k] = block.ref.region;
      this.#sourceOffsets[k] = block.ref.offset + at;
      at += alignedBytes(this.#sizes[k]);
    }
    return bytes;
  }

  drop(): void {
    this.#retained?.free();
    this.#retained = undefined;
  }

  finish(error: ShoalError | undefined, msg: Msg | undefined): void {
    if (error !== undefined || msg === undefined) return this.#options.finish(error, this, []);
    if (msg.type === KVMessage.done) return this.#options.finish(undefined, this, []);
    const states = decodeResponse(msg.frames, this.#wireCount);
    if (!this.#abandoned && msg.frames[1] !== undefined) this.#scatter(msg.frames[1]);
    return this.#options.finish(
      undefined,
      this,
      this.#wireRuns.map((run) => states[run]),
    );
  }

  /** Values of the answer, to where they belong. Those with references are there already. */
  #scatter(payload: Uint8Array): void {
    let at = 0;
    for (const [k, region] of this.#targetRegions.entries()) {
      if (!this.#inline[k]) continue;
      const bytes = this.#sizes[k];
      this.#options.values.view({ region, offset: this.#targetOffsets[k], bytes }).set(payload.subarray(at, at + bytes));
      at += bytes;
    }
  }
}

/** Small values side by side in one frame, large ones as frames of their own. */
class Packer {
  readonly #small: Uint8Array[] = [];
  readonly #large: Uint8Array[] = [];
  #smallBytes = 0;

  /** @returns frame and offset, and whether the frame is the one of small values. */
  add(bytes: Uint8Array): { frame: number; offset: number } {
    if (bytes.byteLength >= ownFrameBytes) return { frame: 1 + this.#large.push(bytes), offset: 0 };
    const offset = this.#smallBytes;
    this.#small.push(bytes);
    this.#smallBytes += bytes.byteLength;
    return { frame: 1, offset };
  }

  /** Frame 1 holds the small values, also when there are none. */
  frames(): Uint8Array[] {
    if (this.#smallBytes === 0 && this.#large.length === 0) return [];
    const packed = Buffer.allocUnsafeSlow(this.#smallBytes);
    let at = 0;
    for (const bytes of this.#small) {
      packed.set(bytes, at);
      at += bytes.byteLength;
    }
    return [packed, ...this.#large];
  }
}

function inline(run: Run, packed: Packer, bytes: Uint8Array): void {
  const { frame, offset } = packed.add(bytes);
  run.source = SourceKind.inline;
  run.sourceRegion = frame;
  run.sourceOffset = offset;
  run.sourceBytes = bytes.byteLength;
}

/** Whether a run on the wire goes on where another ends. */
function continues(last: Run, run: Run): boolean {
  return (
    run.codec === 0 &&
    last.codec === 0 &&
    run.firstSlot === last.firstSlot + last.slots &&
    run.round === last.round &&
    run.source === last.source &&
    run.target === last.target &&
    run.target !== TargetKind.region &&
    run.source !== SourceKind.region &&
    (run.source === SourceKind.none ||
      (run.sourceRegion === last.sourceRegion && run.sourceOffset === last.sourceOffset + last.sourceBytes))
  );
}

function alignedBytes(bytes: number): number {
  return Math.ceil(bytes / 8) * 8;
}
