/** Several calls as one work. Small collectives that differ only in their data are packed: one collective on one buffer.
 *
 *      all-reduce a, b, c    a │ b │ c          one part: a packed buffer is the others' end to end
 *      all-gather  in, out   in0 │ in1          a part per rank: each rank's inputs lie together, and outputs are dealt out again
 *                            in0 in1 (rank 0) │ in0 in1 (rank 1) │ …
 *
 *  Canonical sums are associated in the same way wherever an element lies, so packing changes no bit of them. What is packed, and in which
 *  order calls are made, follows from the calls alone, which are the same on all ranks; the name of a packed call has their counts, which
 *  are compared with it. It must not know which way calls take. */
import { createHash } from 'node:crypto';
import { ShoalError } from '../../base/errors.ts';
import { anyList, checkArgument, describeValue, isPlainObject } from '../../base/schema.ts';
import { sum } from '../../base/numbers.ts';
import { groupBy, pushTo } from '../../base/collections/lists.ts';
import { JoinedWork } from '../../comm/caller/joined-work.ts';
import type { SettlingWork } from '../../comm/caller/work.ts';
import type { DType } from '../../memory/dtype.ts';
import type { Tensor } from '../../memory/tensor.ts';
import { bytesOf, onHost, operand, type BufferUse } from '../caller/call-buffers.ts';
import { packOf } from '../../call/route.ts';
import type { CheckedCall, CheckedMessage } from '../caller/call-dispatch.ts';
import type { CallChecks } from '../caller/call-checks.ts';
import type { BatchCall, CallOptions, TensorLike } from '../caller/types.ts';

const callsMax = 4096;

type Checked = CheckedCall | CheckedMessage;

/** Arguments of each call, beside its options. */
const methods: { readonly [Call in BatchCall['call']]: readonly string[] } = {
  send: ['data', 'peer'],
  recv: ['data', 'peer'],
  allReduce: ['data'],
  broadcast: ['data'],
  reduce: ['data'],
  allGather: ['output', 'input'],
  reduceScatter: ['output', 'input'],
};

/** Checks all of them. @throws ShoalError `usage`, `unsupported`: nothing has begun. */
export function checkBatch(calls: readonly BatchCall[], checks: CallChecks, { timeoutMs, name }: CallOptions): Checked[] {
  const options = { ...(timeoutMs === undefined ? {} : { timeoutMs }), ...(name === undefined ? {} : { name }) };
  checkArgument('batch: calls', calls, anyList);
  if (calls.length > callsMax) throw new ShoalError('usage', `batch takes ${callsMax} calls at most, not ${calls.length}`);
  // Holes are calls that are not there.
  const checked = Array.from(calls, (call, index) => {
    try {
      return checkOne(call, checks, options);
    } catch (thrown) {
      const { code, message } = ShoalError.from(thrown, 'usage');
      throw new ShoalError(code, `batch: call ${index}: ${message}`);
    }
  });
  checkApart(checked);
  return checked;
}

function checkOne(given: BatchCall, checks: CallChecks, batch: CallOptions): Checked {
  if (!isPlainObject(given)) throw new ShoalError('usage', `an object with call and its arguments is needed, not ${describeValue(given)}`);
  const { call: method, ...fields } = given;
  if (typeof method !== 'string' || !Object.hasOwn(methods, method)) {
    throw new ShoalError('usage', `call must be one of ${Object.keys(methods).join(', ')}, not ${describeValue(method)}`);
  }
  for (const own of ['timeoutMs', 'name', 'signal'])
    if (own in fields) throw new ShoalError('usage', `${own} is an option of the whole batch`);
  const { data, output, input, peer, ...rest } = fields as Record<string, unknown>;
  const known: Record<string, unknown> = { data, output, input, peer };
  const foreign = Object.keys(known).find((name) => known[name] !== undefined && !methods[method].includes(name));
  if (foreign !== undefined) throw new ShoalError('usage', `${method} has no argument '${foreign}'`);
  const options = { ...rest, ...batch };
  const [of, to, from] = [data, output, input] as TensorLike[];
  switch (given.call) {
    case 'send':
    case 'recv':
      return checks.message(given.call, of, peer as number, options);
    case 'allReduce':
    case 'broadcast':
    case 'reduce':
      return checks[given.call](of, options);
    case 'allGather':
    case 'reduceScatter':
      return checks[given.call](to, from, options);
  }
}

/** All run at once. @throws ShoalError `usage` when one writes what another, or the same, uses as well. */
function checkApart(checked: readonly Checked[]): void {
  const byBuffer = new Map<ArrayBufferLike, Span[]>();
  checked.forEach((each, call) => {
    for (const { operand: used, writes } of usesOf(each)) {
      const { buffer, byteOffset, byteLength } = bytesOf(onHost(used.value));
      if (byteLength > 0) pushTo(byBuffer, buffer, { call, writes, from: byteOffset, to: byteOffset + byteLength });
    }
  });
  for (const spans of byBuffer.values()) checkSpans(spans.sort((a, b) => a.from - b.from));
}

interface Span {
  readonly call: number;
  readonly writes: boolean;
  readonly from: number;
  readonly to: number;
}

/** @param spans of one buffer, by where they begin. */
function checkSpans(spans: readonly Span[]): void {
  let furthest: Span | undefined;
  let furthestWritten: Span | undefined;
  for (const span of spans) {
    const other = span.writes ? furthest : furthestWritten;
    if (other && span.from < other.to) {
      const both = [...new Set([other.call, span.call])].sort((a, b) => a - b).join(' and ');
      throw new ShoalError('usage', `batch: what is written lies over what else is used (call ${both}); all of them run at once`);
    }
    if (span.to > (furthest?.to ?? 0)) furthest = span;
    if (span.writes && span.to > (furthestWritten?.to ?? 0)) furthestWritten = span;
  }
}

function usesOf(each: Checked): readonly BufferUse[] {
  return isMessage(each) ? [each.use] : each.uses;
}

function isMessage(each: Checked): each is CheckedMessage {
  return 'direction' in each;
}

/** The group as its batch sees it. */
export interface BatchGroup {
  readonly size: number;
  tensor(dtype: DType, shape: readonly number[]): Tensor;
  release(tensor: Tensor): void;
  startCollective(call: CheckedCall): SettlingWork;
  startMessage(message: CheckedMessage): SettlingWork;
  now(): number;
}

/** Starts them: collectives first, so that their order does not depend on messages. */
export function startBatch(group: BatchGroup, checked: readonly Checked[]): JoinedWork {
  const packed: Packed[] = [];
  const collectives: CheckedCall[] = [];
  // Packing, which may lack memory, comes before the first of them begins.
  for (const calls of alike(checked.filter((each): each is CheckedCall => !isMessage(each)))) {
    if (calls.length > 1) packed.push(new Packed(group, calls));
    collectives.push(calls.length > 1 ? packed[packed.length - 1].call : calls[0]);
  }
  const works = collectives.map((call) => group.startCollective(call));
  for (const each of checked) if (isMessage(each)) works.push(group.startMessage(each));
  return new JoinedWork(
    works,
    () => group.now(),
    (error) => {
      for (const pack of packed) pack.end(error === undefined);
      return undefined;
    },
  );
}

/** Groups of calls that one collective can carry, in the order of the first call of each. */
function alike(calls: readonly CheckedCall[]): CheckedCall[][] {
  return [...groupBy(calls, (each) => packOf(each.call) ?? each).values()];
}

/** One collective for several. */
class Packed {
  readonly call: CheckedCall;
  readonly #group: BatchGroup;
  readonly #calls: readonly CheckedCall[];
  readonly #tensors: ReadonlyMap<BufferUse['name'], Tensor>;

  constructor(group: BatchGroup, calls: readonly CheckedCall[]) {
    this.#group = group;
    this.#calls = calls;
    const [{ call, uses, options, timeoutMs }] = calls;
    const tensors = new Map<BufferUse['name'], Tensor>();
    this.#tensors = tensors;
    for (const { name } of uses) tensors.set(name, group.tensor(call.dtype, [sum(calls.map((each) => useOf(each, name).operand.count))]));
    for (const use of uses) if (use.reads) this.#copy(use.name, 'in');
    this.call = {
      call: {
        ...call,
        count: sum(calls.map((each) => each.call.count)),
        name: packedName(
          call.name,
          calls.map((each) => each.call.count),
        ),
      },
      uses: uses.map(({ name, reads, writes }) => ({ name, reads, writes, operand: operand(tensors.get(name) as Tensor, name) })),
      options,
      timeoutMs,
    };
  }

  /** @param succeeded results go where they belong. */
  end(succeeded: boolean): void {
    if (succeeded) for (const use of this.#calls[0].uses) if (use.writes) this.#copy(use.name, 'out');
    for (const tensor of this.#tensors.values()) if (!tensor.released) this.#group.release(tensor);
  }

  #copy(name: BufferUse['name'], direction: 'in' | 'out'): void {
    const whole = bytesOf(this.#tensors.get(name) as Tensor);
    // A buffer that has a part for each rank is packed rank by rank.
    const parts = this.#hasPartPerRank(name) ? this.#group.size : 1;
    const members = this.#calls.map((each) => bytesOf(onHost(useOf(each, name).operand.value)));
    let at = 0;
    for (let part = 0; part < parts; part++) {
      for (const member of members) {
        const bytes = member.length / parts;
        const own = member.subarray(part * bytes, (part + 1) * bytes);
        const there = whole.subarray(at, at + bytes);
        if (direction === 'in') there.set(own);
        else own.set(there);
        at += bytes;
      }
    }
  }

  #hasPartPerRank(name: BufferUse['name']): boolean {
    const { kind } = this.#calls[0].call;
    return (kind === 'all-gather' && name === 'output') || (kind === 'reduce-scatter' && name === 'input');
  }
}

/** Takes part in the contract: totals alone may agree where parts do not. */
function packedName(name: string | undefined, counts: readonly number[]): string {
  const listed = counts.join(',');
  const digest = createHash('sha256').update(listed).digest('hex').slice(0, 16);
  return `${name === undefined ? '' : `${name} `}batch of ${counts.length}: ${listed.length <= 64 ? listed : `${listed.slice(0, 48)}… ${digest}`}`;
}

function useOf({ uses }: CheckedCall, name: BufferUse['name']): BufferUse {
  const found = uses.find((use) => use.name === name);
  if (!found) throw new ShoalError('usage', `a call of the batch has no ${name}`);
  return found;
}
