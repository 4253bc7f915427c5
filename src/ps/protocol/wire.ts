/** Encoding of messages between clients and servers. Every byte from outside is checked here or, if
 *  the check needs slots and memory, by the receiver's core. Messages travel as `Msg`; this comment describes their frames.
 *  Little-endian. `f64` are whole numbers below 2⁵³.
 *
 *  `target` of every message between client and server is (number of the request, epoch of the connection): answers repeat
 *  the request's. Frames of rare messages are JSON (wire-control.ts); those of transfers are tables of *runs*. A run is a
 *  stretch of neighbouring slots of one slab whose values are neighbours in memory, so that it is handled at once.
 *
 *    put, update, get     frame 0                                        frames 1…: values inline
 *      byte 0        4          8            12
 *          │batches │optimiser │short of credit │ runs, 56 bytes each …  what the sender knows: batches of parameters,
 *          │u32     │u32       │u32, 0 or 1     │                        and how often the optimiser has been set
 *                                                                        1: it wants to know at once when this is accepted
 *    run
 *      byte 0           4      8      12      13      14     15    16      20      24      32      40      48    52
 *          │first slot │slots │round │source │target │codec │nan  │from   │to     │from   │bytes  │to     │rows │zero │
 *          │u32        │u32   │u32   │u8     │u8     │u8    │u8   │region │region │offset │       │offset │u32  │u32  │
 *          │           │      │      │       │       │      │     │u32    │u32    │f64    │f64    │f64    │     │     │
 *
 *      source   0 none    1 in a region of the sender    2 in a frame of this message; `from region` is its index
 *               3 in a frame: `rows` row numbers (u32), zeros up to 8 bytes, then their values
 *               4 in a frame: `rows` row numbers, of rows that are asked for
 *      target   0 none    1 into a region of the sender  2 in the answer  3 in a frame of the answer that has nothing else, whose
 *               place at the sender `to region` is the key of, or which has none: 0 (messaging/backends/fabric/frame-places.ts)
 *      codec    0, or how the source is compressed (compression/registry.ts)
 *      nan      0, or 1: the whole value, of which this is a part, holds NaN or infinity
 *      round    of this client's pushes to these slots, from 1; of a get: what the answer must contain
 *
 *    updateResponse, getResponse                                          frame 1: values of the runs with target 2, in
 *      byte 0      1         2       4          8                                  order; or the error's text, UTF-8
 *                                                                         frames 2…: of each run with target 3
 *          │error │refuses │zero   │optimiser │ per run: version f64, settled round u32, workers u32 …
 *          │u8    │u8      │u16    │u32       │
 *      error    0, or 1 + index of the error's code
 *      refuses  1: the optimiser refuses gradients that hold NaN or infinity */
import { dataViewOf, isCount, Layout, textOf } from '../../base/bytes.ts';
import { errorCodes, ShoalError } from '../../base/errors.ts';
import { Msg } from '../../messaging/msg.ts';
import type { Address } from '../../messaging/address.ts';
import { MessageType } from './singa.ts';

/** Types of messages: SINGA's, and others from 1024 on. */
export const KVMessage = {
  ...MessageType,
  /** Client → server: who I am, in which epoch; the first message of a connection. */
  hello: 1025,
  /** The answer: which incarnation, and whether it remembers us. */
  welcome: 1026,
  /** Server → client: a request has been taken and is waiting. */
  accepted: 1027,
  /** Server → client: requests up to this number survive a crash of the server. */
  durable: 1028,
  /** Server → client: a control request has been done, or not. */
  done: 1029,
  /** Requests of a client, answered by `done` unless another answer is named. */
  announce: 1034,
  detach: 1035,
  declare: 1036,
  commit: 1037,
  /** Answered by `done` with the batches from the one asked for on, as soon as there is one. */
  lookup: 1038,
  setOptimizer: 1039,
  saveState: 1040,
  loadState: 1041,
  /** A question: for whose pushes does this request wait? */
  inquire: 1042,
  barrier: 1043,
  leave: 1044,
  /** Make a snapshot soon. */
  checkpoint: 1045,
  /** Before `loadState`: what a folder has; whether a save can be loaded. */
  listState: 1046,
  prepareState: 1047,
  /** The client does not wait for this request any more: it is answered now, and nothing is written for it afterwards. */
  recall: 1048,
  /** A client that has come later, where workers come and go, enters the rounds. */
  enter: 1049,
  /** First values, and barriers, between server groups. */
  follow: 1054,
  followed: 1055,
  barrierReached: 1056,
  barrierReleased: 1057,
  /** A master's notice of the slots that have changed. */
  syncNotice: 1058,
  /** From group 0: exchange everything, before it saves; what it has loaded. And the answers. */
  gather: 1059,
  gathered: 1060,
  assign: 1061,
  assigned: 1062,
  /** A primary's state and messages for its standby, and the answer. */
  state: 1064,
  forward: 1065,
  forwarded: 1066,
  /** From a primary to itself, and so to its standby: a client counts as lost. */
  lost: 1067,
} as const;

export const SourceKind = { none: 0, region: 1, inline: 2, rows: 3, rowNumbers: 4 } as const;
export const TargetKind = { none: 0, region: 1, inline: 2, frame: 3 } as const;

export interface Run {
  firstSlot: number;
  slots: number;
  round: number;
  source: number;
  target: number;
  codec: number;
  /** The region of a source, or the frame of one that is inline. */
  sourceRegion: number;
  sourceOffset: number;
  sourceBytes: number;
  targetRegion: number;
  targetOffset: number;
  rows: number;
  /** The whole value that was pushed, of which this may be a part, holds NaN or infinity. Known only of values of several
   *  parts, and only when a server has said that it refuses such. */
  nonFinite: boolean;
}

/** A server's notice about its optimiser. */
export interface OptimizerNotice {
  /** The number of times it has been set. */
  readonly version: number;
  /** Gradients that hold NaN or infinity are refused. */
  readonly refuses: boolean;
}

export interface Transfer {
  readonly batches: number;
  readonly optimizer: number;
  /** The sender has little credit left, and wants to hear at once that the request is accepted. */
  readonly shortOfCredit: boolean;
  readonly runs: readonly Run[];
}

const format = 'a message of the parameter server';
const transferHead = new Layout(format, { batches: 'u32', optimizer: 'u32', short: 'u32' });
const answerHead = new Layout(format, { error: 'u8', refuses: 'u8', zero: 'u16', optimizer: 'u32' });
const runLayout = new Layout(format, {
  firstSlot: 'u32',
  slots: 'u32',
  round: 'u32',
  source: 'u8',
  target: 'u8',
  codec: 'u8',
  nonFinite: 'u8',
  sourceRegion: 'u32',
  targetRegion: 'u32',
  sourceOffset: 'f64',
  sourceBytes: 'f64',
  targetOffset: 'f64',
  rows: 'u32',
  reserved: 'u32',
});
const at = runLayout.offsets;
const stateLayout = new Layout(format, { version: 'f53', settled: 'u32', workers: 'u32' });
const headerBytes = transferHead.bytes;
/** The first frame of an answer that is one run's values: before it are the states, and the values that share a frame. */
export const firstOwnFrame = 2;
const runBytes = runLayout.bytes;
/** Most runs of one message: a stretch of 10,000 keys in any order has 10,000 runs at most. */
export const runsMax: number = 2 ** 20;

export function encodeRuns({ batches, optimizer, shortOfCredit, runs }: Transfer): Uint8Array {
  const bytes = Buffer.alloc(headerBytes + runs.length * runBytes);
  const view = dataViewOf(bytes);
  transferHead.write(view, 0, { batches, optimizer, short: shortOfCredit ? 1 : 0 });
  let start = headerBytes;
  for (const run of runs) {
    view.setUint32(start, run.firstSlot, true);
    view.setUint32(start + at.slots, run.slots, true);
    view.setUint32(start + at.round, run.round, true);
    view.setUint8(start + at.source, run.source);
    view.setUint8(start + at.target, run.target);
    view.setUint8(start + at.codec, run.codec);
    view.setUint8(start + at.nonFinite, run.nonFinite ? 1 : 0);
    view.setUint32(start + at.sourceRegion, run.sourceRegion, true);
    view.setUint32(start + at.targetRegion, run.targetRegion, true);
    view.setFloat64(start + at.sourceOffset, run.sourceOffset, true);
    view.setFloat64(start + at.sourceBytes, run.sourceBytes, true);
    view.setFloat64(start + at.targetOffset, run.targetOffset, true);
    view.setUint32(start + at.rows, run.rows, true);
    start += runBytes;
  }
  return bytes;
}

/** Sources inline are within their frames. Slots, regions and sizes are the receiver's to check.
 *  @throws ShoalError `protocol`. */
export function decodeRuns(frames: readonly Uint8Array[]): Transfer {
  const bytes = frames[0];
  if (bytes === undefined || bytes.byteLength < headerBytes) throw malformed('it has no table of runs');
  const count = (bytes.byteLength - headerBytes) / runBytes;
  if (!Number.isInteger(count) || count === 0 || count > runsMax) throw malformed(`its table of runs has ${bytes.byteLength} bytes`);
  const view = dataViewOf(bytes);
  const runs: Run[] = [];
  for (let start = headerBytes; start < bytes.byteLength; start += runBytes) {
    const nonFinite = view.getUint8(start + at.nonFinite);
    if (nonFinite > 1 || view.getUint32(start + at.reserved, true) !== 0) throw malformed('a field that must be zero is not');
    const run: Run = {
      firstSlot: view.getUint32(start, true),
      slots: view.getUint32(start + at.slots, true),
      round: view.getUint32(start + at.round, true),
      source: view.getUint8(start + at.source),
      target: view.getUint8(start + at.target),
      codec: view.getUint8(start + at.codec),
      sourceRegion: view.getUint32(start + at.sourceRegion, true),
      targetRegion: view.getUint32(start + at.targetRegion, true),
      sourceOffset: view.getFloat64(start + at.sourceOffset, true),
      sourceBytes: view.getFloat64(start + at.sourceBytes, true),
      targetOffset: view.getFloat64(start + at.targetOffset, true),
      rows: view.getUint32(start + at.rows, true),
      nonFinite: nonFinite === 1,
    };
    checkRun(run, frames);
    runs.push(run);
  }
  const { batches, optimizer, short } = transferHead.read(view, 0);
  if (short > 1) throw malformed('a flag that is neither 0 nor 1');
  return { batches, optimizer, shortOfCredit: short === 1, runs };
}

function checkRun(run: Run, frames: readonly Uint8Array[]): void {
  const { source, target, slots, rows, sourceBytes } = run;
  if (slots === 0 || run.firstSlot + slots > 0xffffffff) throw malformed(`a run of ${slots} slots from ${run.firstSlot}`);
  if (source > SourceKind.rowNumbers || target > TargetKind.frame) throw malformed(`a run with source ${source} and target ${target}`);
  if (!isCount(run.sourceOffset) || !isCount(sourceBytes) || !isCount(run.targetOffset)) throw malformed('an offset is no whole number');
  const sparse = source === SourceKind.rows || source === SourceKind.rowNumbers;
  if (sparse && (slots !== 1 || run.codec !== 0 || sourceBytes < rows * 4))
    throw malformed(`rows of ${slots} slots in ${sourceBytes} bytes`);
  if (!sparse && rows !== 0) throw malformed('a run with rows that has none');
  if (source === SourceKind.none && sourceBytes !== 0) throw malformed('a run with bytes from nowhere');
  if (sparse && target === TargetKind.frame) throw malformed('rows in a frame of their own');
  if (run.codec !== 0 && (slots !== 1 || source !== SourceKind.inline)) throw malformed('a compressed run that is not one slot inline');
  if (source >= SourceKind.inline) {
    const frame = run.sourceRegion === 0 ? undefined : frames[run.sourceRegion];
    if (frame === undefined || run.sourceOffset + sourceBytes > frame.byteLength) throw malformed('a source outside the message');
  }
}

/** The state of a run in an answer. */
export interface RunState {
  /** The least of its slots. */
  version: number;
  settled: number;
  /** Workers whose pushes are the latest round. */
  workers: number;
}

export function encodeResponse({ version, refuses }: OptimizerNotice, states: readonly RunState[]): Uint8Array {
  const bytes = Buffer.alloc(answerHead.bytes + states.length * stateLayout.bytes);
  const view = dataViewOf(bytes);
  answerHead.write(view, 0, { error: 0, refuses: refuses ? 1 : 0, optimizer: version });
  states.forEach((state, k) => stateLayout.write(view, answerHead.bytes + k * stateLayout.bytes, state));
  return bytes;
}

/** Frames of an answer that is an error. */
export function encodeFailure(error: ShoalError): Uint8Array[] {
  const code = 1 + Math.max(0, errorCodes.indexOf(error.code));
  return [answerHead.encode({ error: code, refuses: 0, optimizer: 0 }), Buffer.from(error.message, 'utf8')];
}

/** The error that an answer is, or the notice in it. @throws ShoalError `protocol`. */
export function decodeAnswer([head = new Uint8Array(0), text]: readonly Uint8Array[]): ShoalError | OptimizerNotice {
  const { error, optimizer, refuses } = answerHead.decode(head);
  if (error === 0) return { version: optimizer, refuses: refuses === 1 };
  const code = errorCodes[error - 1];
  if (code === undefined || text === undefined) throw malformed(`an answer with the unknown error ${error}`);
  return new ShoalError(code, textOf(text));
}

/** The states in an answer to `count` runs. @throws ShoalError `protocol`. */
export function decodeResponse(frames: readonly Uint8Array[], count: number): RunState[] {
  const head = frames[0];
  if (head?.byteLength !== answerHead.bytes + count * stateLayout.bytes) throw malformed(`an answer that is not about ${count} runs`);
  const view = dataViewOf(head);
  return Array.from({ length: count }, (_, k) => stateLayout.read(view, answerHead.bytes + k * stateLayout.bytes));
}

/** Rows of a source of kind `rows` or `rowNumbers`: numbers, and where the values begin. */
export function decodeRows(frame: Uint8Array, run: Run): { rows: Uint32Array; valuesOffset: number } {
  const rows = new Uint32Array(run.rows);
  new Uint8Array(rows.buffer).set(frame.subarray(run.sourceOffset, run.sourceOffset + 4 * run.rows));
  return { rows, valuesOffset: run.sourceOffset + rowNumbersBytes(run.rows) };
}

/** Values of runs in an answer each begin aligned for every dtype. */
export function alignedBytes(bytes: number): number {
  return Math.ceil(bytes / 8) * 8;
}

/** Bytes that so many row numbers take, padded. */
export function rowNumbersBytes(rows: number): number {
  return Math.ceil(rows / 2) * 8;
}

export interface Envelope {
  readonly source: Address;
  readonly destination: Address;
  readonly type: number;
  /** Number of the request. */
  readonly request: number;
  /** The number of the connection between client and server; else 0. */
  readonly epoch: number;
}

export function makeMessage({ source, destination, type, request, epoch }: Envelope, frames: readonly Uint8Array[]): Msg {
  const msg = new Msg(source, destination);
  msg.type = type;
  msg.setTarget(request, epoch);
  for (const frame of frames) msg.addFrame(frame);
  return msg;
}

export function malformed(what: string): ShoalError {
  return new ShoalError('protocol', `a message cannot be understood: ${what}; run the same Shoal everywhere`);
}
