/** The contract: 28 bytes that every rank publishes for every collective, compared byte for byte before any result is
 *  returned. Ranks that called different things find out here.
 *
 *    0        4      5    6       7   8       16     20       28
 *    ┌────────┬──────┬────┬───────┬───┬───────┬──────┬────────┐
 *    │ number │ kind │ op │ dtype │ 0 │ count │ root │ detail │   little endian
 *    └────────┴──────┴────┴───────┴───┴───────┴──────┴────────┘
 *  number: of the call, from 1, modulo 2³².   detail: 64 bits of a digest of what else must agree (counts and splits by rank, the name of
 *  the operation, with strict contracts the call site); 0: nothing else. All other fields hold their values as they are. */
import { createHash } from 'node:crypto';
import { dataViewOf, Layout, setWhole } from '../base/bytes.ts';
import { listed } from '../base/collections/lists.ts';
import { serialOf } from '../base/serial.ts';
import { dtypeInfo, dtypes, type DType } from '../memory/dtype.ts';
import { reduceOpCode, reduceOps, type ReduceOp } from '../memory/reduce-op.ts';
import { collectives, type Collective } from '../plan/ir.ts';

/** Number of a collective on the wire and in the addon. */
export function collectiveCode(kind: Collective): number {
  return collectives.indexOf(kind);
}

/** Elements that a rank sends to each rank, and receives from each. */
export interface SplitParts {
  readonly sends: readonly number[];
  readonly receives: readonly number[];
}

/** The place of the caller in its group. */
export interface Place {
  readonly rank: number;
  readonly size: number;
}

/** A call of one rank; plain data, as it crosses to the comm thread. */
export interface CollectiveCall {
  readonly kind: Collective;
  readonly dtype: DType;
  /** Elements, as in the plan request. */
  readonly count: number;
  readonly op?: ReduceOp;
  readonly factor?: number;
  readonly root?: number;
  readonly counts?: readonly number[];
  readonly splits?: readonly (readonly number[])[];
  /** The splits of an all-to-all as this rank calls it: its part of the table, which no other rank knows yet. */
  readonly parts?: SplitParts;
  readonly name?: string;
  /** `file:line` of the caller, for messages; hashed into the contract when it is strict. */
  readonly site?: string;
}

/** Equal for calls that one plan serves. */
export function planKey({ kind, dtype, op, count, root, counts, splits }: CollectiveCall): string {
  const key = `${kind} ${dtype} ${op ?? ''} ${count} ${root ?? ''}`;
  return counts || splits ? key + JSON.stringify([counts, splits]) : key;
}

/** Equal for calls that agree in all but where they were made. */
export function callKey(call: CollectiveCall): string {
  return call.name === undefined ? planKey(call) : `${planKey(call)} ${JSON.stringify(call.name)}`;
}

const noRoot = 0xffffffff;
const noOp = 0xff;
const twoTo32 = 2 ** 32;
const detailBytes = 8;
const noDetail = new Uint8Array(detailBytes);
/** Any bytes can be read: they may be another rank's. */
const layout = new Layout('a contract', {
  number: 'u32',
  kind: 'u8',
  op: 'u8',
  dtype: 'u8',
  reserved: 'u8',
  countLow: 'u32',
  countHigh: 'u32',
  root: 'u32',
  detail: detailBytes,
});
const { kind: kindAt, op: opAt, dtype: dtypeAt, reserved: reservedAt, countLow: countAt, root: rootAt, detail: detailAt } = layout.offsets;

export function encodeContract(call: CollectiveCall, sequence: number, target: Uint8Array, options: { strict: boolean }): void {
  const view = dataViewOf(target);
  view.setUint32(0, serialOf(sequence + 1), true);
  view.setUint8(kindAt, collectiveCode(call.kind));
  view.setUint8(opAt, call.op === undefined ? noOp : reduceOpCode(call.op));
  view.setUint8(dtypeAt, dtypeInfo(call.dtype).code);
  view.setUint8(reservedAt, 0);
  setWhole(view, countAt, call.count);
  view.setUint32(rootAt, call.root ?? noRoot, true);
  target.set(detailOf(call, options), detailAt);
}

/** Zeros where there is nothing more to compare, as in most calls: a digest takes microseconds. */
function detailOf({ counts, splits, name, site }: CollectiveCall, { strict }: { readonly strict: boolean }): Uint8Array {
  if (counts === undefined && splits === undefined && name === undefined && !strict) return noDetail;
  const text = JSON.stringify([counts ?? null, splits ?? null, name ?? null, strict ? (site ?? null) : null]);
  return createHash('sha256').update(text).digest().subarray(0, detailBytes);
}

/** True when both hold the same bytes. */
export function sameContract(a: Uint8Array, b: Uint8Array): boolean {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** `all-reduce #17 float32[1024] sum 'ddp/bucket-0'`: a call as its caller sees it, in a line of bounded length. */
export function describeCall(call: CollectiveCall, sequence: number): string {
  const parts = [`${call.kind} #${sequence}`];
  if (call.kind !== 'barrier') parts.push(`${call.dtype}[${call.count}]`);
  if (call.op !== undefined) parts.push(call.op);
  if (call.root !== undefined) parts.push(`root ${call.root}`);
  if (call.counts !== undefined) parts.push(`counts [${listed(call.counts, listedMax)}]`);
  if (call.parts !== undefined)
    parts.push(`sends [${listed(call.parts.sends, listedMax)}] receives [${listed(call.parts.receives, listedMax)}]`);
  if (call.name !== undefined) parts.push(`'${shortened(call.name)}'`);
  if (call.site !== undefined) parts.push(`at ${call.site}`);
  return parts.join(' ');
}

const listedMax = 32;
const nameMax = 128;

function shortened(name: string): string {
  return name.length > nameMax ? `${name.slice(0, nameMax)}…` : name;
}

/** The same as `describeCall`, from another rank's contract alone. */
export function describeContract(contract: Uint8Array): string {
  const { kind, dtype, count, op, root, sequence } = decodeContract(contract);
  const parts = [`${kind ?? 'unknown operation'} #${sequence}`];
  if (kind !== 'barrier') parts.push(`${dtype ?? 'unknown dtype'}[${count}]`);
  if (op !== undefined) parts.push(op);
  if (root !== undefined) parts.push(`root ${root}`);
  return parts.join(' ');
}

/** The call as far as its contract says it. Undefined: it has none, or a code that is not known here. */
export function decodeContract(contract: Uint8Array): Partial<CollectiveCall> & { readonly sequence: number; readonly count: number } {
  const { number, kind, op, dtype, countLow, countHigh, root } = layout.decode(contract);
  return {
    sequence: serialOf(number - 1),
    kind: collectives.at(kind),
    dtype: dtypes[dtype]?.name,
    count: countLow + countHigh * twoTo32,
    ...(op === noOp ? {} : { op: reduceOps[op] }),
    ...(root === noRoot ? {} : { root }),
  };
}
