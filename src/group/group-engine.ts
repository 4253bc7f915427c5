/** One group on one rank, in the comm thread: sequences collectives, checks contracts, runs plans, notices late and lost
 *  ranks. Collectives begin in the order they were submitted, run concurrently, and finish in any order.
 *
 *  It must not know algorithms, sockets or user objects. Sources: contract check, DESIGN §7; the sleeping flag is Dekker's
 *  store-then-load on both sides. */
import { assert, must } from '../base/assert.ts';
import type { Timer } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { beginPublishedOffset, ControlBlock, controlBlockBytes } from '../collectives/control-block.ts';
import type { RemoteSpan, Span } from '../fabric/fabric.ts';
import { decodeHandle } from '../fabric/region-handle.ts';
import type { Kernels } from '../memory/kernels.ts';
import type { RegionShare } from '../memory/region.ts';
import type { BufferName } from '../plan/ir.ts';
import type { Topology } from '../plan/topology.ts';
import { describeCall, describeContract, encodeContract, sameContract, type CollectiveCall } from './contract.ts';
import { Diagnosis, type Report } from './diagnosis.ts';
import { Operation, type Buffers, type OperationHost } from './operation.ts';
import { Lane, laneSlots, type LaneBuffer, type LaneOperation } from './lane.ts';
import type { PeerLink } from './peer-link.ts';
import { PlanRunner, type PreparedPlan } from './plan-runner.ts';
import type { ScratchPool } from './scratch-pool.ts';
import {
  beginMessageBytes,
  encodeBegin,
  encodeCompleted,
  encodeControl,
  signalImmediate,
  signalMaxOf,
  type ControlMessage,
} from './wire.ts';
import type { World } from './world.ts';

/** How long ranks have to say what they called before an error is made without them. */
const diagnosisMs = 500;
/** What looks like an error of ours may be a peer's death, whose news comes by the connection: how long to wait for it. */
const suspicionMs = 250;
/** Calls remembered for reports. */
const historyMax = 64;

export interface GroupSpec {
  readonly id: number;
  readonly name: string;
  /** World rank of each group rank. */
  readonly globalRanks: readonly number[];
  readonly rank: number;
  /** In group ranks. */
  readonly topology: Topology;
}

export interface SubmittedCall {
  /** Position among the group's calls. */
  readonly sequence: number;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  readonly timeoutMs: number;
  complete(error?: ShoalError): void;
}

/** An operation of the lane that the main thread did not finish. */
export interface LaneCall {
  readonly sequence: number;
  readonly ordinal: number;
  readonly position: number;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  readonly timeoutMs: number;
  complete(error?: ShoalError): void;
}

interface LaneEntry extends LaneCall {
  readonly submittedMs: number;
  readonly operation: LaneOperation;
  position: number;
  adopted: boolean;
  warned: boolean;
}

type GroupStatus = 'opening' | 'open' | 'failed' | 'closed';

export class GroupEngine implements OperationHost {
  readonly spec: GroupSpec;
  readonly rank: number;
  readonly size: number;
  readonly links: readonly (PeerLink | undefined)[];
  readonly blocks: ControlBlock[] = [];
  readonly #world: World;
  readonly #plans: PlanRunner;
  readonly #slotCount: number;
  readonly #signalMax: number;
  readonly #ownKey: number;
  /** Source of writes that carry only their immediate, and per rank where such writes go. */
  readonly #nothing: Span;
  readonly #blockKeys: number[] = [];
  readonly #networkPeers: readonly PeerLink[];
  readonly #hostPeers: readonly number[];
  readonly #beginMessage = new Uint8Array(beginMessageBytes);
  readonly #queue: Operation[] = [];
  #inFlight: Operation[] = [];
  #lane: Lane | undefined;
  readonly #laneQueue: LaneEntry[] = [];
  readonly #history: { sequence: number; call: CollectiveCall }[] = [];
  /** Collectives each rank made before it left; undefined while it stays. */
  readonly #callsAtLeave: (number | undefined)[];
  #submitted = 0;
  #begun = 0;
  #completed = 0;
  #finishedAhead = new Set<number>();
  #completedSent = 0;
  #status: GroupStatus = 'opening';
  #failure: ShoalError | undefined;
  #suspicion: ShoalError | undefined;
  #diagnosis: Diagnosis | undefined;
  #watchdog: Timer | undefined;
  #watchdogAtMs = Infinity;
  #pumping = false;
  #pumpAgain = false;
  /** How long a look around polls shared memory before the thread sleeps; 0 where ranks outnumber CPUs. */
  readonly #spinMs: number;
  #opened: { resolve: () => void; reject: (error: ShoalError) => void } | undefined;
  #idle: (() => void) | undefined;

  constructor(world: World, spec: GroupSpec) {
    this.#world = world;
    this.spec = spec;
    this.rank = spec.rank;
    this.size = spec.globalRanks.length;
    this.links = spec.globalRanks.map((rank) => (rank === world.rank ? undefined : world.link(rank)));
    this.#networkPeers = this.links.filter((link) => link !== undefined && !link.loadStore) as PeerLink[];
    this.#hostPeers = this.links.flatMap((link, rank) => (link?.loadStore ? [rank] : []));
    this.#callsAtLeave = spec.globalRanks.map(() => undefined);
    this.#slotCount = world.settings.inFlightMax;
    this.#signalMax = signalMaxOf(this.size);
    this.#spinMs = this.#hostPeers.length + 1 > world.cpus ? 0 : world.settings.spinMicroseconds / 1000;
    this.#plans = new PlanRunner({
      machine: world.machine,
      overrides: world.selection,
      order: world.settings.order,
      rank: spec.rank,
      topology: spec.topology,
      loadStore: this.links.map((link) => link === undefined || link.loadStore),
    });
    const { key, region } = world.regions.create(controlBlockBytes(this.#slotCount + laneSlots, this.#signalMax));
    this.#ownKey = key;
    this.blocks[this.rank] = new ControlBlock(region.buffer, 0, this.#slotCount + laneSlots, this.#signalMax);
    this.#nothing = { region, offset: 0, bytes: 0 };
  }

  get scratch(): ScratchPool {
    return this.#world.scratch;
  }

  get kernels(): Kernels {
    return this.#world.kernels;
  }

  get failure(): ShoalError | undefined {
    return this.#failure;
  }

  // ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Exchanges control blocks with every member. @throws ShoalError naming the ranks that did not open in time. */
  open(timeoutMs: number): Promise<void> {
    const message = encodeControl({ type: 'group-open', group: this.spec.id, name: this.spec.name, key: this.#ownKey, offset: 0 });
    return new Promise<void>((resolve, reject) => {
      this.#opened = { resolve, reject };
      for (const link of this.links) link?.post(message);
      this.#world.clock.setTimer(timeoutMs, () => {
        if (this.#status !== 'opening') return;
        const missing = this.spec.globalRanks.filter((_, rank) => !this.blocks[rank]);
        this.fail(
          new ShoalError(
            'timeout',
            `group '${this.spec.name}' did not open within ${timeoutMs} ms: rank ${missing.join(', ')} did not join; does every rank create it?`,
            {
              timeoutMs,
              peer: missing[0],
            },
          ),
        );
      });
      this.#checkOpen();
    });
  }

  /** Takes no more calls, waits (bounded) for those in flight, then tells the others. Resolves always. */
  async leave(timeoutMs: number): Promise<void> {
    if (this.#status === 'closed') return;
    if (this.#status === 'open' && this.#busy()) {
      await new Promise<void>((resolve) => {
        this.#idle = resolve;
        this.#world.clock.setTimer(timeoutMs, resolve);
      });
    }
    for (const link of this.links) link?.post(encodeControl({ type: 'leave', group: this.spec.id, calls: this.blocks[this.rank].called }));
    this.#abandonAll(new ShoalError('closed', `group '${this.spec.name}' was destroyed`, { rank: this.rank }));
    this.#status = 'closed';
    this.#watchdog?.cancel();
  }

  /** Stops, and fails unless a closing connection names a better reason first. */
  #suspect(error: ShoalError): void {
    if (this.#suspicion) return;
    this.#suspicion = error;
    this.#world.clock.setTimer(suspicionMs, () => this.fail(error), { keepAlive: true });
  }

  /** Ends every operation, now and later, with `error`, and tells the other ranks unless they said it. */
  fail(error: ShoalError, options: { tellOthers: boolean } = { tellOthers: true }): void {
    if (this.#status === 'failed' || this.#status === 'closed') return;
    this.#status = 'failed';
    this.#failure = error;
    this.blocks[this.rank].failed = true;
    this.#watchdog?.cancel();
    this.#world.recordFailure(this.spec, error);
    if (options.tellOthers) {
      const message = encodeControl({ type: 'abort', group: this.spec.id, error: error.toData() });
      for (const link of this.links) link?.post(message);
    }
    this.#opened?.reject(error);
    this.#opened = undefined;
    this.#abandonAll(error);
  }

  // ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

  submit(request: SubmittedCall): void {
    const error = this.refusal();
    if (error) {
      request.complete(error);
      return;
    }
    const { call } = request;
    let plan: PreparedPlan;
    try {
      plan = this.#plans.prepare(call);
    } catch (thrown) {
      request.complete(ShoalError.from(thrown, 'usage', { rank: this.rank, operation: call.kind }));
      return;
    }
    const { sequence } = request;
    const ordinal = this.#submitted++;
    const operation = new Operation(this, {
      ...request,
      sequence,
      ordinal,
      slot: ordinal % this.#slotCount,
      submittedMs: this.#world.clock.now(),
      plan,
    });
    this.#world.recorder.created(this.spec, operation);
    this.#queue.push(operation);
    this.#armWatchdog(operation);
    this.#remember(sequence, call);
    this.pump();
  }

  /** Takes over an operation of the lane where the main thread left it. Only its head runs. */
  submitLane(request: LaneCall): void {
    const error = this.refusal();
    if (error) {
      request.complete(error);
      return;
    }
    const { call, sequence } = request;
    const whole = must(this.#plans.prepare(call).whole, () => 'operations of the lane run whole');
    const buffers: Partial<Record<BufferName, LaneBuffer>> = {};
    for (const name of ['data', 'input', 'output'] as const) {
      const buffer = request.buffers[name];
      if (buffer)
        buffers[name] = { key: buffer.key, offset: buffer.offset, view: new Uint8Array(buffer.region.buffer, buffer.offset, buffer.bytes) };
    }
    const entry: LaneEntry = {
      ...request,
      complete: request.complete,
      submittedMs: this.#world.clock.now(),
      operation: this.#lanes.bind(call, whole, buffers),
      warned: false,
      adopted: request.position === 0,
    };
    this.#laneQueue.push(entry);
    this.#armWatchdog(entry);
    this.#remember(sequence, call);
    this.pump();
  }

  get #lanes(): Lane {
    this.#lane ??= new Lane({
      rank: this.rank,
      size: this.size,
      blocks: this.blocks,
      firstSlot: this.#slotCount,
      machine: this.#world.machine,
      yields: this.#spinMs === 0,
      peerRegion: (rank, key) => {
        const link = must(this.links[rank], () => 'a peer');
        if (!link.hasRegion(key)) return undefined;
        const region = link.map(key);
        return new Uint8Array(region.buffer, 0, region.bytes);
      },
    });
    return this.#lane;
  }

  /** Why no further call is taken; undefined while the group works. */
  refusal(): ShoalError | undefined {
    if (this.#failure) return this.#failure;
    if (this.#status === 'closed') return new ShoalError('closed', `group '${this.spec.name}' was destroyed`, { rank: this.rank });
    return undefined;
  }

  #remember(sequence: number, call: CollectiveCall): void {
    const own = this.blocks[this.rank];
    own.called = Math.max(own.called, sequence + 1);
    this.#history.push({ sequence, call });
    if (this.#history.length > historyMax) this.#history.shift();
    if (this.#diagnosis?.sequence === sequence) this.#reportOwn();
  }

  // ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Advances everything that can advance. Called whenever something arrived; never blocks longer than the spin budget. */
  pump(): void {
    if (this.#pumping) {
      this.#pumpAgain = true;
      return;
    }
    this.#pumping = true;
    try {
      do {
        this.#pumpAgain = false;
        this.#pumpUntilIdle();
      } while (this.#pumpAgain);
    } finally {
      this.#pumping = false;
    }
    if (!this.#busy()) this.#idle?.();
  }

  #pumpUntilIdle(): void {
    if (this.#status !== 'open' || this.#suspicion) return;
    const own = this.blocks[this.rank];
    own.sleeping = false;
    const { clock } = this.#world;
    const spinMs = this.#spinMs;
    let deadlineMs = clock.now() + spinMs;
    while (this.#busy() && !this.#suspicion && this.#status === 'open') {
      if (this.#step()) {
        deadlineMs = clock.now() + spinMs;
        continue;
      }
      if (this.#hostPeers.length > 0 && clock.now() < deadlineMs) continue;
      if (own.sleeping) return;
      own.sleeping = true; // and look once more: what arrived in between rings no bell
    }
    own.sleeping = false;
  }

  /** One look at everything; true when something moved. */
  #step(): boolean {
    let moved = false;
    while (this.#queue.length > 0 && this.#inFlight.length < this.#slotCount && this.#slotFree()) {
      this.#announce(must(this.#queue.shift(), () => 'the queue is not empty'));
      moved = true;
    }
    for (const operation of this.#inFlight) {
      if (operation.phase === 'announced' && this.#agree(operation)) moved = true;
      if (operation.phase === 'running' && this.#advance(operation)) moved = true;
    }
    if (this.#laneQueue.length > 0 && this.#advanceLane(this.#laneQueue[0])) moved = true;
    if (moved) this.#inFlight = this.#inFlight.filter((operation) => operation.phase !== 'done');
    return moved;
  }

  /** The next sequence number's slot is free on every rank. */
  #slotFree(): boolean {
    const needed = this.#begun - this.#slotCount + 1;
    return needed <= 0 || this.blocks.every((block) => block.completed >= needed);
  }

  #announce(operation: Operation): void {
    this.#begun += 1;
    this.#inFlight.push(operation);
    const own = this.blocks[this.rank];
    const { slot, sequence, call } = operation;
    try {
      operation.prepare(this.#plans.take(operation.plan));
      operation.execution?.enter(operation, this.rank);
      assert(
        must(operation.execution, () => 'prepared').lowered.signalCount <= this.#signalMax,
        () => `plan needs more than ${this.#signalMax} signals`,
      );
    } catch (thrown) {
      this.fail(ShoalError.from(thrown, 'system', { rank: this.rank, sequence }));
      return;
    }
    encodeContract(call, sequence, own.contract(slot), { strict: this.#world.settings.contract === 'strict' });
    operation.phase = 'announced';
    own.publish(slot, sequence + 1);
    this.#wakeHostPeers();
    if (this.#networkPeers.length > 0) {
      encodeBegin(this.#beginMessage, this.spec.id, this.#completed, own.beginLine(slot));
      this.#completedSent = this.#completed;
      for (const link of this.#networkPeers) link.post(this.#beginMessage.slice());
    }
  }

  /** Compares contracts that have arrived; binds and starts when all agree. True when the operation started. */
  #agree(operation: Operation): boolean {
    const { slot, sequence } = operation;
    const own = this.blocks[this.rank].contract(slot);
    let all = true;
    for (let rank = 0; rank < this.size; rank++) {
      if (operation.agreed[rank]) continue;
      if (this.blocks[rank].published(slot) !== sequence + 1) {
        all = false;
        const calls = this.#callsAtLeave[rank];
        const gone = calls !== undefined && calls <= sequence;
        const passed = this.blocks[rank].published(slot) > sequence + 1;
        if (gone || passed || this.#tookLane(this.blocks[rank], sequence)) this.#diagnose('mismatch', sequence, operation.timeoutMs);
      } else if (sameContract(own, this.blocks[rank].contract(slot))) operation.agreed[rank] = true;
      else {
        this.#diagnose('mismatch', sequence, operation.timeoutMs);
        return false;
      }
    }
    if (!all || this.#diagnosis || !operation.canBind()) return false;
    try {
      must(operation.execution, () => 'announced operations have an execution').bind(operation);
    } catch (thrown) {
      this.#suspect(ShoalError.from(thrown, 'system', { rank: this.rank, sequence }));
      return false;
    }
    operation.phase = 'running';
    this.#world.recorder.started(this.spec, operation);
    return true;
  }

  /** True when the operation finished. */
  #advance(operation: Operation): boolean {
    const execution = must(operation.execution, () => 'running operations have an execution');
    try {
      if (execution.run(0, { yields: this.#spinMs === 0 }) === 'waiting') return false;
    } catch (thrown) {
      this.#suspect(ShoalError.from(thrown, 'system', { rank: this.rank, sequence: operation.sequence }));
      return false;
    }
    this.blocks[this.rank].clearSignals(operation.slot, execution.lowered.signalCount);
    this.#plans.give(operation.plan, execution);
    operation.execution = undefined;
    this.#finished(operation.ordinal);
    operation.finish(undefined);
    this.#world.recorder.finished(this.spec, operation, undefined);
    return true;
  }

  /** True when the lane's head finished. */
  #advanceLane(entry: LaneEntry): boolean {
    const { operation, sequence, ordinal } = entry;
    const lane = this.#lanes;
    let status;
    try {
      // The other thread bound peers' memory as it maps it; here it is bound anew, once.
      entry.adopted ||= lane.adopt(operation, sequence, ordinal);
      status = entry.adopted ? lane.resume(operation, sequence, ordinal, entry.position, 0) : 'unmapped';
    } catch (thrown) {
      this.#suspect(ShoalError.from(thrown, 'system', { rank: this.rank, sequence }));
      return false;
    }
    this.ring(lane.doorbells);
    if (status === 'done') {
      this.#laneQueue.shift();
      entry.complete();
      return true;
    }
    if (status === 'unmapped' && !entry.adopted) return false;
    const moved = lane.position !== entry.position;
    entry.position = lane.position;
    if (status === 'mismatch' || this.#wentElsewhere(sequence)) this.#diagnose('mismatch', sequence, entry.timeoutMs);
    return moved;
  }

  /** Some rank made its call `sequence` through its comm thread, or left before it, while this rank's is of the lane. */
  #wentElsewhere(sequence: number): boolean {
    return this.blocks.some((block, rank) => {
      if (rank === this.rank) return false;
      const calls = this.#callsAtLeave[rank];
      if (calls !== undefined && calls <= sequence) return true;
      for (let slot = 0; slot < this.#slotCount; slot++) if (block.published(slot) === sequence + 1) return true;
      return false;
    });
  }

  /** A rank made its call `sequence` in the lane. */
  #tookLane(block: ControlBlock, sequence: number): boolean {
    for (let turn = 0; turn < laneSlots; turn++) if (block.published(this.#slotCount + turn) === sequence + 1) return true;
    return false;
  }

  /** Advances the count of contiguous completed operations and lets the others know. */
  #finished(ordinal: number): void {
    this.#finishedAhead.add(ordinal);
    while (this.#finishedAhead.delete(this.#completed)) this.#completed += 1;
    this.blocks[this.rank].completed = this.#completed;
    this.#wakeHostPeers();
    if (this.#networkPeers.length > 0 && this.#completed - this.#completedSent >= this.#slotCount / 2) {
      this.#completedSent = this.#completed;
      const message = encodeCompleted(this.spec.id, this.#completed);
      for (const link of this.#networkPeers) link.post(message);
    }
  }

  #wakeHostPeers(): void {
    for (const rank of this.#hostPeers) if (this.blocks[rank].sleeping) this.#ringRank(rank);
  }

  #ringRank(rank: number): void {
    this.links[rank]?.ring();
  }

  #busy(): boolean {
    return this.#queue.length + this.#inFlight.length + this.#laneQueue.length > 0;
  }

  // ── what operations ask of their group ──────────────────────────────────────────────────────────────────────────

  putSignal(rank: number, slot: number, signal: number, source: Span | undefined, target: RemoteSpan | undefined): Promise<void> {
    const link = must(this.links[rank], () => 'puts go to other ranks');
    const immediate = signalImmediate(this.spec.id, slot, signal);
    return link.write(source ?? this.#nothing, target ?? { region: link.remote(this.#blockKeys[rank]), offset: 0 }, immediate);
  }

  ring(doorbells: Uint32Array): void {
    for (let word = 0; word < doorbells.length; word++) {
      if (doorbells[word] === 0) continue;
      for (let bit = 0; bit < 32; bit++) {
        if ((doorbells[word] & (1 << bit)) === 0) continue;
        const rank = word * 32 + bit;
        if (rank === this.rank) this.#pumpAgain = true;
        else this.#ringRank(rank);
      }
      doorbells[word] = 0;
    }
  }

  progress(): void {
    this.pump();
  }

  // ── what arrives ────────────────────────────────────────────────────────────────────────────────────────────────

  onSignal(slot: number, signal: number): void {
    if (slot >= this.#slotCount || signal >= this.#signalMax)
      throw new ShoalError('protocol', `signal ${signal} of slot ${slot} does not exist`);
    this.blocks[this.rank].raise(slot, signal);
    this.pump();
  }

  onBegin(rank: number, completed: number, line: Uint8Array): void {
    const block = this.blocks[rank];
    if (!block || this.links[rank]?.loadStore) throw new ShoalError('protocol', 'unexpected begin message');
    const published = new DataView(line.buffer, line.byteOffset, line.byteLength).getUint32(beginPublishedOffset, true);
    const slot = (published - 1) % this.#slotCount;
    if (published === 0) throw new ShoalError('protocol', 'begin message without a sequence number');
    block.completed = completed;
    // The announcement itself is stored last, by publish; nobody but this thread reads the mirror.
    block.beginLine(slot).set(line);
    block.publish(slot, published);
    this.pump();
  }

  onCompleted(rank: number, completed: number): void {
    if (!this.blocks[rank]) throw new ShoalError('protocol', 'unexpected completed message');
    this.blocks[rank].completed = completed;
    this.pump();
  }

  onControl(rank: number, message: ControlMessage): void {
    switch (message.type) {
      case 'group-open':
        this.#onOpen(rank, message.key, message.offset);
        return;
      case 'leave':
        this.#callsAtLeave[rank] = message.calls;
        this.#world.pointToPoint.abandon(this, this.#leftError(rank), this.spec.globalRanks[rank]);
        this.pump();
        return;
      case 'abort':
        this.fail(ShoalError.fromData(message.error), { tellOthers: false });
        return;
      case 'report':
        this.#onReport(rank, message);
        return;
      default:
        throw new ShoalError('protocol', `control message '${message.type}' is not for groups`);
    }
  }

  /** The link to a member closed. `error` undefined: in an orderly way. */
  onLinkClosed(rank: number, error: ShoalError | undefined): void {
    if (this.#status === 'closed' || this.#status === 'failed') return;
    const calls = this.#callsAtLeave[rank];
    if (error === undefined && calls !== undefined) {
      this.pump();
      return;
    }
    const global = this.spec.globalRanks[rank];
    const doing = this.#inFlight[0] ?? this.#queue[0] ?? this.#laneQueue[0];
    const during = doing ? `during ${describeCall(doing.call, doing.sequence)}` : 'between collectives';
    this.fail(
      new ShoalError(
        'peer-lost',
        `rank ${global} was lost ${during} of group '${this.spec.name}': ${error?.message ?? 'it closed its connection'}; see that rank's own output`,
        {
          peer: global,
          rank: this.#world.rank,
          operation: doing?.call.kind,
          sequence: doing?.sequence,
          cause: error,
        },
      ),
    );
  }

  #onOpen(rank: number, key: number, offset: number): void {
    const link = must(this.links[rank], () => 'another rank opens');
    if (this.blocks[rank]) throw new ShoalError('protocol', `rank ${rank} opened group '${this.spec.name}' twice`);
    const slots = this.#slotCount + laneSlots;
    const bytes = controlBlockBytes(slots, this.#signalMax);
    if (link.loadStore) {
      const region = link.map(key);
      if (offset + bytes > region.bytes) throw new ShoalError('protocol', `control block of rank ${rank} does not fit its region`);
      this.blocks[rank] = new ControlBlock(region.buffer, offset, slots, this.#signalMax);
    } else {
      this.blocks[rank] = new ControlBlock(new ArrayBuffer(bytes), 0, slots, this.#signalMax);
    }
    this.#blockKeys[rank] = key;
    this.#checkOpen();
  }

  #checkOpen(): void {
    for (let rank = 0; rank < this.size; rank++) if (!this.blocks[rank]) return;
    // Others may have opened before this rank has said so itself.
    if (this.#status !== 'opening' || !this.#opened) return;
    this.#status = 'open';
    const shares = this.#laneShares();
    if (shares) this.#world.onLane(this.spec.id, shares);
    this.#opened.resolve();
    this.#opened = undefined;
    this.pump();
  }

  /** How the main thread maps the control blocks; undefined unless all ranks share memory. */
  #laneShares(): RegionShare[] | undefined {
    const { allocator } = this.#world;
    if (allocator.kind !== 'shared' || this.#networkPeers.length > 0) return undefined;
    return this.links.map((link, rank) => {
      if (link === undefined) return this.#nothing.region.share;
      return decodeHandle(link.remote(this.#blockKeys[rank]).handle);
    });
  }

  // ── late, lost and disagreeing ranks ────────────────────────────────────────────────────────────────────────────

  #armWatchdog(operation: Operation | LaneEntry): void {
    const { slowMs } = this.#world.settings;
    const due = operation.warned ? operation.timeoutMs : Math.min(slowMs, operation.timeoutMs);
    const atMs = operation.submittedMs + due;
    if (atMs >= this.#watchdogAtMs) return;
    this.#watchdog?.cancel();
    this.#watchdogAtMs = atMs;
    this.#watchdog = this.#world.clock.setTimer(Math.max(0, atMs - this.#world.clock.now()), () => this.#watch());
  }

  #watch(): void {
    this.#watchdogAtMs = Infinity;
    if (this.#status !== 'open') return;
    const nowMs = this.#world.clock.now();
    for (const operation of [...this.#inFlight, ...this.#queue, ...this.#laneQueue]) {
      const waitedMs = nowMs - operation.submittedMs;
      if (waitedMs >= operation.timeoutMs - 0.5) {
        this.#diagnose('timeout', operation.sequence, operation.timeoutMs);
        return;
      }
      if (!operation.warned && waitedMs >= this.#world.settings.slowMs - 0.5) {
        operation.warned = true;
        this.#world.log.warn(
          `${describeCall(operation.call, operation.sequence)} of group '${this.spec.name}' waits for ${this.#lateRanks(operation)}`,
        );
      }
      this.#armWatchdog(operation);
    }
  }

  #lateRanks(operation: Operation | LaneEntry): string {
    const slot = operation instanceof Operation ? operation.slot : this.#slotCount + (operation.ordinal % laneSlots);
    const late = this.spec.globalRanks.filter((_, rank) => this.blocks[rank].published(slot) !== operation.sequence + 1);
    return late.length > 0 ? `rank ${late.join(', ')}` : 'data; all ranks have arrived';
  }

  #diagnose(code: 'mismatch' | 'timeout', sequence: number, timeoutMs: number): void {
    if (this.#diagnosis || this.#status !== 'open') return;
    const call = this.#history.find((entry) => entry.sequence === sequence)?.call;
    this.#diagnosis = new Diagnosis({
      code,
      sequence,
      timeoutMs,
      operation: call?.kind ?? 'collective',
      globalRanks: this.spec.globalRanks,
    });
    this.#callsAtLeave.forEach((calls, rank) => {
      if (calls !== undefined) this.#diagnosis?.add(rank, { text: `left the group after ${calls} calls`, arrived: false });
    });
    // A call that the main thread is still trying to make by itself is on its way here, with its name and place.
    if (call || this.blocks[this.rank].called <= sequence) this.#reportOwn();
    else this.#world.clock.setTimer(diagnosisMs / 2, () => this.#reportOwn(), { keepAlive: true });
    this.#world.clock.setTimer(diagnosisMs, () => this.#conclude(), { keepAlive: true });
    this.#concludeIfComplete();
  }

  /** Tells the others, once, what this rank called. */
  #reportOwn(): void {
    const diagnosis = this.#diagnosis;
    if (!diagnosis || diagnosis.has(this.rank) || this.#status !== 'open') return;
    const { code, sequence, timeoutMs } = diagnosis;
    const own = this.#reportOn(sequence);
    diagnosis.add(this.rank, own);
    const message = encodeControl({ type: 'report', group: this.spec.id, code, sequence, timeoutMs, ...own });
    for (const link of this.links) link?.post(message);
    this.#concludeIfComplete();
  }

  #onReport(rank: number, message: Extract<ControlMessage, { type: 'report' }>): void {
    this.#diagnose(message.code, message.sequence, message.timeoutMs);
    this.#diagnosis?.add(rank, message);
    this.#concludeIfComplete();
  }

  #leftError(rank: number): ShoalError {
    const global = this.spec.globalRanks[rank];
    return new ShoalError('peer-lost', `rank ${global} left group '${this.spec.name}' before it took part in a transfer`, { peer: global });
  }

  #concludeIfComplete(): void {
    if (this.#diagnosis?.complete) this.#conclude();
  }

  #conclude(): void {
    if (this.#diagnosis && this.#status === 'open') this.fail(this.#diagnosis.error(this.spec.name), { tellOthers: false });
  }

  /** What this rank knows of its own call number `sequence`. */
  #reportOn(sequence: number): Report {
    const made = this.#history.find((entry) => entry.sequence === sequence);
    if (made) return { text: describeCall(made.call, sequence), arrived: true };
    const own = this.blocks[this.rank];
    for (let slot = 0; slot < this.#slotCount + laneSlots; slot++) {
      if (own.published(slot) === sequence + 1) return { text: describeContract(own.contract(slot)), arrived: true };
    }
    if (sequence < own.called) return { text: `made this call long ago and has made ${own.called} since`, arrived: true };
    return { text: `has not called it; ${this.#lastCall()}`, arrived: false };
  }

  #lastCall(): string {
    const own = this.blocks[this.rank];
    if (own.called === 0) return 'it has called nothing yet';
    const remembered = this.#history.find((entry) => entry.sequence === own.called - 1);
    if (remembered) return `its last call was ${describeCall(remembered.call, remembered.sequence)}`;
    const slot = own.slots.findIndex((_, each) => own.published(each) === own.called);
    return `its last call was ${slot < 0 ? `#${own.called - 1}` : describeContract(own.contract(slot))}`;
  }

  #abandonAll(error: ShoalError): void {
    const ended = [...this.#inFlight, ...this.#queue];
    this.#inFlight = [];
    this.#queue.length = 0;
    for (const operation of ended) {
      operation.execution?.abandon();
      operation.finish(error);
      this.#world.recorder.finished(this.spec, operation, error);
    }
    for (const entry of this.#laneQueue.splice(0)) entry.complete(error);
    this.#world.pointToPoint.abandon(this, error);
    this.#idle?.();
  }
}
