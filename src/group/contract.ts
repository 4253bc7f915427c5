/** The contract: 16 bytes that every rank publishes for every collective, compared byte for byte before any result is
 *  returned. Ranks that called different things find out here.
 *
 *    0        4      5    6       7      8           12         14        16
 *    ┌────────┬──────┬────┬───────┬──────┬───────────┬──────────┬─────────┐
 *    │sequence│ kind │ op │ dtype │ 0    │ count low │ root     │ detail  │   little endian
 *    └────────┴──────┴────┴───────┴──────┴───────────┴──────────┴─────────┘
 *  detail: 16-bit hash of what else must agree (per-rank counts, the operation's name, count's high half, strict call site). */
import { dataViewOf } from '../base/bytes.ts';
import { dtypeInfo, dtypes, type DType } from '../memory/dtype.ts';
import { reduceOpCode, reduceOps, type ReduceOp } from '../memory/reduce-op.ts';
import type { Collective } from '../plan/ir.ts';

/** By code: append only. */
const kinds: readonly Collective[] = [
  'all-reduce',
  'broadcast',
  'reduce',
  'all-gather',
  'gather',
  'scatter',
  'reduce-scatter',
  'all-to-all',
  'barrier',
];

/** Number of a collective on the wire and in the addon. */
export function collectiveCode(kind: Collective): number {
  return kinds.indexOf(kind);
}

/** What one rank asked for; plain data, as it crosses to the comm thread. */
export interface CollectiveCall {
  readonly kind: Collective;
  readonly dtype: DType;
  /** Elements, as in the plan request; for all-to-all this rank's own total is not comparable and 0 is used. */
  readonly count: number;
  readonly op?: ReduceOp;
  readonly factor?: number;
  readonly root?: number;
  readonly counts?: readonly number[];
  readonly splits?: readonly (readonly number[])[];
  readonly name?: string;
  /** `file:line` of the caller, for messages; hashed into the contract when it is strict. */
  readonly site?: string;
}

export function encodeContract(call: CollectiveCall, sequence: number, target: Uint8Array, options: { strict: boolean }): void {
  const view = dataViewOf(target);
  const count = call.kind === 'all-to-all' ? 0 : call.count;
  view.setUint32(0, sequence >>> 0, true);
  view.setUint8(4, collectiveCode(call.kind));
  view.setUint8(5, call.op === undefined ? 0xff : reduceOpCode(call.op));
  view.setUint8(6, dtypeInfo(call.dtype).code);
  view.setUint8(7, 0);
  view.setUint32(8, count % 2 ** 32, true);
  view.setUint16(12, call.root ?? 0xffff, true);
  view.setUint16(14, detailHash(call, count, options.strict), true);
}

/** FNV-1a over what else must agree, folded to 16 bits. */
function detailHash(call: CollectiveCall, count: number, strict: boolean): number {
  const high = Math.floor(count / 2 ** 32);
  if (call.counts === undefined && call.splits === undefined && call.name === undefined && high === 0 && !strict) return 0;
  const text = JSON.stringify([call.counts ?? 0, call.splits ?? 0, call.name ?? 0, high, strict ? (call.site ?? 0) : 0]);
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return ((hash >>> 16) ^ hash) & 0xffff;
}

/** True when both hold the same bytes. */
export function sameContract(a: Uint8Array, b: Uint8Array): boolean {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** `all-reduce #17 float32[1024] sum 'ddp/bucket-0'`: a call as its caller sees it. */
export function describeCall(call: CollectiveCall, sequence: number): string {
  const parts = [`${call.kind} #${sequence}`];
  if (call.kind !== 'barrier') parts.push(`${call.dtype}[${call.count}]`);
  if (call.op !== undefined) parts.push(call.op);
  if (call.root !== undefined) parts.push(`root ${call.root}`);
  if (call.counts !== undefined) parts.push(`counts [${call.counts.join(', ')}]`);
  if (call.name !== undefined) parts.push(`'${call.name}'`);
  if (call.site !== undefined) parts.push(`at ${call.site}`);
  return parts.join(' ');
}

/** As `describeCall`, from another rank's contract alone. */
export function describeContract(contract: Uint8Array): string {
  const { kind, dtype, count, op, root, sequence } = decodeContract(contract);
  const parts = [`${kind ?? 'unknown operation'} #${sequence}`];
  if (kind !== 'barrier') parts.push(`${dtype ?? 'unknown dtype'}[${count}]`);
  if (op !== undefined) parts.push(op);
  if (root !== undefined) parts.push(`root ${root}`);
  return parts.join(' ');
}

/** What a contract says of the call. Undefined: it has none, or a code that is not known here. */
export function decodeContract(contract: Uint8Array): Partial<CollectiveCall> & { readonly sequence: number; readonly count: number } {
  const view = dataViewOf(contract);
  const [op, root] = [view.getUint8(5), view.getUint16(12, true)];
  return {
    sequence: view.getUint32(0, true),
    kind: kinds[view.getUint8(4)],
    dtype: dtypes[view.getUint8(6)]?.name,
    count: view.getUint32(8, true),
    ...(op === 0xff ? {} : { op: reduceOps[op] }),
    ...(root === 0xffff ? {} : { root }),
  };
}
