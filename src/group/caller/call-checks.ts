/** Checks a call's arguments and describes the call. Nothing is started here, so that several calls can be checked before the first
 *  of them begins. All throw `usage` or `unsupported`. */
import { ShoalError } from '../../base/errors.ts';
import { checkOptions } from '../../base/schema.ts';
import type { DType } from '../../memory/dtype.ts';
import type { CollectiveCall, Place } from '../../call/contract.ts';
import {
  allToAllOptions,
  callOptions,
  countsOfRootOptions,
  countsOptions,
  peerOptions,
  reduceOptions,
  reduceScatterOptions,
  reduceToRootOptions,
  rootOptions,
} from './call-options.ts';
import {
  anySource,
  type AllToAllOptions,
  type CallOptions,
  type CollectiveData,
  type CountsOptions,
  type PeerOptions,
  type ReduceOptions,
  type RootOptions,
  type TensorLike,
} from './types.ts';
import {
  checkCounts,
  checkRootOnly,
  checkSameCount,
  checkSameDtype,
  checkTag,
  checkTimeout,
  even,
  keptCounts,
  reductionOf,
  rootOf,
  splitsOf,
} from './call-arguments.ts';
import { operand, type BufferUse, type Operand } from './call-buffers.ts';
import type { CheckedCall, CheckedMessage } from './call-dispatch.ts';

export class CallChecks {
  readonly #place: Place;
  readonly #timeoutMs: number;

  /** @param timeoutMs of calls that give none. */
  constructor(place: Place, timeoutMs: number) {
    this.#place = place;
    this.#timeoutMs = timeoutMs;
  }

  allReduce(data: CollectiveData, options: ReduceOptions): CheckedCall {
    checkOptions('allReduce', options, reduceOptions);
    const target = operand(data, 'the data of allReduce');
    return this.#collective('all-reduce', target, target.count, options, reductionOf(target, options), [
      { name: 'data', operand: target, reads: true, writes: true },
    ]);
  }

  broadcast(data: CollectiveData, options: RootOptions): CheckedCall {
    checkOptions('broadcast', options, rootOptions);
    const target = operand(data, 'the data of broadcast');
    const { rank, size } = this.#place;
    const root = rootOf(options, size);
    return this.#collective('broadcast', target, target.count, options, { root }, [
      { name: 'data', operand: target, reads: root === rank, writes: root !== rank },
    ]);
  }

  reduce(data: CollectiveData, options: ReduceOptions & RootOptions): CheckedCall {
    checkOptions('reduce', options, reduceToRootOptions);
    const target = operand(data, 'the data of reduce');
    const { rank, size } = this.#place;
    const root = rootOf(options, size);
    return this.#collective('reduce', target, target.count, options, { root, ...reductionOf(target, options) }, [
      { name: 'data', operand: target, reads: true, writes: root === rank },
    ]);
  }

  allGather(output: CollectiveData, input: CollectiveData, options: CountsOptions): CheckedCall {
    checkOptions('allGather', options, countsOptions);
    const { source, target, counts } = this.#gathering('allGather', output, input, options);
    return this.#collective('all-gather', target, target.count, options, { counts }, [
      { name: 'input', operand: source, reads: true, writes: false },
      { name: 'output', operand: target, reads: false, writes: true },
    ]);
  }

  gather(output: CollectiveData | null, input: CollectiveData, options: CountsOptions & RootOptions): CheckedCall {
    checkOptions('gather', options, countsOfRootOptions);
    const { rank, size } = this.#place;
    const root = rootOf(options, size);
    checkRootOnly('the output of gather', output, root, rank);
    const source = operand(input, 'the input of gather');
    const counts = options.counts ?? even(source.count, size);
    const total = checkCounts(this.#place, 'gather', counts, source, output === null ? undefined : operand(output, 'the output of gather'));
    const buffers: BufferUse[] = [{ name: 'input', operand: source, reads: true, writes: false }];
    if (output !== null) buffers.push({ name: 'output', operand: operand(output, 'the output of gather'), reads: false, writes: true });
    return this.#collective('gather', source, total, options, { root, counts: keptCounts(options) }, buffers);
  }

  scatter(output: CollectiveData, input: CollectiveData | null, options: CountsOptions & RootOptions): CheckedCall {
    checkOptions('scatter', options, countsOfRootOptions);
    const { rank, size } = this.#place;
    const root = rootOf(options, size);
    checkRootOnly('the input of scatter', input, root, rank);
    const target = operand(output, 'the output of scatter');
    const counts = options.counts ?? even(target.count, size);
    const total = checkCounts(this.#place, 'scatter', counts, target, input === null ? undefined : operand(input, 'the input of scatter'));
    const buffers: BufferUse[] = [{ name: 'output', operand: target, reads: false, writes: true }];
    if (input !== null) buffers.push({ name: 'input', operand: operand(input, 'the input of scatter'), reads: true, writes: false });
    return this.#collective('scatter', target, total, options, { root, counts: keptCounts(options) }, buffers);
  }

  reduceScatter(output: CollectiveData, input: CollectiveData, options: ReduceOptions & CountsOptions): CheckedCall {
    checkOptions('reduceScatter', options, reduceScatterOptions);
    const { source, target, counts } = this.#gathering('reduceScatter', input, output, options);
    return this.#collective('reduce-scatter', source, target.count, options, { counts, ...reductionOf(source, options) }, [
      { name: 'input', operand: target, reads: true, writes: false },
      { name: 'output', operand: source, reads: false, writes: true },
    ]);
  }

  allToAll(output: CollectiveData, input: CollectiveData, options: AllToAllOptions): CheckedCall {
    checkOptions('allToAll', options, allToAllOptions);
    const source = operand(input, 'the input of allToAll');
    const target = operand(output, 'the output of allToAll');
    checkSameDtype('allToAll', source, target);
    const { size } = this.#place;
    const inputSplits = splitsOf('inputSplits', options.inputSplits, source, size);
    const outputSplits = splitsOf('outputSplits', options.outputSplits, target, size);
    const buffers: BufferUse[] = [
      { name: 'input', operand: source, reads: true, writes: false },
      { name: 'output', operand: target, reads: false, writes: true },
    ];
    if (options.inputSplits === undefined && options.outputSplits === undefined) {
      checkSameCount('allToAll', source, target);
      return this.#collective('all-to-all', source, source.count * size, options, {}, buffers);
    }
    const parts = { sends: inputSplits, receives: outputSplits };
    return this.#collective('all-to-all', source, source.count, options, { parts }, buffers);
  }

  barrier(operation: 'barrier' | 'monitoredBarrier', options: CallOptions): CheckedCall {
    checkOptions(operation, options, callOptions);
    const named = operation === 'barrier' ? options : { name: 'monitored', ...options };
    return this.#collective('barrier', { dtype: 'uint8' }, 0, named, {}, []);
  }

  message(direction: 'send' | 'recv', data: TensorLike, peer: number | typeof anySource, options: PeerOptions): CheckedMessage {
    checkOptions(direction, options, peerOptions);
    const value = operand(data, `the data of ${direction}`);
    const { rank, size } = this.#place;
    const isAny = direction === 'recv' && peer === anySource && size > 1;
    if (!isAny && (typeof peer !== 'number' || !Number.isInteger(peer) || peer < 0 || peer >= size || peer === rank)) {
      const or = direction === 'recv' ? ` or '${anySource}'` : '';
      throw new ShoalError('usage', `${direction} needs another rank of 0…${size - 1}${or}, not ${String(peer)} (this is rank ${rank})`);
    }
    const tag = checkTag(options.tag ?? 0);
    const timeoutMs = checkTimeout(options.timeoutMs ?? this.#timeoutMs);
    const use = { name: 'data', operand: value, reads: direction === 'send', writes: direction === 'recv' } as const;
    return { direction, peer: isAny ? undefined : (peer as number), tag, timeoutMs, use };
  }

  #collective(
    kind: CollectiveCall['kind'],
    { dtype }: { readonly dtype: DType },
    count: number,
    options: CallOptions,
    extra: Partial<CollectiveCall>,
    uses: readonly BufferUse[],
  ): CheckedCall {
    const timeoutMs = checkTimeout(options.timeoutMs ?? this.#timeoutMs);
    return { call: { kind, dtype, count, name: options.name, ...extra }, uses, options, timeoutMs };
  }

  /** The arguments of an operation between one part per rank and the whole. */
  #gathering(
    operation: string,
    whole: CollectiveData,
    part: CollectiveData,
    options: CountsOptions,
  ): { source: Operand; target: Operand; counts?: readonly number[] } {
    const source = operand(part, `the ${operation === 'allGather' ? 'input' : 'output'} of ${operation}`);
    const target = operand(whole, `the ${operation === 'allGather' ? 'output' : 'input'} of ${operation}`);
    checkCounts(this.#place, operation, options.counts ?? even(source.count, this.#place.size), source, target);
    return { source, target, counts: keptCounts(options) };
  }
}
