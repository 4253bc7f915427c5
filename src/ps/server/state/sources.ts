/** The sources and targets of a transfer at the server: in the client's memory or in messages.
 *  All of them are checked against slots and memory before any is used. */
import { ShoalError } from '../../../base/errors.ts';
import { dtypeInfo } from '../../../memory/dtype.ts';
import type { Address } from '../../../messaging/address.ts';
import type { Msg } from '../../../messaging/msg.ts';
import type { GradientCodec } from '../../compression/codec.ts';
import { rowBytesOf, rowsOf } from '../../protocol/placement.ts';
import type { RunSource, ServedRun, ServerRequest, ServerSession } from './client-session.ts';
import { aligned, type ServerSlots } from './slots.ts';
import type { RemoteValues } from '../../protocol/value-space.ts';
import {
  alignedBytes,
  decodeRows,
  malformed,
  rowNumbersBytes,
  SourceKind,
  TargetKind,
  type Run,
  type Transfer,
} from '../../protocol/wire.ts';

/** Most bytes of values in an answer. */
const answerBytesMax = 2 ** 30;

export class SourceReader {
  readonly #slots: ServerSlots;
  readonly #valuesOf: (source: Address) => RemoteValues;
  readonly #codecOf: (code: number) => GradientCodec | undefined;
  /** A standby reads what clients hold and leaves their memory alone: its primary writes there. */
  writes: 'targets' | 'nothing' = 'targets';

  constructor(slots: ServerSlots, valuesOf: (source: Address) => RemoteValues, codecOf: (code: number) => GradientCodec | undefined) {
    this.#slots = slots;
    this.#valuesOf = valuesOf;
    this.#codecOf = codecOf;
  }

  /** @throws ShoalError `protocol` when any run of the message is wrong. */
  resolve(session: ServerSession, msg: Msg, { runs }: Transfer): Pick<ServerRequest, 'runs' | 'payload'> {
    let [inAnswer, shared] = [0, 0];
    const sizes = runs.map((run) => {
      this.#checkSlots(run);
      const bytes = this.#targetBytes(run);
      if (run.target === TargetKind.inline || run.target === TargetKind.frame) inAnswer += alignedBytes(bytes);
      if (run.target === TargetKind.inline) shared += alignedBytes(bytes);
      return bytes;
    });
    if (inAnswer > answerBytesMax) throw malformed(`an answer would have ${inAnswer} bytes`);
    const payload = runs.some(({ target }) => target === TargetKind.inline) ? new Uint8Array(new ArrayBuffer(shared)) : undefined;
    const remote = this.#valuesOf(session.address);
    let at = 0;
    const served = runs.map((run, k): ServedRun => {
      const state = { version: Number.MAX_SAFE_INTEGER, settled: 0xffffffff, workers: 0xffffffff };
      const source = this.#source(remote, msg, run);
      let target: Uint8Array | undefined;
      if (run.target === TargetKind.inline) {
        target = payload!.subarray(at, at + sizes[k]);
        at += alignedBytes(sizes[k]);
      } else if (run.target === TargetKind.frame) {
        // A slot that is alone in its slab lends its values.
        if (this.writes === 'targets' && !this.#slots.isLone(run.firstSlot, run.slots)) target = new Uint8Array(new ArrayBuffer(sizes[k]));
      } else if (run.target === TargetKind.region) {
        if (run.targetOffset % dtypeInfo(this.#slots.dtype(run.firstSlot)).bytes !== 0) throw malformed('a target that is not aligned');
        const view = remote.view({ region: run.targetRegion, offset: run.targetOffset, bytes: sizes[k] });
        if (this.writes === 'targets') target = view;
      }
      return { run, state, source, target, frame: run.target === TargetKind.frame ? target : undefined, loan: undefined };
    });
    return { runs: served, payload };
  }

  /** The rows that a run asks for. */
  rowNumbers(msg: Msg, run: Run): Uint32Array {
    return decodeRows(msg.frames[run.sourceRegion], run).rows;
  }

  #checkSlots({ firstSlot, slots }: Run): void {
    const last = firstSlot + slots - 1;
    if (last >= this.#slots.count) throw malformed(`a run to slot ${last} of ${this.#slots.count}`);
    if (this.#slots.slab[firstSlot] !== this.#slots.slab[last]) throw malformed('a run over several slabs');
  }

  #bytesOf({ firstSlot, slots }: Run): number {
    return this.#slots.end[firstSlot + slots - 1] - this.#slots.start[firstSlot];
  }

  #rowBytes({ firstSlot }: Run): number {
    return rowBytesOf(this.#slots.parameterOf(firstSlot));
  }

  #targetBytes(run: Run): number {
    if (run.target === TargetKind.none) return 0;
    if (run.source === SourceKind.rows) throw malformed('a push of rows that wants values');
    return run.source === SourceKind.rowNumbers ? run.rows * this.#rowBytes(run) : this.#bytesOf(run);
  }

  #source(remote: RemoteValues, msg: Msg, run: Run): RunSource | undefined {
    const { source, sourceBytes, codec, sourceRegion, sourceOffset } = run;
    if (source === SourceKind.none) return undefined;
    const dtype = this.#slots.dtype(run.firstSlot);
    if (source === SourceKind.rows || source === SourceKind.rowNumbers) return this.#rows(msg, run);
    if (codec !== 0) return { bytes: this.#decoded(msg, run), rows: undefined };
    if (sourceBytes !== this.#bytesOf(run)) throw malformed(`a run of ${this.#bytesOf(run)} bytes comes with ${sourceBytes}`);
    if (source !== SourceKind.region) {
      return { bytes: this.#aligned(msg.frames[sourceRegion].subarray(sourceOffset, sourceOffset + sourceBytes)), rows: undefined };
    }
    if (sourceOffset % dtypeInfo(dtype).bytes !== 0) throw malformed('a source that is not aligned');
    return { bytes: remote.view({ region: sourceRegion, offset: sourceOffset, bytes: sourceBytes }), rows: undefined };
  }

  #aligned(bytes: Uint8Array): Uint8Array {
    return aligned(bytes, this.#slots.counters);
  }

  #decoded(msg: Msg, run: Run): Uint8Array {
    const codec = this.#codecOf(run.codec);
    if (codec === undefined) throw malformed(`a gradient in the unknown compression ${run.codec}`);
    if (this.#slots.dtype(run.firstSlot) !== 'float32') throw malformed('a compressed gradient for a parameter that is not float32');
    const values = new Float32Array(this.#bytesOf(run) / 4);
    if (run.sourceBytes !== codec.encodedBytes(values.length))
      throw malformed(`${values.length} compressed elements in ${run.sourceBytes} bytes`);
    codec.decode(values, msg.frames[run.sourceRegion].subarray(run.sourceOffset, run.sourceOffset + run.sourceBytes));
    return new Uint8Array(values.buffer);
  }

  #rows(msg: Msg, run: Run): RunSource | undefined {
    const rowBytes = this.#rowBytes(run);
    const { shape, dtype } = this.#slots.parameterOf(run.firstSlot);
    const count = rowsOf(shape, this.#bytesOf(run) / dtypeInfo(dtype).bytes);
    if (!Number.isInteger(count)) {
      throw new ShoalError('protocol', `rows of ${this.#slots.describe(run.firstSlot)} are cut: they are larger than a slice`);
    }
    const push = run.source === SourceKind.rows;
    const expected = rowNumbersBytes(run.rows) + (push ? run.rows * rowBytes : 0);
    if (run.sourceBytes !== expected) throw malformed(`${run.rows} rows in ${run.sourceBytes} bytes`);
    const frame = msg.frames[run.sourceRegion];
    const { rows, valuesOffset } = decodeRows(frame, run);
    for (let k = 0; k < rows.length; k++) {
      if (rows[k] >= count) throw malformed(`row ${rows[k]} of ${count}`);
      if (push && k > 0 && rows[k] <= rows[k - 1]) throw malformed('rows that do not ascend');
    }
    if (!push) return undefined;
    const values = frame.subarray(valuesOffset, valuesOffset + run.rows * rowBytes);
    return { bytes: this.#aligned(values), rows };
  }
}
