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
import { frameBytesDefault } from './client-options.ts';
import type { Reach, ClientRequest } from './client-request.ts';

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
  /** The offset of this piece within `push` and `out`. */
  readonly offset: number;
  /** True when the whole of `push` holds NaN or infinity. */
  readonly nonFinite: boolean;
  /** Instead of `push`: a compressed gradient, and how. */
  readonly encoded: { readonly code: number; readonly bytes: Uint8Array } | undefined;
}

/** The options that all units of one operation have in common. */
export interface PlanOptions {
  readonly priority: number;
  /** The type of a message that is neither a push nor a pull. */
  readonly type?: number;
}

export interface UnitOptions {
  readonly plan: PlanOptions;
  readonly values: OwnValues;
  /** Batches that the client knows. */
  readonly batches: number;
  readonly counters: ValueCounters;
  /** From it on a value is a frame of its own, which nobody copies. */
  readonly frameBytes?: number | undefined;
  readonly finish: (error: ShoalError | undefined, unit: ClientUnit, states: readonly RunState[]) => void;
}

/** Neighbouring slots of one slab whose values are neighbours in memory. */
interface Stretch {
  readonly firstSlot: number;
  slots: number;
  readonly slab: number;
  readonly round: number;
  /** Bytes of its values. */
  bytes: number;
  sourceRegion: number;
  sourceOffset: number;
  readonly targetRegion: number;
  readonly targetOffset: number;
  readonly encoded: Column['encoded'];
  readonly nonFinite: boolean;
  /** Its run in the message that was sent last. */
  wireRun: number;
  /** Index of the answer's frame with its values: `smallFrame`, which several share, one of its own, or 0. */
  answerFrame: number;
}

export class ClientUnit implements ClientRequest {
  priority: number;
  bytes = 0;
  readonly stretches: Stretch[] = [];
  readonly #options: UnitOptions;
  readonly #frameBytes: number;
  #pushes = false;
  #retained: ValueBlock | undefined;
  /** Number of runs in the message that was sent last. */
  #wireCount = 0;
  /** Regions whose places a server knows from here. */
  readonly #named = new Set<number>();
  #abandoned = false;

  constructor(options: UnitOptions) {
    this.#options = options;
    this.#frameBytes = options.frameBytes ?? frameBytesDefault;
    this.priority = options.plan.priority;
  }

  get type(): number {
    return this.#options.plan.type ?? (this.#pushes ? KVMessage.update : KVMessage.get);
  }

  get repeats(): boolean {
    return this.#pushes;
  }

  get pushed(): ClientRequest['pushed'] {
    return this.#pushes ? this.stretches : undefined;
  }

  get pulls(): boolean {
    return this.stretches.some(({ targetRegion }) => targetRegion !== noRegion);
  }

  get regions(): readonly number[] {
    const regions = new Set<number>();
    for (const { sourceRegion, targetRegion } of this.stretches) regions.add(sourceRegion).add(targetRegion);
    regions.delete(noRegion);
    return [...regions];
  }

  add({ slot, slab, round, bytes, push, out, offset, nonFinite, encoded }: Column): void {
    const source = encoded === undefined ? push : undefined;
    const sourceRegion = source?.region ?? noRegion;
    const sourceOffset = source === undefined ? 0 : source.offset + offset;
    const targetRegion = out?.region ?? noRegion;
    const targetOffset = out === undefined ? 0 : out.offset + offset;
    this.bytes += bytes;
    this.#pushes ||= push !== undefined || encoded !== undefined;
    const last = this.stretches.at(-1);
    if (
      last !== undefined &&
      encoded === undefined &&
      last.encoded === undefined &&
      slab === last.slab &&
      slot === last.firstSlot + last.slots &&
      round === last.round &&
      nonFinite === last.nonFinite &&
      sourceRegion === last.sourceRegion &&
      targetRegion === last.targetRegion &&
      (sourceRegion === noRegion || sourceOffset === last.sourceOffset + last.bytes) &&
      (targetRegion === noRegion || targetOffset === last.targetOffset + last.bytes)
    ) {
      last.slots++;
      last.bytes += bytes;
      return;
    }
    this.stretches.push({
      firstSlot: slot,
      slots: 1,
      slab,
      round,
      bytes,
      sourceRegion,
      sourceOffset,
      targetRegion,
      targetOffset,
      encoded,
      nonFinite,
      wireRun: 0,
      answerFrame: 0,
    });
  }

  encode(reach: Reach): Uint8Array[] {
    const wanted = reach.values === 'wanted' && !this.#abandoned;
    const frames = new ValueFrames(this.#options, this.#frameBytes, this.#smallBytes(reach));
    const runs: Run[] = [];
    let ownFrame = firstOwnFrame;
    let last: Run | undefined;
    let before: Stretch | undefined;
    for (const stretch of this.stretches) {
      const { bytes, encoded } = stretch;
      const source = this.#sourceKind(stretch, reach);
      const target = wanted ? this.#targetKind(stretch, reach) : TargetKind.none;
      const small = source === SourceKind.inline && bytes < this.#frameBytes && encoded === undefined;
      if (encoded !== undefined) frames.add(encoded.bytes);
      else if (source === SourceKind.inline) frames.addRegion(stretch.sourceRegion, stretch.sourceOffset, bytes);
      stretch.answerFrame = target === TargetKind.inline ? smallFrame : target === TargetKind.frame ? ownFrame++ : 0;
      if (before !== undefined && (small || source === SourceKind.none) && continues(stretch, before, last!, source, target)) {
        // Side by side in the first frame of values, or without values.
        last!.slots += stretch.slots;
        if (small) last!.sourceBytes += bytes;
      } else {
        last = this.#run(stretch, source, target, frames);
        runs.push(last);
      }
      stretch.wireRun = runs.length - 1;
      before = stretch;
    }
    this.#wireCount = runs.length;
    return [encodeRuns({ ...reach, batches: this.#options.batches, runs }), ...frames.finish()];
  }

  #sourceKind({ encoded, sourceRegion, bytes }: Stretch, reach: Reach): number {
    if (encoded !== undefined) return SourceKind.inline;
    return sourceRegion === noRegion ? SourceKind.none : kindOf(sourceRegion, bytes, reach);
  }

  #targetKind({ targetRegion, bytes }: Stretch, reach: Reach): number {
    if (targetRegion === noRegion) return TargetKind.none;
    const kind = kindOf(targetRegion, bytes, reach);
    return kind === TargetKind.inline && bytes >= this.#frameBytes ? TargetKind.frame : kind;
  }

  /** The key of the place, which servers write to until the answer is here. */
  #place(region: number): number {
    this.#named.add(region);
    return this.#options.values.placeOf(region);
  }

  /** The run on the wire; its inline values have just been added. */
  #run(stretch: Stretch, source: number, target: number, frames: ValueFrames): Run {
    const { firstSlot, slots, round, bytes, encoded, sourceRegion, sourceOffset, targetRegion, targetOffset, nonFinite } = stretch;
    const isInline = source === SourceKind.inline;
    const isReference = source === SourceKind.region;
    const named = target === TargetKind.frame ? this.#place(targetRegion) : 0;
    return {
      firstSlot,
      slots,
      round,
      source,
      target,
      codec: encoded?.code ?? 0,
      sourceRegion: isInline ? frames.frame : isReference ? sourceRegion : 0,
      sourceOffset: isInline ? frames.offset : isReference ? sourceOffset : 0,
      sourceBytes: source === SourceKind.none ? 0 : (encoded?.bytes.byteLength ?? bytes),
      targetRegion: target === TargetKind.region ? targetRegion : named,
      targetOffset: target === TargetKind.region || target === TargetKind.frame ? targetOffset : 0,
      rows: 0,
      nonFinite,
    };
  }

  /** Bytes of the first frame of values. */
  #smallBytes(reach: Reach): number {
    let bytes = 0;
    for (const stretch of this.stretches) {
      const size = stretch.encoded?.bytes.byteLength ?? stretch.bytes;
      if (size < this.#frameBytes && this.#sourceKind(stretch, reach) === SourceKind.inline) bytes += size;
    }
    return bytes;
  }

  /** Abandons the values, for which nobody waits any more: their memory is in use for other things. */
  abandon(): void {
    this.#abandoned = true;
    for (const region of this.#named) this.#options.values.closePlace(region);
    this.#named.clear();
  }

  retain(): number {
    const sources = this.stretches.filter(({ sourceRegion }) => sourceRegion !== noRegion);
    if (this.#retained !== undefined || sources.length === 0) return 0;
    const total = sources.reduce((sum, { bytes }) => sum + alignedBytes(bytes), 0);
    const block = this.#options.values.allocate(total);
    this.#retained = block;
    let at = 0;
    for (const stretch of sources) {
      const { sourceRegion: region, sourceOffset: offset, bytes } = stretch;
      block.view.set(this.#options.values.view({ region, offset, bytes }), at);
      this.#options.counters.bytesCopied += bytes;
      stretch.sourceRegion = block.ref.region;
      stretch.sourceOffset = block.ref.offset + at;
      at += alignedBytes(bytes);
    }
    return total;
  }

  drop(): void {
    this.#retained?.free();
    this.#retained = undefined;
  }

  finish(error: ShoalError | undefined, msg: Msg | undefined): void {
    this.#named.clear();
    if (error !== undefined || msg === undefined || msg.type === KVMessage.done) return this.#options.finish(error, this, []);
    const states = decodeResponse(msg.frames, this.#wireCount);
    if (!this.#abandoned && msg.frames[1] !== undefined) this.#takeValues(msg.frames);
    const stretches = this.stretches.map(({ wireRun }) => states[wireRun]);
    return this.#options.finish(undefined, this, stretches);
  }

  /** Values of the answer, to where they belong. Those with references are there already, and most of those in frames of their own, because
   *  the frame was written there. */
  #takeValues(frames: readonly Uint8Array[]): void {
    const { values, counters } = this.#options;
    const copies = new RegionCopies(values);
    const shared = wordsOf(frames[1]);
    let at = 0;
    let run = -1;
    for (const { answerFrame, wireRun, targetRegion: region, targetOffset: offset, bytes } of this.stretches) {
      if (answerFrame === smallFrame) {
        if (wireRun !== run) at = alignedBytes(at);
        copies.scatter(region, offset, shared, at, bytes);
        at += bytes;
      } else if (answerFrame > 0) {
        const frame = frames[answerFrame];
        if (frame?.byteLength !== bytes) throw malformed(`an answer with ${frame?.byteLength ?? 'no'} bytes for ${bytes}`);
        const target = values.view({ region, offset, bytes });
        if (frame.buffer === target.buffer && frame.byteOffset === target.byteOffset) continue;
        target.set(frame);
      } else continue;
      run = wireRun;
      counters.bytesCopied += bytes;
    }
  }
}

/** The kind of a source or target, by reference or inline: both have the same numbers. */
function kindOf(region: number, bytes: number, reach: Reach): number {
  return bytes >= referenceBytes && reach.regions.isAttached(region) ? SourceKind.region : SourceKind.inline;
}

/** True when the stretch goes on where the one before it ends, which ends the last run. */
function continues(stretch: Stretch, before: Stretch, last: Run, source: number, target: number): boolean {
  return (
    stretch.firstSlot === last.firstSlot + last.slots &&
    stretch.slab === before.slab &&
    stretch.round === last.round &&
    stretch.nonFinite === last.nonFinite &&
    source === last.source &&
    (source === SourceKind.none || last.sourceRegion === smallFrame) &&
    target === last.target &&
    target !== TargetKind.region &&
    target !== TargetKind.frame &&
    last.codec === 0
  );
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
  /** The place of the value that was added last. */
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
