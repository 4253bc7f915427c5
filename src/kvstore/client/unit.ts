/** Transfers as messages. A unit is a stretch of work for one server, small enough to be overtaken: a slice of a large
 *  parameter, or many small parameters. Its runs are kept as columns of numbers; neighbours that are neighbours on both
 *  sides are one run, so that ten thousand small parameters cost a handful of runs. */
import type { ShoalError } from '../../base/errors.ts';
import type { Msg } from '../../messaging/msg.ts';
import type { OwnValues, ValueBlock, ValueCounters, ValueRef } from '../protocol/value-space.ts';
import { RegionCopies, wordsOf } from '../protocol/region-copies.ts';
import {
  alignedBytes,
  decodeResponse,
  encodeRuns,
  firstOwnFrame,
  KVMessage,
  malformed,
  SourceKind,
  TargetKind,
  type Run,
  type RunState,
} from '../protocol/wire.ts';
import { frameBytesDefault } from './options.ts';
import type { Reach, ClientRequest } from './request.ts';

/** Below it a copy into the message is cheaper than a reference. */
const referenceBytes = 8 * 1024;
const noRegion = -1;
/** Index of the frame of small values. */
const smallFrame = 1;

export interface Column {
  readonly slot: number;
  readonly slab: number;
  readonly round: number;
  readonly bytes: number;
  readonly push: ValueRef | undefined;
  readonly out: ValueRef | undefined;
  /** Of this piece within `push` and `out`. */
  readonly offset: number;
  /** Of the whole of `push`. Default false. */
  readonly nonFinite?: boolean;
  /** Instead of `push`: a compressed gradient, and how. */
  readonly encoded?: { readonly code: number; readonly bytes: Uint8Array };
}

export interface UnitOptions {
  readonly values: OwnValues;
  readonly priority: number;
  /** Batches that the client knows. */
  readonly batches: number;
  readonly counters: ValueCounters;
  /** From it on a value is a frame of its own, which nobody copies. */
  readonly frameBytes?: number | undefined;
  readonly type?: number;
  readonly finish: (error: ShoalError | undefined, unit: ClientUnit, states: readonly RunState[]) => void;
}

export class ClientUnit implements ClientRequest {
  priority: number;
  bytes = 0;
  readonly #options: UnitOptions;
  readonly #frameBytes: number;
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
  readonly #nonFinite: boolean[] = [];
  #pushes = false;
  #retained: ValueBlock | undefined;
  /** Of the message as it was sent last: run on the wire of each run here. */
  #wireRuns: number[] = [];
  #wireCount = 0;
  /** By run: whether its values come in the answer. */
  #inline: boolean[] = [];
  /** By run: index of the answer's frame that is its values, or 0. */
  #ownFrames: number[] = [];
  /** Regions whose places a server knows from here. */
  readonly #named = new Set<number>();
  #abandoned = false;

  constructor(options: UnitOptions) {
    this.#options = options;
    this.#frameBytes = options.frameBytes ?? frameBytesDefault;
    this.priority = options.priority;
  }

  get type(): number {
    return this.#options.type ?? (this.#pushes ? KVMessage.update : KVMessage.get);
  }

  get repeats(): boolean {
    return this.#pushes;
  }

  get pushed(): ClientRequest['pushed'] {
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
    const { slot, slab, round, bytes, push, out, offset, nonFinite = false, encoded } = column;
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
      nonFinite === this.#nonFinite[last] &&
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
    this.#nonFinite.push(nonFinite);
  }

  encode(reach: Reach, how: { readonly values: 'wanted' | 'none' }): Uint8Array[] {
    const wanted = how.values === 'wanted' && !this.#abandoned;
    const frames = new ValueFrames(this.#options, this.#frameBytes, this.#smallBytes(reach));
    const runs: Run[] = [];
    this.#wireRuns = [];
    this.#inline = [];
    this.#ownFrames = [];
    let ownFrame = firstOwnFrame;
    let last: Run | undefined;
    for (let k = 0; k < this.slots.length; k++) {
      const bytes = this.#sizes[k];
      const source = this.#sourceKind(k, reach);
      const target = wanted ? this.#targetKind(k, reach) : TargetKind.none;
      const small = source === SourceKind.inline && bytes < this.#frameBytes && !this.#encoded.has(k);
      if (source !== SourceKind.region) this.#addInline(k, source, frames);
      this.#inline.push(target === TargetKind.inline);
      this.#ownFrames.push(target === TargetKind.frame ? ownFrame++ : 0);
      if (last !== undefined && (small || source === SourceKind.none) && this.#continues(k, last, source, target)) {
        // Side by side in the first frame of values, or without values.
        last.slots += this.counts[k];
        if (small) last.sourceBytes += bytes;
      } else {
        last = this.#run(k, source, target, frames);
        runs.push(last);
      }
      this.#wireRuns.push(runs.length - 1);
    }
    this.#wireCount = runs.length;
    return [encodeRuns({ batches: this.#options.batches, optimizer: reach.optimizer, runs }), ...frames.finish()];
  }

  #sourceKind(k: number, reach: Reach): number {
    if (this.#encoded.has(k)) return SourceKind.inline;
    return this.#sourceRegions[k] === noRegion ? SourceKind.none : this.#kind(this.#sourceRegions[k], this.#sizes[k], reach);
  }

  #targetKind(k: number, reach: Reach): number {
    const region = this.#targetRegions[k];
    if (region === noRegion) return TargetKind.none;
    const kind = this.#kind(region, this.#sizes[k], reach);
    return kind === TargetKind.inline && this.#sizes[k] >= this.#frameBytes ? TargetKind.frame : kind;
  }

  /** The key of the place, which servers write to until the answer is here. */
  #place(region: number): number {
    this.#named.add(region);
    return this.#options.values.placeOf(region);
  }

  /** By reference or inline: the same numbers for sources and targets. */
  #kind(region: number, bytes: number, reach: Reach): number {
    return bytes >= referenceBytes && reach.attached(region) ? SourceKind.region : SourceKind.inline;
  }

  #addInline(k: number, source: number, frames: ValueFrames): void {
    const encoded = this.#encoded.get(k);
    if (encoded !== undefined) frames.add(encoded.bytes);
    else if (source === SourceKind.inline) frames.addRegion(this.#sourceRegions[k], this.#sourceOffsets[k], this.#sizes[k]);
  }

  #continues(k: number, last: Run, source: number, target: number): boolean {
    return (
      this.slots[k] === last.firstSlot + last.slots &&
      this.#slabs[k] === this.#slabs[k - 1] &&
      this.#rounds[k] === last.round &&
      this.#nonFinite[k] === last.nonFinite &&
      source === last.source &&
      (source === SourceKind.none || last.sourceRegion === smallFrame) &&
      target === last.target &&
      target !== TargetKind.region &&
      target !== TargetKind.frame &&
      last.codec === 0
    );
  }

  /** The run on the wire; its inline values have just been added. */
  #run(k: number, source: number, target: number, frames: ValueFrames): Run {
    const encoded = this.#encoded.get(k);
    const inline = source === SourceKind.inline;
    const region = source === SourceKind.region;
    return {
      firstSlot: this.slots[k],
      slots: this.counts[k],
      round: this.#rounds[k],
      source,
      target,
      codec: encoded?.code ?? 0,
      sourceRegion: inline ? frames.frame : region ? this.#sourceRegions[k] : 0,
      sourceOffset: inline ? frames.offset : region ? this.#sourceOffsets[k] : 0,
      sourceBytes: source === SourceKind.none ? 0 : (encoded?.bytes.byteLength ?? this.#sizes[k]),
      targetRegion: this.#targetRegionOnWire(k, target),
      targetOffset: target === TargetKind.region || target === TargetKind.frame ? this.#targetOffsets[k] : 0,
      rows: 0,
      nonFinite: this.#nonFinite[k],
    };
  }

  #targetRegionOnWire(k: number, target: number): number {
    if (target === TargetKind.region) return this.#targetRegions[k];
    return target === TargetKind.frame ? this.#place(this.#targetRegions[k]) : 0;
  }

  /** Bytes of the first frame of values. */
  #smallBytes(reach: Reach): number {
    let bytes = 0;
    for (let k = 0; k < this.slots.length; k++) {
      const size = this.#encoded.get(k)?.bytes.byteLength ?? this.#sizes[k];
      if (size < this.#frameBytes && this.#sourceKind(k, reach) === SourceKind.inline) bytes += size;
    }
    return bytes;
  }

  /** Nobody waits for values any more: their memory is in use for other things. */
  abandon(): void {
    this.#abandoned = true;
    for (const region of this.#named) this.#options.values.closePlace(region);
    this.#named.clear();
  }

  retain(): number {
    if (this.#retained !== undefined) return 0;
    if (this.#sourceRegions.every((region) => region === noRegion)) return 0;
    let bytes = 0;
    for (let k = 0; k < this.slots.length; k++) if (this.#sourceRegions[k] !== noRegion) bytes += alignedBytes(this.#sizes[k]);
    const block = this.#options.values.allocate(bytes);
    this.#retained = block;
    let at = 0;
    for (let k = 0; k < this.slots.length; k++) {
      if (this.#sourceRegions[k] === noRegion) continue;
      const ref = { region: this.#sourceRegions[k], offset: this.#sourceOffsets[k], bytes: this.#sizes[k] };
      block.view.set(this.#options.values.view(ref), at);
      this.#options.counters.bytesCopied += ref.bytes;
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
    this.#named.clear();
    if (error !== undefined || msg === undefined) return this.#options.finish(error, this, []);
    if (msg.type === KVMessage.done) return this.#options.finish(undefined, this, []);
    const states = decodeResponse(msg.frames, this.#wireCount);
    if (!this.#abandoned && msg.frames[1] !== undefined) {
      this.#scatter(msg.frames[1]);
      this.#takeFrames(msg.frames);
    }
    return this.#options.finish(
      undefined,
      this,
      this.#wireRuns.map((run) => states[run]),
    );
  }

  /** Values of the answer, to where they belong. Those with references are there already. */
  #scatter(payload: Uint8Array): void {
    const copies = new RegionCopies(this.#options.values);
    const source = wordsOf(payload);
    let at = 0;
    for (let k = 0; k < this.#targetRegions.length; k++) {
      if (!this.#inline[k]) continue;
      if (this.#wireRuns[k] !== this.#wireRuns[k - 1]) at = alignedBytes(at);
      const bytes = this.#sizes[k];
      copies.scatter(this.#targetRegions[k], this.#targetOffsets[k], source, at, bytes);
      this.#options.counters.bytesCopied += bytes;
      at += bytes;
    }
  }

  /** Values in frames of their own: most are where they belong, because the frame was written there. */
  #takeFrames(frames: readonly Uint8Array[]): void {
    for (const [k, index] of this.#ownFrames.entries()) {
      if (index === 0) continue;
      const frame = frames[index];
      const bytes = this.#sizes[k];
      if (frame?.byteLength !== bytes) throw malformed(`an answer with ${frame?.byteLength ?? 'no'} bytes for ${bytes}`);
      const target = this.#options.values.view({ region: this.#targetRegions[k], offset: this.#targetOffsets[k], bytes });
      if (frame.buffer === target.buffer && frame.byteOffset === target.byteOffset) continue;
      target.set(frame);
      this.#options.counters.bytesCopied += bytes;
    }
  }
}

/** Values inside a message: small ones side by side in its first frame of values, large ones as frames of their own. */
class ValueFrames {
  readonly #values: OwnValues;
  readonly #copies: RegionCopies;
  readonly #counters: ValueCounters;
  readonly #frameBytes: number;
  readonly #small: ReturnType<typeof wordsOf>;
  readonly #large: Uint8Array[] = [];
  #at = 0;
  /** Where the value is that was added last. */
  frame = 0;
  offset = 0;

  constructor({ values, counters }: UnitOptions, frameBytes: number, smallBytes: number) {
    this.#values = values;
    this.#counters = counters;
    this.#frameBytes = frameBytes;
    this.#copies = new RegionCopies(values);
    this.#small = wordsOf(Buffer.allocUnsafeSlow(smallBytes));
  }

  add(bytes: Uint8Array): void {
    if (bytes.byteLength >= this.#frameBytes) return this.#addLarge(bytes);
    this.#small.bytes.set(bytes, this.#at);
    return this.#placed(bytes.byteLength);
  }

  addRegion(region: number, offset: number, bytes: number): void {
    if (bytes >= this.#frameBytes) return this.#addLarge(this.#values.view({ region, offset, bytes }));
    this.#copies.gather(this.#small, this.#at, region, offset, bytes);
    return this.#placed(bytes);
  }

  /** The frame of small values is there also when it is empty. */
  finish(): Uint8Array[] {
    if (this.frame === 0) return [];
    return [this.#small.bytes, ...this.#large];
  }

  #placed(bytes: number): void {
    this.#counters.bytesCopied += bytes;
    this.frame = smallFrame;
    this.offset = this.#at;
    this.#at += bytes;
  }

  #addLarge(bytes: Uint8Array): void {
    this.frame = smallFrame + this.#large.push(bytes);
    this.offset = 0;
  }
}
