/** Scheduled all-reduces of one group on one rank, in the comm thread.
 *
 *      post ─▶ parts ─▶ told to all ranks ─▶ order (order-agreement.ts) ─▶ link of the core ── credit ─▶ engine of the group
 *
 *  The schedule owns the group, and numbers its calls in the order that all ranks agree on. A failure of the group ends
 *  all posts. A rank that cannot start an operation that the others start fails the group. */
import { ShoalError } from '../../../base/errors.ts';
import { seededRandom } from '../../../base/random.ts';
import { pushTo } from '../../../base/collections/lists.ts';
import type { Core } from '../../../scheduler/core.ts';
import type { LinkStatus } from '../../../scheduler/scheduler-link.ts';
import { OrderAgreement, type OrderMessage, type OrderPost } from '../../../scheduler/order-agreement.ts';
import { StepTuning, type PointMemory } from '../../../scheduler/tuner/step-tuning.ts';
import type { TunedPoint, TuningSpec } from '../../../scheduler/tuner/tuner.ts';
import type { CollectiveCall } from '../../../call/contract.ts';
import { speaksOf, type GroupSpec, type Scheduling } from '../../../call/group-spec.ts';
import { secondsText, Watchdog, type Watched } from '../../../metrics/watchdog.ts';
import type { Wait } from '../diagnosis/wait-chain.ts';
import type { BoundBuffer } from '../../../call/local-buffers.ts';
import type { Complete, SubmittedCall } from '../engine/call-queue.ts';
import type { GroupWorld } from '../engine/group-context.ts';
import { encodeControl, type ControlMessage } from '../links/control-message.ts';
import type { PeerLink } from '../links/peer-link.ts';
import { dtypeInfo } from '../../../memory/dtype.ts';
import type { Part } from '../../../scheduler/task-parts.ts';
import { Task } from '../../../scheduler/task.ts';

/** More parts of a tensor are worth a warning: they take longer than their bytes do. */
const partsUsual = 1000;

interface AllReduceRequest {
  /** Name of the tensor, the same on all ranks. */
  readonly name: string;
  /** Smaller is sooner. */
  readonly priority: number;
  readonly call: CollectiveCall;
  readonly buffer: BoundBuffer;
  readonly timeoutMs: number;
}

export interface ScheduledCall extends AllReduceRequest {
  /** It has its name in every step. */
  readonly isNamed: boolean;
  readonly complete: Complete;
}

/** The engine of a scheduled group. */
export interface ScheduledEngine {
  readonly spec: GroupSpec;
  /** Links by group rank; undefined for this rank. */
  readonly links: readonly (PeerLink | undefined)[];
  submit(request: SubmittedCall): void;
  fail(error: ShoalError): void;
}

export interface ScheduleOptions {
  readonly world: Pick<GroupWorld, 'env' | 'findCulprit'>;
  readonly engine: ScheduledEngine;
  readonly scheduling: Scheduling;
  readonly core: Core;
  /** The memory of points that tuning finds. */
  readonly memory: PointMemory | undefined;
}

/** A tensor that is posted, until all its parts have their turn. */
interface Posted extends Watched {
  readonly task: AllReduceTask;
  /** All-reduces that have got no turn yet, in their order. */
  readonly left: AllReduceTask[];
}

export class Schedule {
  readonly #options: ScheduleOptions;
  readonly #group: GroupSpec;
  readonly #link: string;
  readonly #agreement: OrderAgreement;
  readonly #watchdog: Watchdog<Posted>;
  readonly #tuning: StepTuning | undefined;
  /** The partition of the next tensors. */
  #partitionBytes: number;
  /** Tensors by name, in the order of the posts. */
  readonly #posted = new Map<string, Posted[]>();
  /** Posted, and not ended. */
  readonly #tasks = new Set<AllReduceTask>();
  /** Ranks that have left, in the order of their leaving. */
  readonly #leftRanks: number[] = [];
  /** Calls of the group. */
  #calls = 0;
  #ended: ShoalError | undefined;
  #warnedOfParts = false;

  constructor(options: ScheduleOptions) {
    this.#options = options;
    const { world, engine, core, scheduling } = options;
    const { clock, settings } = world.env;
    const { spec: group } = engine;
    this.#group = group;
    const { creditBytes, partitionBytes, tuning } = scheduling;
    this.#link = `group ${group.id}`;
    this.#partitionBytes = partitionBytes;
    this.#tuning = tuning && this.#newTuning(tuning);
    const resource = group.topology.hosts.length > 1 ? 'network' : 'memory';
    core.setLink(this.#link, { order: 'arrival', creditBytes, partitionBytes, resource });
    // One part ahead of those that are in flight, so that a round takes as long as a part, and what is sooner waits for no more.
    this.#agreement = new OrderAgreement({
      rank: group.rank,
      size: group.globalRanks.length,
      worldRanks: group.globalRanks,
      batchBytes: Math.min(partitionBytes, tuning?.space.partitionBytes?.least ?? partitionBytes),
      lowBytes: 0,
    });
    this.#watchdog = new Watchdog({
      clock,
      slowMs: settings.slowMs,
      pending: () => this.#waiting(),
      onSlow: (posted, waitedMs) => this.#warnOf(posted, waitedMs),
      onTimeout: (posted) => this.#timeOut(posted),
    });
  }

  /** Tensors that have not ended. */
  get size(): number {
    return this.#tasks.size;
  }

  get credit(): LinkStatus {
    return this.#options.core.statusOf(this.#link);
  }

  /** The tensor that this rank has waited for the longest; undefined: there is none. */
  get wait(): Wait | undefined {
    const [posted] = this.#waiting();
    return posted && { text: this.#describe(posted), ranks: this.#absent(posted) };
  }

  /** @throws ShoalError why it is not taken; then nothing is known of it. */
  post({ complete, isNamed, ...request }: ScheduledCall): void {
    if (this.#ended) throw this.#ended;
    if (this.#tuning) this.#cutBy(isNamed ? this.#tuning.begin(request.name, request.buffer.bytes) : undefined);
    const { core, world } = this.#options;
    const task: AllReduceTask = new AllReduceTask({
      ...request,
      link: this.#link,
      run: (part) => this.#run(part),
      onEnd: (error) => {
        this.#tasks.delete(task);
        complete(error);
      },
    });
    core.post(task);
    this.#tasks.add(task);
    const parts = (task.children.length > 0 ? task.children : [task]) as readonly AllReduceTask[];
    const { name, priority, bytes, unitBytes } = task;
    this.#warnOfParts(task);
    const posted: Posted = { task, left: [...parts], submittedMs: world.env.clock.now(), timeoutMs: request.timeoutMs };
    pushTo(this.#posted, name, posted);
    this.#watchdog.watch(posted);
    const post: OrderPost = { key: name, priority, what: describe(request.call), bytes, unitBytes, parts: parts.length };
    this.#agree(() => this.#agreement.ready(post));
    this.#failIfLeft();
  }

  /** @throws ShoalError `protocol` for what no rank of this group would say. */
  onOrder(rank: number, message: OrderMessage): void {
    if (!this.#ended) this.#agree(() => this.#agreement.receive(rank, message));
  }

  /** A rank has left: what is not in the order by now, nobody will do. */
  onLeft(rank: number): void {
    this.#leftRanks.push(this.#group.globalRanks[rank]);
    this.#failIfLeft();
  }

  #failIfLeft(): void {
    if (this.#leftRanks.length === 0 || this.#ended) return;
    // Those that are empty are gone.
    const posted = this.#posted.values().next().value?.at(0);
    if (posted === undefined) return;
    const [peer] = this.#leftRanks;
    const message = `rank ${peer} left before it scheduled ${this.#describe(posted)}; every rank makes the same calls before it destroys a group`;
    this.#options.engine.fail(new ShoalError('mismatch', message, { peer }));
  }

  setScheduling({ creditBytes, partitionBytes }: Partial<Scheduling>): void {
    this.#options.core.setLink(this.#link, { creditBytes, partitionBytes });
  }

  // ── tuning ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /** @throws ShoalError `protocol` for a rank that does not lead. */
  onTuned(rank: number, { atStep, point, isFinal }: Extract<ControlMessage, { type: 'tuned' }>): void {
    if (this.#ended) return;
    const group = this.#group;
    if (rank !== 0) throw new ShoalError('protocol', `rank ${group.globalRanks[rank]} changes credit and partition of '${group.name}'`);
    try {
      if (this.#tuning === undefined) throw new ShoalError('mismatch', `rank ${group.globalRanks[0]} tunes '${group.name}' alone`);
      this.#tuning.receive({ atStep, point, isFinal });
    } catch (thrown) {
      this.#options.engine.fail(ShoalError.from(thrown));
    }
  }

  #newTuning(spec: TuningSpec): StepTuning {
    const { world, core, memory, scheduling } = this.#options;
    const { clock, log } = world.env;
    const group = this.#group;
    return new StepTuning({
      spec,
      leads: group.rank === 0,
      clock,
      // It draws points that cover the space: any do.
      random: seededRandom(1),
      memory,
      tell: (change) => this.#tellOthers({ type: 'tuned', group: group.id, ...change }),
      onApplied: ({ atStep, point, isFinal }) => {
        const { creditBytes = scheduling.creditBytes, partitionBytes = scheduling.partitionBytes } = point;
        core.setLink(this.#link, { creditBytes });
        log.info(
          `step ${atStep} of '${group.name}': credit ${creditBytes} bytes, partition ${partitionBytes}${isFinal ? ', for good' : ''}`,
        );
        const status = { creditBytes, partitionBytes, tuning: isFinal ? 'converged' : 'tuning', sinceStep: atStep } as const;
        world.env.tell({ type: 'scheduled-by', group: group.id, status });
      },
    });
  }

  /** undefined: as when the group was made. */
  #cutBy(point: TunedPoint | undefined): void {
    const { core, scheduling } = this.#options;
    const partitionBytes = point?.partitionBytes ?? scheduling.partitionBytes;
    if (partitionBytes === this.#partitionBytes) return;
    this.#partitionBytes = partitionBytes;
    core.setLink(this.#link, { partitionBytes });
  }

  /** Ends all posts, before the engine ends the operations under way. */
  abandon(error: ShoalError): void {
    this.#ended ??= error;
    this.#watchdog.stop();
    this.#posted.clear();
    // Those that run are the engine's, which gives them up itself.
    for (const task of this.#tasks) {
      const parts = task.children.length > 0 ? task.children : [task];
      for (const part of parts) if (part.state !== 'running') part.notifyFinish(error);
    }
  }

  close(): void {
    this.#watchdog.stop();
    this.#options.core.removeLink(this.#link);
  }

  // ── the order ───────────────────────────────────────────────────────────────────────────────────────────────────

  /** Tells the others what there is to say, and queues what has its turn. Ranks that disagree fail the group. */
  #agree(step: () => readonly OrderMessage[]): void {
    try {
      for (const message of step()) this.#tellOthers({ type: 'order', group: this.#group.id, ...message, posts: [...message.posts] });
      for (let turn = this.#agreement.next(); turn !== undefined; turn = this.#agreement.next()) this.#queue(turn.key);
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      if (error.code === 'protocol') throw error;
      this.#options.engine.fail(error);
    }
  }

  #tellOthers(message: ControlMessage): void {
    const encoded = encodeControl(message);
    for (const link of this.#options.engine.links) link?.post(encoded);
  }

  #queue(name: string): void {
    const posted = this.#posted.get(name);
    const part = posted?.[0].left.shift();
    if (posted === undefined || part === undefined) return; // given up while the order was made
    if (posted[0].left.length === 0) posted.shift();
    if (posted.length === 0) this.#posted.delete(name);
    part.notifyReady();
  }

  #run(part: AllReduceTask): void {
    if (this.#ended) throw this.#ended;
    const { engine } = this.#options;
    const { call, buffer, timeoutMs } = part;
    try {
      const complete: Complete = (error) => part.notifyFinish(error);
      engine.submit({ way: { path: 'engine' }, sequence: this.#calls++, call, buffers: { data: buffer }, timeoutMs, complete });
    } catch (thrown) {
      // The others start it.
      engine.fail(ShoalError.from(thrown));
      throw thrown;
    }
    this.#agree(() => this.#agreement.started(part));
  }

  /** Warns on one rank, once. */
  #warnOfParts({ name, bytes, children: { length } }: AllReduceTask): void {
    if (length <= partsUsual || this.#warnedOfParts || this.#group.rank !== 0) return;
    this.#warnedOfParts = true;
    const enough = 2 ** Math.ceil(Math.log2(bytes / partsUsual));
    this.#options.world.env.log.warn(
      `'${name}' of group '${this.#group.name}', ${bytes} bytes, goes in ${length} parts, each of which costs about as much as a small all-reduce; partitionBytes of ${enough} or more makes fewer`,
    );
  }

  // ── late ranks ──────────────────────────────────────────────────────────────────────────────────────────────────

  /** Posted here, and not by all ranks; the oldest first. */
  #waiting(): Posted[] {
    const waiting = [...this.#posted.values()].flatMap(([first]) => (this.#absent(first).length > 0 ? [first] : []));
    return waiting.sort((a, b) => a.submittedMs - b.submittedMs);
  }

  /** World ranks that have not posted the tensor. */
  #absent({ task }: Posted): number[] {
    return this.#agreement.absent(task.name).map((rank) => this.#group.globalRanks[rank]);
  }

  #warnOf(posted: Posted, waitedMs: number): void {
    const absent = this.#absent(posted);
    if (!speaksOf(this.#group, absent)) return;
    const { log } = this.#options.world.env;
    log.warn(`${this.#describe(posted)} has waited ${secondsText(waitedMs)} for rank ${absent.join(', ')} to schedule it`);
  }

  #timeOut(posted: Posted): void {
    const { engine, world } = this.#options;
    const absent = this.#absent(posted);
    world.findCulprit(absent, ({ rank: peer, text }) => {
      if (this.#ended || this.#absent(posted).length === 0) return;
      const { timeoutMs } = posted;
      const what = `${this.#describe(posted)} timed out after ${timeoutMs} ms`;
      engine.fail(new ShoalError('timeout', `${what}: rank ${absent.join(', ')} did not schedule it; ${text}`, { timeoutMs, peer }));
    });
  }

  #describe({ task }: Posted): string {
    return `'${task.name}' (${describe(task.call)}, priority ${task.priority}) of group '${this.#group.name}'`;
  }
}

function describe({ kind, dtype, op }: CollectiveCall): string {
  return `${kind} ${dtype} ${op ?? ''}`.trim();
}

interface AllReduceTaskOptions extends AllReduceRequest {
  readonly link: string;
  /** Starts an operation. */
  readonly run: (task: AllReduceTask) => void;
  readonly onEnd: (error: ShoalError | undefined) => void;
}

/** An all-reduce as a task of the scheduler. Its parts are ranges of the tensor's memory: every part is an operation of its own, and
 *  gives the same bits as the whole would, since the association of a sum is over ranks. It must not know when it starts. */
class AllReduceTask extends Task {
  readonly call: CollectiveCall;
  readonly buffer: BoundBuffer;
  readonly timeoutMs: number;
  readonly #options: AllReduceTaskOptions;

  constructor(options: AllReduceTaskOptions) {
    const { name, priority, call, buffer, link, onEnd } = options;
    super({ name, operation: call.kind, bytes: buffer.bytes, unitBytes: dtypeInfo(call.dtype).bytes, priority, link, onEnd });
    this.call = call;
    this.buffer = buffer;
    this.timeoutMs = options.timeoutMs;
    this.#options = options;
  }

  protected part({ offset, bytes }: Part): AllReduceTask {
    const { call, buffer } = this.#options;
    return new AllReduceTask({
      ...this.#options,
      call: { ...call, count: bytes / this.unitBytes },
      buffer: { ...buffer, offset: buffer.offset + offset, bytes },
    });
  }

  /** It is ready when its turn has come in the order of all ranks. */
  protected override onPrepare(): void {}

  protected onDo(): void {
    this.#options.run(this);
  }
}
