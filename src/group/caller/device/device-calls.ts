/** Collectives on tensors of a device. A call is cut into pieces, and pieces are a pipeline:
 *
 *      piece 0    device ─▶ staging │ collective │ staging ─▶ device
 *      piece 1                      │ device ─▶ … │ collective  │ …
 *
 *  Staging is a few pairs of blocks in shared memory. Pieces go through a separate group with the same ranks, the *piece group*, in
 *  the same order on all of them, so that other calls of the group neither wait for the event loop nor overtake. A call is
 *  announced in the group itself, by a barrier with the call's name: different calls on other ranks are a mismatch as usual.
 *
 *  A failure here fails the group on all its ranks, because others wait for this rank's pieces. */
import { must } from '../../../base/assert.ts';
import { getOrMake } from '../../../base/collections/lists.ts';
import { BoundedPool } from '../../../memory/device/bounded-pool.ts';
import { within, type Clock } from '../../../base/clock.ts';
import { messageOf, ShoalError } from '../../../base/errors.ts';
import type { SettlingWork } from '../../../comm/caller/work.ts';
import { copyAlignment, type GpuDevice } from '../../../memory/device/gpu.ts';
import { DeviceCopies, devicePieceBytes, devicePieces } from '../../../memory/device/device-copies.ts';
import { DeviceTensor, isOnDevice } from '../../../memory/device/device-tensor.ts';
import { dtypeInfo } from '../../../memory/dtype.ts';
import { Tensor } from '../../../memory/tensor.ts';
import type { CollectiveCall } from '../../../call/contract.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';
import type { CollectiveData, ProcessGroup, Work } from '../types.ts';
import { bytesOf, type BufferUse } from '../call-buffers.ts';
import type { CheckedCall } from '../call-dispatch.ts';
import type { CommClient } from '../comm-client.ts';
import { cutCall, type ElementSpan, type Piece } from './device-pieces.ts';
import { DeviceWork } from './device-work.ts';

const smallestStagingBytes = 2 ** 16;

export interface PieceGroup extends Pick<ProcessGroup, 'tensor' | 'release' | 'destroy'> {
  readonly id: number;
  startChecked(checked: CheckedCall): Work;
}

export interface DeviceCallsOptions {
  readonly clock: Clock;
  readonly spec: GroupSpec;
  readonly client: Pick<CommClient, 'failGroup'>;
  /** Tells the group's other ranks what is called. */
  announce(name: string, timeoutMs: number): SettlingWork;
  /** Collective, in the order of the group's calls. */
  openPieceGroup(): Promise<PieceGroup>;
}

/** Staging of a piece, as large as was needed so far. */
interface StagingPair {
  first: Tensor<'uint8'> | undefined;
  /** The staging of a result that lies elsewhere than the input. */
  second: Tensor<'uint8'> | undefined;
}

/** A call that has been announced. */
interface DeviceCall {
  readonly checked: CheckedCall;
  readonly number: number;
  readonly pieceGroup: PieceGroup;
}

export class DeviceCalls {
  readonly #options: DeviceCallsOptions;
  readonly #copies = new Map<GpuDevice, DeviceCopies>();
  readonly #pairs: BoundedPool<StagingPair>;
  #opening: Promise<PieceGroup> | undefined;
  #open: PieceGroup | undefined;
  #calls = 0;
  /** When all pieces of the calls before have their staging. */
  #issued: Promise<unknown> = Promise.resolve();
  /** When the collectives of all pieces before have been called. */
  #turn: Promise<void> = Promise.resolve();
  readonly #running = new Set<SettlingWork>();
  #failure: ShoalError | undefined;

  constructor(options: DeviceCallsOptions) {
    this.#options = options;
    this.#pairs = new BoundedPool<StagingPair>(devicePieces, () => ({ first: undefined, second: undefined }));
  }

  /** @throws ShoalError `usage`, `unsupported`: nothing has begun; what the group has failed with. */
  start(checked: CheckedCall): SettlingWork {
    const { call, uses, timeoutMs } = checked;
    const { name, rank, globalRanks } = this.#options.spec;
    const size = globalRanks.length;
    const elementBytes = dtypeInfo(call.dtype).bytes;
    if (call.parts !== undefined) {
      const message = 'allToAll of tensors of a device takes no splits; make all parts equal, or read it into a tensor';
      throw new ShoalError('unsupported', message);
    }
    checkApart(uses);
    const pieces = cutCall(
      call,
      { rank, size },
      { elementsMax: Math.max(size, Math.floor(devicePieceBytes / elementBytes)), aligned: Math.max(1, copyAlignment / elementBytes) },
    );
    for (const piece of pieces) checkAligned(uses, piece, elementBytes);
    if (this.#failure) throw this.#failure;
    const work = new DeviceWork(`${call.kind} of group '${name}' on a device`);
    const announced = this.#options.announce(nameOf(call), timeoutMs);
    void this.#openPieceGroup().catch(() => undefined);
    this.#running.add(work);
    void this.#run(checked, pieces, announced).then(
      () => this.#settle(work, undefined),
      (thrown: unknown) => this.#settle(work, this.fail(call.kind, thrown)),
    );
    return work;
  }

  /** No call follows. Those that run go on for `timeoutMs` at most. */
  async end(timeoutMs: number): Promise<void> {
    const { clock, spec } = this.#options;
    await within<unknown>(clock, timeoutMs, Promise.allSettled(this.#running), () => undefined);
    const closed = new ShoalError('closed', `group '${spec.name}' was destroyed`);
    this.#failure ??= closed;
    this.#pairs.close(closed);
    for (const copies of this.#copies.values()) copies.close();
    await this.#open?.destroy({ timeoutMs });
  }

  #openPieceGroup(): Promise<PieceGroup> {
    this.#opening ??= this.#options.openPieceGroup().then((pieceGroup) => {
      this.#open = pieceGroup;
      // It failed while there was no piece group to say it to.
      if (this.#failure) void this.#options.client.failGroup(pieceGroup.id, this.#failure);
      return pieceGroup;
    });
    return this.#opening;
  }

  async #run(checked: CheckedCall, pieces: readonly Piece[], announced: SettlingWork): Promise<void> {
    const number = this.#calls++;
    const before = this.#issued;
    let issued!: () => void;
    this.#issued = new Promise<void>((resolve) => (issued = resolve));
    // Whoever called something else is told at once, not when pieces are waited for.
    const agreed = announced.catch((thrown: unknown) => Promise.reject(this.fail(checked.call.kind, thrown)));
    // It is awaited below, with the pieces.
    agreed.catch(() => undefined);
    const works: Promise<void>[] = [agreed];
    try {
      await before;
      const call: DeviceCall = { checked, number, pieceGroup: await this.#openPieceGroup() };
      for (const [index, piece] of pieces.entries()) {
        const pair = await this.#pairs.take();
        const moved = this.#move(call, index, piece, pair);
        moved.catch(() => undefined);
        works.push(moved);
      }
    } catch (thrown) {
      works.push(Promise.reject(this.fail(checked.call.kind, thrown)));
    } finally {
      issued();
    }
    // None touches memory of the caller when the work is done.
    const failed = (await Promise.allSettled(works)).find((each) => each.status === 'rejected');
    if (failed) throw failed.reason;
  }

  /** One piece, from the device and back. */
  async #move(call: DeviceCall, index: number, piece: Piece, pair: StagingPair): Promise<void> {
    const before = this.#turn;
    let next!: () => void;
    this.#turn = new Promise<void>((resolve) => (next = resolve));
    try {
      const { uses } = call.checked;
      const source = uses.find((use) => use.name !== 'output');
      const target = uses.find((use) => use.name !== 'input');
      const input = source && staged(call.pieceGroup, pair, 'first', source, piece.input);
      const output = target && (target === source ? input : staged(call.pieceGroup, pair, 'second', target, piece.output));
      let collective: Work;
      try {
        if (source?.reads && input) await this.#copy('in', source.operand.value, piece.input, input);
        await before;
        // A call of this rank must not meet another of the others.
        if (this.#failure) throw this.#failure;
        collective = call.pieceGroup.startChecked(collectiveOf(call, index, piece, { input, output }));
      } catch (thrown) {
        throw this.fail(call.checked.call.kind, thrown);
      } finally {
        next();
      }
      await collective;
      if (target?.writes && output) await this.#copy('out', target.operand.value, piece.output, output);
    } catch (thrown) {
      throw this.fail(call.checked.call.kind, thrown);
    } finally {
      this.#pairs.give(pair);
    }
  }

  async #copy(direction: 'in' | 'out', value: CollectiveData, spans: readonly ElementSpan[], staging: Tensor): Promise<void> {
    const bytes = new Uint8Array(staging.region.buffer, staging.byteOffset, staging.bytes);
    const elementBytes = staging.count === 0 ? 1 : staging.bytes / staging.count;
    if (value instanceof DeviceTensor) {
      const places = spans.map(({ at, count }) => ({ byteOffset: value.byteOffset + at * elementBytes, bytes: count * elementBytes }));
      const copies = getOrMake(this.#copies, value.device, () => new DeviceCopies(value.device));
      await (direction === 'in' ? copies.gather(value.buffer, places, bytes) : copies.scatter(bytes, value.buffer, places));
      return;
    }
    const own = bytesOf(value);
    let at = 0;
    for (const span of spans) {
      const there = own.subarray(span.at * elementBytes, (span.at + span.count) * elementBytes);
      const here = bytes.subarray(at, at + there.length);
      if (direction === 'in') here.set(there);
      else there.set(here);
      at += there.length;
    }
  }

  /** The first failure ends the group and its piece group. @returns it. */
  fail(kind: string, thrown: unknown): ShoalError {
    if (this.#failure) return this.#failure;
    const { client, spec } = this.#options;
    const rank = spec.globalRanks[spec.rank];
    const error = ShoalError.from(thrown);
    const { code, bytes, peer, resource, sequence, timeoutMs } = error;
    const fields = { rank, operation: kind, bytes, peer, resource, sequence, timeoutMs, cause: thrown };
    // Errors that ranks tell each other name them already.
    this.#failure =
      error.rank === undefined
        ? new ShoalError(code, `rank ${rank}: ${kind} of group '${spec.name}' on a device: ${messageOf(thrown)}`, fields)
        : error;
    void client.failGroup(spec.id, this.#failure);
    if (this.#open) void client.failGroup(this.#open.id, this.#failure);
    return this.#failure;
  }

  #settle(work: DeviceWork, error: ShoalError | undefined): void {
    this.#running.delete(work);
    work.settle(error);
  }
}

/** The collective of one piece. Its number takes part in the contract. */
function collectiveOf(
  { checked, number }: DeviceCall,
  index: number,
  { count, counts }: Piece,
  staging: { readonly input: Tensor | undefined; readonly output: Tensor | undefined },
): CheckedCall {
  const uses = checked.uses.map((use) => {
    const value = must(use.name === 'output' ? staging.output : staging.input, () => `the ${use.name} is staged`);
    return { ...use, operand: { value, dtype: value.dtype, count: value.count } };
  });
  const call = { ...checked.call, count, counts, name: `call ${number} piece ${index}` };
  return { call, uses, options: { signal: checked.options.signal }, timeoutMs: checked.timeoutMs };
}

/** The name that says what ranks must have called alike. */
function nameOf({ kind, dtype, count, op, root, counts, factor, name }: CollectiveCall): string {
  const how = [op ?? '', root === undefined ? '' : `root ${root}`, counts === undefined ? '' : `counts ${counts.join(',')}`];
  const own = name === undefined ? '' : ` '${name}'`;
  return `${kind}${own} of ${count} ${dtype} on a device ${how.filter((word) => word !== '').join(' ')}${factor === undefined ? '' : ' factor'}`;
}

/** The elements of a piece in staging, which begin where it begins. */
function staged(
  group: PieceGroup,
  pair: StagingPair,
  place: keyof StagingPair,
  { operand: { dtype } }: BufferUse,
  spans: readonly ElementSpan[],
): Tensor {
  const count = spans.reduce((sum, span) => sum + span.count, 0);
  const bytes = count * dtypeInfo(dtype).bytes;
  let staging = pair[place];
  if (staging === undefined || staging.bytes < bytes) {
    pair[place] = undefined;
    if (staging) group.release(staging);
    staging = group.tensor('uint8', [Math.min(devicePieceBytes, Math.max(smallestStagingBytes, 2 ** Math.ceil(Math.log2(bytes))))]);
    pair[place] = staging;
  }
  return new Tensor(dtype, [count], staging.region, staging.byteOffset);
}

/** @throws ShoalError `usage` when a result lies over another argument. */
function checkApart(uses: readonly BufferUse[]): void {
  const [a, b] = uses.map(({ operand: { value } }) => value);
  if (!(a instanceof DeviceTensor) || !(b instanceof DeviceTensor) || a.buffer !== b.buffer) return;
  if (a.byteOffset < b.byteOffset + b.bytes && b.byteOffset < a.byteOffset + a.bytes) {
    const message = 'input and output lie over each other: results would overwrite what is still to be read; use two tensors';
    throw new ShoalError('usage', message);
  }
}

/** @throws ShoalError `unsupported` when a part of a device's tensor begins or ends where copies cannot. */
function checkAligned(uses: readonly BufferUse[], piece: Piece, elementBytes: number): void {
  for (const { name, operand } of uses) {
    if (!isOnDevice(operand.value)) continue;
    for (const { at, count } of name === 'output' ? piece.output : piece.input) {
      if ((at * elementBytes) % copyAlignment === 0 && (count * elementBytes) % copyAlignment === 0) continue;
      const message = `the ${name} has a part of ${count} ${operand.dtype} at element ${at}: copies of devices begin and end at multiples of ${copyAlignment} bytes; pad parts to that`;
      throw new ShoalError('unsupported', message);
    }
  }
}
