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
  ownPart,
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
    const use = { name: 'data', operand: target, reads: true, writes: true } as const;
    return this.#collective('all-reduce', target, target.count, options, reductionOf(target, options), [use]);
  }

  broadcast(data: CollectiveData, options: RootOptions): CheckedCall {
    checkOptions('broadcast', options, rootOptions);
    const target = operand(data, 'the data of broadcast');
    const { rank, size } = this.#place;
    const root = rootOf(options, size);
    const use = { name: 'data', operand: target, reads: root === rank, writes: root !== rank } as const;
    return this.#collective('broadcast', target, target.count, options, { root }, [use]);
  }

  reduce(data: CollectiveData, options: ReduceOptions & RootOptions): CheckedCall {
    checkOptions('reduce', options, reduceToRootOptions);
    const target = operand(data, 'the data of reduce');
    const { rank, size } = this.#place;
    const root = rootOf(options, size);
    const use = { name: 'data', operand: target, reads: true, writes: root === rank } as const;
    return this.#collective('reduce', target, target.count, options, { root, ...reductionOf(target, options) }, [use]);
  }

  allGather(output: CollectiveData, input: CollectiveData, options: CountsOptions): CheckedCall {
    checkOptions('allGather', options, countsOptions);
    const { source, target, counts } = this.#gathering('allGather', output, input, options);
    return this.#collective('all-gather', target, target.count, options, { counts }, [inputOf(source), outputOf(target)]);
  }

  gather(output: CollectiveData | null, input: CollectiveData | null, options: CountsOptions & RootOptions): CheckedCall {
    return this.#rooted('gather', 'output', output, input, options);
  }

  scatter(output: CollectiveData | null, input: CollectiveData | null, options: CountsOptions & RootOptions): CheckedCall {
    return this.#rooted('scatter', 'input', input, output, options);
  }

  reduceScatter(output: CollectiveData, input: CollectiveData, options: ReduceOptions & CountsOptions): CheckedCall {
    checkOptions('reduceScatter', options, reduceScatterOptions);
    const { source, target, counts } = this.#gathering('reduceScatter', input, output, options);
    const uses = [inputOf(target), outputOf(source)];
    return this.#collective('reduce-scatter', source, target.count, options, { counts, ...reductionOf(source, options) }, uses);
  }

  allToAll(output: CollectiveData, input: CollectiveData, options: AllToAllOptions): CheckedCall {
    checkOptions('allToAll', options, allToAllOptions);
    const source = operand(input, 'the input of allToAll');
    const target = operand(output, 'the output of allToAll');
    checkSameDtype('allToAll', source, target);
    const { size } = this.#place;
    const inputSplits = splitsOf('inputSplits', options.inputSplits, source, size);
    const outputSplits = splitsOf('outputSplits', options.outputSplits, target, size);
    const uses = [inputOf(source), outputOf(target)];
    if (options.inputSplits === undefined && options.outputSplits === undefined) {
      checkSameCount('allToAll', source, target);
      return this.#collective('all-to-all', source, source.count * size, options, {}, uses);
    }
    const parts = { sends: inputSplits, receives: outputSplits };
    return this.#collective('all-to-all', source, source.count, options, { parts }, uses);
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

  /** An operation between parts and a whole that the root alone has. @param whole null on other ranks. @param part null: in place. */
  #rooted(
    kind: 'gather' | 'scatter',
    wholeName: 'output' | 'input',
    whole: CollectiveData | null,
    part: CollectiveData | null,
    options: CountsOptions & RootOptions,
  ): CheckedCall {
    checkOptions(kind, options, countsOfRootOptions);
    const { rank, size } = this.#place;
    const root = rootOf(options, size);
    checkRootOnly(`the ${wholeName} of ${kind}`, whole, root, rank);
    const all = whole === null ? undefined : operand(whole, `the ${wholeName} of ${kind}`);
    const partName = wholeName === 'output' ? 'input' : 'output';
    const isInPlace = part === null && all !== undefined;
    const own = isInPlace ? ownPart(this.#place, all, options) : operand(part as CollectiveData, `the ${partName} of ${kind}`);
    const total = checkCounts(this.#place, kind, options.counts ?? even(own.count, size), own, all);
    const isGather = kind === 'gather';
    const buffers: BufferUse[] = [{ name: partName, operand: own, reads: isGather, writes: !isGather, isInPlace }];
    if (all) buffers.push({ name: wholeName, operand: all, reads: !isGather, writes: isGather });
    return this.#collective(kind, own, total, options, { root, counts: keptCounts(options) }, buffers);
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

function inputOf(value: Operand): BufferUse {
  return { name: 'input', operand: value, reads: true, writes: false };
}

function outputOf(value: Operand): BufferUse {
  return { name: 'output', operand: value, reads: false, writes: true };
}
