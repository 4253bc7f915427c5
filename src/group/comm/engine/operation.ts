/** One collective in flight on one rank: its buffers, its slot, and the memory its program runs on.
 *
 *      queued ─▶ announced ─▶ running ─▶ done
 *               (begin line   (all contracts
 *                published)    agree, memory bound)
 *
 *  16-bit floats are widened to float32 for the operation where partial sums would travel, and for Premul, which scales a copy. */
import { must } from '../../../base/assert.ts';
import type { ShoalError } from '../../../base/errors.ts';
import type { ExecutionContext } from '../../../collectives/executor.ts';
import type { SegmentName } from '../../../collectives/lower.ts';
import type { RemoteSpan, Span } from '../../../fabric/fabric.ts';
import { dtypeInfo } from '../../../memory/dtype.ts';
import type { BufferName } from '../../../plan/ir.ts';
import type { Movement } from '../../../trace/traffic.ts';
import type { CollectiveCall } from '../../../call/contract.ts';
import { bytesIn, type BoundBuffer, type Buffers } from '../../../call/local-buffers.ts';
import type { PeerLink } from '../links/peer-link.ts';
import type { PreparedPlan, RunningPlan } from '../../../call/planner.ts';
import type { ScratchBlock } from '../links/scratch-pool.ts';
import type { Complete, SubmittedCall } from './call-queue.ts';
import type { GroupContext } from './group-context.ts';

export type OperationPhase = 'queued' | 'announced' | 'running' | 'done';

interface Staged {
  readonly buffer: BufferName;
  readonly user: BoundBuffer;
  readonly block: ScratchBlock;
}

export class Operation implements ExecutionContext {
  call: CollectiveCall;
  /** Position among all calls of the group. */
  readonly sequence: number;
  /** Position among those of its calls that go through the comm thread. */
  readonly ordinal: number;
  readonly slot: number;
  readonly timeoutMs: number;
  readonly submittedMs: number;
  /** Undefined while what it moves hangs on an earlier operation. */
  plan: PreparedPlan | undefined;
  /** The error with which it ends without having run, on every rank. */
  refusal: ShoalError | undefined;
  readonly path = 'comm thread';
  /** The last rank that was seen not to have called it. */
  waitedFor: number | undefined;
  phase: OperationPhase = 'queued';
  execution: RunningPlan | undefined;
  /** Peers whose contract has been compared and agrees. */
  readonly agreed: boolean[];
  readonly #group: GroupContext;
  readonly #buffers: Buffers;
  readonly #staged: Staged[] = [];
  #scratchBlock: ScratchBlock | undefined;
  readonly #complete: Complete;

  constructor(
    group: GroupContext,
    request: SubmittedCall & {
      readonly ordinal: number;
      readonly slot: number;
      readonly submittedMs: number;
      readonly plan: PreparedPlan | undefined;
    },
  ) {
    this.#group = group;
    this.call = request.call;
    this.sequence = request.sequence;
    this.ordinal = request.ordinal;
    this.slot = request.slot;
    this.timeoutMs = request.timeoutMs;
    this.submittedMs = request.submittedMs;
    this.plan = request.plan;
    this.agreed = group.links.map((link) => link === undefined);
    this.#buffers = { ...request.buffers };
    this.#complete = request.complete;
  }

  get algorithm(): string {
    return this.plan?.plan.algorithm ?? 'undecided';
  }

  get movements(): readonly Movement[] {
    return this.plan?.lowered.movements ?? [];
  }

  /** True once it is known what runs, or that nothing does. */
  get isReady(): boolean {
    return this.plan !== undefined || this.refusal !== undefined;
  }

  get prepared(): PreparedPlan {
    return must(this.plan, () => 'what is announced has a plan');
  }

  /** Scratch that its plan works in; copies of what is widened or scaled come on top. */
  get stagingBytes(): number {
    return this.plan?.lowered.scratchBytes ?? 0;
  }

  /** Takes scratch, stages what must be staged, and writes the buffers' addresses into the begin line. */
  prepare(execution: RunningPlan): void {
    this.execution = execution;
    this.#stage();
    if (execution.lowered.scratchBytes > 0) {
      const block = this.#group.world.scratch.take(execution.lowered.scratchBytes);
      this.#scratchBlock = block;
      this.#buffers.scratch = { key: block.key, region: block.region, offset: 0, bytes: block.bytes };
    }
    const own = this.#group.blocks[this.#group.rank];
    for (const name of ['data', 'input', 'output', 'scratch'] as const) {
      const buffer = this.#buffers[name];
      if (buffer) own.setBufferAddress(this.slot, name, { rkey: buffer.key, offset: buffer.offset });
    }
  }

  /** True when every peer's memory that the program names has been announced. */
  canBind(): boolean {
    const { execution } = this;
    if (!execution) return false;
    const { segments, calls } = execution.lowered;
    return (
      segments.every((segment) => segment.kind !== 'buffer' || this.#known(segment.rank, segment.buffer)) &&
      calls.every((call) => call.kind !== 'put' || this.#known(call.peer, call.targetBuffer))
    );
  }

  /** Copies results out, gives memory back and reports. `error` undefined is success. */
  finish(error: ShoalError | undefined): void {
    if (this.phase === 'done') return;
    const begun = this.phase !== 'queued';
    this.phase = 'done';
    if (!error) {
      this.#unstage();
      for (const { block } of this.#staged) this.#group.world.scratch.give(block);
      if (this.#scratchBlock) this.#group.world.scratch.give(this.#scratchBlock);
    }
    // After a failure peers may still be writing: the blocks stay out of the pool until the world closes.
    this.#complete(error, { begun });
  }

  // The executor asks this.

  view(segment: SegmentName): Uint8Array {
    const { rank } = segment;
    if (segment.kind === 'slot') return this.#group.blocks[rank].slot(this.slot);
    if (segment.kind === 'header') return this.#group.blocks[rank].header;
    if (rank === this.#group.rank) return bytesIn(this.#own(segment.buffer));
    const { rkey, offset } = this.#group.blocks[rank].bufferAddress(this.slot, segment.buffer);
    return must(this.#link(rank).memory(rkey), () => `memory ${rkey} of rank ${rank} is announced`).subarray(offset);
  }

  local(buffer: BufferName): Span {
    return this.#own(buffer);
  }

  remote(rank: number, buffer: BufferName): RemoteSpan {
    const { rkey, offset } = this.#group.blocks[rank].bufferAddress(this.slot, buffer);
    return { region: this.#link(rank).remote(rkey), offset };
  }

  put(rank: number, source: Span | undefined, target: RemoteSpan | undefined, signal: number): Promise<void> {
    return this.#group.putSignal(rank, this.slot, signal, source, target);
  }

  ring(doorbells: Uint32Array): void {
    this.#group.ring(doorbells);
  }

  progress(): void {
    this.#group.pump();
  }

  #known(rank: number, buffer: BufferName): boolean {
    if (rank === this.#group.rank) return true;
    return this.#link(rank).knows(this.#group.blocks[rank].bufferAddress(this.slot, buffer).rkey);
  }

  #own(buffer: BufferName): BoundBuffer {
    return must(this.#buffers[buffer], () => `${this.call.kind} has a ${buffer} buffer`);
  }

  #link(rank: number): PeerLink {
    return must(this.#group.links[rank], () => `rank ${rank} has a link`);
  }

  #stage(): void {
    const { call } = this;
    const { computeType } = this.prepared;
    const factor = call.op === 'premul' ? (call.factor ?? 1) : undefined;
    if (computeType === call.dtype && factor === undefined) return;
    const { kernels } = this.#group.world.env;
    const widening = dtypeInfo(computeType).bytes / dtypeInfo(call.dtype).bytes;
    for (const buffer of ['data', 'input', 'output'] as const) {
      const user = this.#buffers[buffer];
      if (!user || user.bytes === 0) continue;
      const block = this.#group.world.scratch.take(user.bytes * widening);
      this.#staged.push({ buffer, user, block });
      const staged = new Uint8Array(block.region.buffer, 0, user.bytes * widening);
      if (buffer !== 'output') {
        kernels.convert(computeType, staged, call.dtype, bytesIn(user));
        if (factor !== undefined) kernels.scale(computeType, staged, staged, factor);
      }
      this.#buffers[buffer] = { key: block.key, region: block.region, offset: 0, bytes: staged.length };
    }
  }

  #unstage(): void {
    const { call } = this;
    const { computeType } = this.prepared;
    const { rank, world } = this.#group;
    for (const { buffer, user, block } of this.#staged) {
      const isResult = buffer === 'output' || (buffer === 'data' && (call.kind !== 'reduce' || call.root === rank));
      if (!isResult) continue;
      const bytes = (user.bytes * dtypeInfo(computeType).bytes) / dtypeInfo(call.dtype).bytes;
      world.env.kernels.convert(call.dtype, bytesIn(user), computeType, new Uint8Array(block.region.buffer, 0, bytes));
    }
  }
}
