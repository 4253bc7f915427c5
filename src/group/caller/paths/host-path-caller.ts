/** The synchronous path: collectives of ranks that share memory, up to a size or on private buffers, run on the calling thread
 *  and come back complete. Which calls take it follows from what all ranks agree on (kind, dtype, size, group), never from local facts;
 *  on which thread it ends is a local matter: when peers are late, the comm thread takes over.
 *
 *      call ─▶ operation.start ──── done ──▶ completed work                        0.2–1 µs for small operations
 *                   └─ waiting ─▶ comm thread: host path.resume … ─▶ work        a later call queues behind it there
 *      large call on shared buffers ─▶ comm thread, after a delay; this thread takes it back if the script only waits for it
 *
 *  A call without a wait makes progress whatever this thread does next, and whatever it did before.
 *  Private arrays are used in place; if the comm thread must take over, they are first copied to memory that it reaches. */
import { assert } from '../../../base/assert.ts';
import { BoundedCache } from '../../../base/collections/bounded-cache.ts';
import { CallSites, type CallSite } from '../../../base/call-site.ts';
import type { ControlBlock } from '../../../collectives/control-block.ts';
import type { TakeBack } from '../../../comm/caller/comm-host.ts';
import { completedWork, PendingWork, type SettlingWork } from '../../../comm/caller/work.ts';
import type { Region } from '../../../memory/region.ts';
import { machineStatuses, notStarted, RepetitionNumber, type Repetition } from '../../../memory/step-machine.ts';
import type { CallBuffers } from '../call-buffers.ts';
import {
  catchUp,
  drawRun,
  handOverCommand,
  handOverHooks,
  openRegions,
  type FastPath,
  type FastRequest,
  type OpenFastPath,
} from '../fast-path.ts';
import { largestBlockBytes } from '../tensor-memory.ts';
import type { WorldHandle } from '../world-handle.ts';
import { callKey, type CollectiveCall } from '../../../call/contract.ts';
import { signalMaxOf, type GroupSpec } from '../../../call/group-spec.ts';
import { hasPrivate, operationKey, type LocalBuffers } from '../../../call/local-buffers.ts';
import type { HostPathPlans } from '../../../call/planner.ts';
import type { Route } from '../../../call/route.ts';
import {
  HostPath,
  hostPathBlock,
  type HostPathName,
  type HostPathOperation,
  type HostPathOptions,
  type HostPathPosition,
  type HostPathRest,
  type HostPathStatus,
} from '../../../call/host-path.ts';

/** Operations kept bound to their buffers. */
const boundMax = 512;
/** A private array that is larger is let go when its call has ended; a smaller one stays bound for the next such call. */
const keptBytesMax = 64 * 1024;
/** The cost of letting the comm thread take over a call on a private array: two copies. To wait as long for late peers costs at most as
 *  much again. */
const nsPerPrivateByte = 0.4;

/** A first run waits at most so many times as long as others do. */
const firstSpinsMax = 300;

interface HostPathCallerOptions {
  readonly world: WorldHandle;
  readonly spec: GroupSpec;
  /** The control blocks of all ranks, by group rank. */
  readonly blocks: readonly ControlBlock[];
  /** The regions that the control blocks lie in; closed with the host path. */
  readonly regions: readonly Region[];
  readonly spinNs: number;
  readonly yields: boolean;
}

/** A call's place among the group's calls and among the host path's. */
interface Place {
  readonly sequence: number;
  readonly ordinal: number;
}

/** The time until the comm thread has a large call: long enough to come to a wait from a call that is followed by nothing else. Where the
 *  tensor has taken the caches that takes longer. */
const handOverNs = 50_000;
const handOverNsPerByte = 0.01;
const handOverNsMax = 1e6;
/** The cost of running a large call: whoever blocks for one waits as long for late peers before the comm thread does. */
const nsPerWaitedByte = 0.2;
/** The same for a call that is awaited. The event loop has other things to do: about as long as the call itself takes. */
const nsPerAwaitedByte = 0.05;
/** Larger ones would keep the event loop for longer than their wait is shortened by: a hand-over is a few percent of them. */
const awaitedBytesMax = 64 * 1024 * 1024;

/** An operation that the comm thread has, or will have in a moment, and has not finished. */
interface HandedOver extends Place {
  readonly operation: HostPathOperation;
  readonly site: CallSite;
  /** False: the comm thread has it. */
  takeBack: TakeBack;
  readonly request: FastRequest;
  readonly work: PendingWork;
  /** This thread has announced it. */
  begun: boolean;
}

/** One of the host paths, as far as this thread has come. */
interface Track {
  readonly hostPath: HostPath;
  /** Numbers of the repetitions, indexed by `RepetitionNumber`. */
  readonly numbers: Float64Array;
  /** Calls handed over, in their order. */
  readonly handedOver: HandedOver[];
}

class HostPathCaller implements FastPath<HostPathOperation> {
  readonly comesInPieces = false;
  readonly called: Float64Array;
  readonly #options: HostPathCallerOptions;
  readonly #tracks: Readonly<Record<HostPathName, Track>>;
  readonly #own: ControlBlock;
  /** Operations by call and buffers; those on private arrays by call alone. */
  readonly #bound = new BoundedCache<string, HostPathOperation>(boundMax);
  readonly #sites = new CallSites();

  constructor(options: HostPathCallerOptions) {
    this.#options = options;
    const { world, spec, blocks, yields } = options;
    const { client, planning, settings, allocator } = world;
    this.#own = blocks[spec.rank];
    this.called = this.#own.callWords.runs;
    const size = spec.globalRanks.length;
    const place = { rank: spec.rank, size, blocks, slotCount: settings.inFlightMax, machine: planning.machine, yields };
    const peerRegion: HostPathOptions['peerRegion'] = (rank, key) => client.peerRegions.view(spec.globalRanks[rank], key, allocator);
    const track = (name: HostPathName): Track => ({
      hostPath: new HostPath({ ...place, name, peerRegion }),
      numbers: new Float64Array(2),
      handedOver: [],
    });
    this.#tracks = { small: track('small'), large: track('large') };
  }

  /** Stages private buffers that their plan has peers touch. */
  bind(call: CollectiveCall, route: Route, reach: CallBuffers): HostPathOperation {
    assert(route.path === 'host', () => `a call of the ${route.path} path is not the host's`);
    const { plans, isSmall } = route;
    const { hostPath } = this.#tracks[isSmall ? 'small' : 'large'];
    const buffers = reachable(plans, reach);
    const isPrivate = hasPrivate(buffers);
    const key = isPrivate ? callKey(call) : operationKey(call, buffers);
    const known = this.#bound.get(key);
    if (known) {
      if (isPrivate) hostPath.rebindOwn(known, buffers);
      return known;
    }
    const { client } = this.#options.world;
    const beganMs = client.now();
    const operation = this.#bound.put(key, hostPath.bind(call, plans, buffers));
    operation.boundNs = (client.now() - beganMs) * 1e6;
    return operation;
  }

  run(operation: HostPathOperation, request: () => FastRequest, buffers: LocalBuffers, status = notStarted): SettlingWork {
    const track = this.#tracks[operation.hostPath];
    if (status !== notStarted) return this.#goOn(track, operation, status, request, 0);
    this.#checkRoom(operation, buffers);
    if (buffers !== operation.buffers) track.hostPath.rebindOwn(operation, buffers);
    const work = this.#run(track, operation, request);
    if (operation.privateBytes > keptBytesMax) track.hostPath.rebindOwn(operation, {});
    return work;
  }

  /** When peers are late, what is private must be staged. @throws ShoalError when there is no room for that. */
  #checkRoom({ privateBytes }: HostPathOperation, buffers: LocalBuffers): void {
    if (privateBytes <= largestBlockBytes) return;
    for (const { view } of Object.values(buffers)) this.#options.world.memory.checkFits(view.length);
  }

  #run(track: Track, operation: HostPathOperation, request: () => FastRequest): SettlingWork {
    const { client, trace } = this.#options.world;
    const { handedOver, numbers } = track;
    const isCommThreads = operation.hostPath === 'large' && !operation.isPrivate;
    if (handedOver.length > 0) catchUp(client, () => handedOver.length, this.#options.spinNs);
    const startMs = trace.enabled ? trace.now() : 0;
    const startsHere = !isCommThreads && handedOver.length === 0 && !this.#own.failed;
    if (startsHere && operation.hasRun) {
      const status = this.#start(track, operation);
      if (status !== notStarted) return this.#goOn(track, operation, status, request, startMs);
    }
    const [sequence, ordinal] = [this.called[0]++, numbers[RepetitionNumber.Ordinal]++];
    if (startsHere && !operation.hasRun) {
      operation.hasRun = true;
      const come = this.#startAt(track, operation, sequence, ordinal, this.#patienceNs(operation));
      return this.#finish(track, operation, come, request, startMs);
    }
    const position: HostPathPosition = { code: operation.isPrivate ? 'private' : 'shared', pc: 0 };
    return this.#handOver(track, operation, { sequence, ordinal, position, begun: false }, request);
  }

  /** Starts a call that has its numbers. */
  #startAt({ hostPath }: Track, operation: HostPathOperation, sequence: number, ordinal: number, patienceNs: number): HostPathStatus {
    this.#own.logCall(sequence, operation.contract);
    return hostPath.resume(operation, sequence, ordinal, { code: operation.bound.name, pc: 0 }, patienceNs);
  }

  /** Starts the call by its repetition. @returns what that returns; `notStarted`: the group has failed. */
  #start(track: Track, operation: HostPathOperation): number | undefined {
    operation.start ??= this.#repetitionOf(track, operation);
    const status = operation.start();
    if (status !== notStarted || this.#own.failed) return status;
    // Memory of this process has been unmapped since it was made.
    operation.start = this.#repetitionOf(track, operation);
    return operation.start();
  }

  #repetitionOf({ hostPath, numbers }: Track, operation: HostPathOperation): Repetition {
    const { world, yields } = this.#options;
    const { code, segments, whole } = operation.bound;
    const repetition = world.planning.machine.repetition({
      ...{ code, segments, state: hostPath.state, operands: Uint32Array.from(whole.ordinalOperands) },
      ...{ numbers, ...this.#own.callWords, record: operation.contract, spinNs: this.#patienceNs(operation), yields },
    });
    operation.repetition = world.trace.enabled || whole.signalCount > 0 ? undefined : repetition;
    return repetition;
  }

  /** Goes on with the latest call, which its repetition has begun. @param status as that has it. */
  #goOn(track: Track, operation: HostPathOperation, status: number | undefined, request: () => FastRequest, startMs: number): SettlingWork {
    const ordinal = track.numbers[RepetitionNumber.Ordinal] - 1;
    const stopped = status === undefined ? 'done' : machineStatuses[status];
    return this.#finish(track, operation, track.hostPath.goOn(operation, ordinal, stopped, this.#patienceNs(operation)), request, startMs);
  }

  /** Ends the latest call, or hands it over. @param come what it has come to. */
  #finish(track: Track, operation: HostPathOperation, come: HostPathStatus, request: () => FastRequest, startMs: number): SettlingWork {
    const { hostPath, numbers } = track;
    const [sequence, ordinal] = [this.called[0] - 1, numbers[RepetitionNumber.Ordinal] - 1];
    const patienceNs = this.#patienceNs(operation);
    const ended = this.#ended(hostPath, operation, sequence, ordinal, patienceNs, come);
    operation.boundNs = 0;
    this.#draw(ended, operation, sequence, ordinal, startMs);
    if (ended) return completedWork;
    return this.#handOver(track, operation, { sequence, ordinal, position: hostPath.positionOf(operation), begun: true }, request);
  }

  /** Peers that arrive later at its first run are making the same code, in turns where they share CPUs. */
  #patienceNs({ privateBytes, boundNs }: HostPathOperation): number {
    const { spinNs, spec } = this.#options;
    return spinNs + privateBytes * nsPerPrivateByte + Math.min(boundNs * spec.globalRanks.length, spinNs * firstSpinsMax);
  }

  /** True when the run that has come to `status` ends here. */
  #ended(
    hostPath: HostPath,
    operation: HostPathOperation,
    sequence: number,
    ordinal: number,
    patienceNs: number,
    status: HostPathStatus,
  ): boolean {
    if (status === 'unmapped') {
      this.#options.world.client.drain();
      status = hostPath.resume(operation, sequence, ordinal, hostPath.positionOf(operation), patienceNs);
    }
    // The machine stops for bells to be rung before it waits.
    while (this.#ring(hostPath) && status === 'waiting')
      status = hostPath.resume(operation, sequence, ordinal, hostPath.positionOf(operation), patienceNs);
    return status === 'done';
  }

  /** This thread has nothing to do but wait for `work`: it runs that if it is the next, and the comm thread does not have it. */
  #runHere(track: Track, work: PendingWork, nsPerByte: number): void {
    const { hostPath, handedOver } = track;
    // The comm thread is awake already for several calls: taking turns with it would cost a wake-up for each, on every rank.
    if (handedOver.length !== 1 || handedOver[0].work !== work) return;
    const [head] = handedOver;
    const { operation, sequence, ordinal, site } = head;
    if (this.#own.failed || !head.takeBack()) return;
    head.begun = true;
    const { trace, client } = this.#options.world;
    const startMs = trace.enabled ? trace.now() : 0;
    const { tally } = operation;
    const beganUs = tally?.nowUs ?? 0;
    let ended = false;
    try {
      const patienceNs = this.#options.spinNs + operation.bytes * nsPerByte;
      const come = this.#startAt(track, operation, sequence, ordinal, patienceNs);
      ended = this.#ended(hostPath, operation, sequence, ordinal, patienceNs, come);
      this.#draw(ended, operation, sequence, ordinal, startMs, site);
    } catch {
      // The comm thread comes to the same, and ends the group with it.
    }
    if (ended) tally?.ran(beganUs);
    if (ended) work.settle(undefined);
    else client.submit(work, handOverCommand(this.#options.spec, head.request, sequence, restOf(head, hostPath.positionOf(operation))));
  }

  close(): void {
    for (const region of this.#options.regions) region.close();
  }

  /** Somebody goes on when the work is done. When the script has nothing else to do, it is run here. */
  #onAwaited(track: Track, { bytes }: HostPathOperation, work: PendingWork): void {
    if (bytes > awaitedBytesMax) return;
    setImmediate(() => this.#runHere(track, work, nsPerAwaitedByte));
  }

  #handOver(
    track: Track,
    operation: HostPathOperation,
    at: Place & { readonly position: HostPathPosition; readonly begun: boolean },
    request: () => FastRequest,
  ): SettlingWork {
    const { world, spec } = this.#options;
    const { client } = world;
    const { position, ...place } = at;
    const asked = request();
    const mayComeBack = position.pc === 0 && !operation.isPrivate && track.handedOver.length === 0;
    const hooks = handOverHooks(
      asked,
      () => handedOver.begun,
      () => settled(track, at.ordinal),
    );
    const work: PendingWork = new PendingWork(client, `${asked.call.kind} of group '${spec.name}'`, {
      ...hooks,
      ...(mayComeBack && {
        onWait: () => this.#runHere(track, work, nsPerWaitedByte),
        onAwaited: () => this.#onAwaited(track, operation, work),
      }),
    });
    const handedOver: HandedOver = { ...place, operation, site: asked.site, request: asked, work, takeBack: () => false };
    track.handedOver.push(handedOver);
    track.numbers[RepetitionNumber.Closed] = 1;
    const command = handOverCommand(spec, asked, at.sequence, restOf(handedOver, position));
    const delayNs = Math.min(handOverNsMax, Math.floor(handOverNs + operation.bytes * handOverNsPerByte));
    if (mayComeBack) handedOver.takeBack = client.submitLater(work, command, delayNs);
    else client.submit(work, command);
    return work;
  }

  /** True when some bell has been rung. */
  #ring({ doorbells }: HostPath): boolean {
    for (let word = 0; word < doorbells.length; word++) {
      if (doorbells[word] === 0) continue;
      this.#options.world.client.post({ type: 'ring', group: this.#options.spec.id, doorbells: doorbells.slice() });
      doorbells.fill(0);
      return true;
    }
    return false;
  }

  /** @param site undefined: the call that is being made. */
  #draw(ended: boolean, operation: HostPathOperation, sequence: number, ordinal: number, startMs: number, site?: CallSite): void {
    const { world, spec, blocks } = this.#options;
    if (!world.trace.enabled) return;
    const { call, plans, bound } = operation;
    const where = call.site ?? (site ?? this.#sites.current())();
    const span = { call: { ...call, site: where }, algorithm: plans.algorithms[bound.name], path: 'host path' } as const;
    const slot = this.#tracks[operation.hostPath].hostPath.slotOf(ordinal);
    const outcome = ended
      ? { text: '(synchronous)', movements: bound.whole.movements }
      : { late: spec.globalRanks.find((_, rank) => !blocks[rank].holds(slot, sequence)) };
    drawRun(world.trace, spec, span, { sequence, startMs, outcome });
  }
}

/** @param position the position to go on from. */
function restOf({ operation, ordinal }: HandedOver, position: HostPathPosition): HostPathRest {
  const { hostPath, isPrivate } = operation;
  return { path: 'host', hostPath, ordinal, position, announced: isPrivate ? 'private' : 'shared' };
}

function settled({ handedOver, numbers }: Track, ordinal: number): void {
  const index = handedOver.findIndex((each) => each.ordinal === ordinal);
  if (index >= 0) handedOver.splice(index, 1);
  if (handedOver.length === 0) numbers[RepetitionNumber.Closed] = 0;
}

/** The arguments where they are, if the call has a plan for that; else staged. */
function reachable(plans: HostPathPlans, reach: CallBuffers): LocalBuffers {
  const buffers = reach.local;
  if (plans.hasPrivate || !hasPrivate(buffers)) return buffers;
  reach.share();
  return reach.local;
}

/** Opens the host fast path of a group; undefined where it has none. All conditions are the same on every rank of the group.
 *  @throws ShoalError `out-of-memory` when descriptors or memory are used up. */
export function openHostPath(world: WorldHandle, spec: GroupSpec): OpenFastPath | undefined {
  const { settings, client, allocator } = world;
  const share = client.fastPaths.get(spec.id);
  if (share?.path !== 'host' || settings.syncBytesMax === 0 || settings.contract === 'strict' || spec.library !== undefined)
    return undefined;
  const regions = openRegions(allocator, share.blocks);
  if (!regions) return undefined;
  const size = spec.globalRanks.length;
  const shape = { slotCount: settings.inFlightMax, signalMax: signalMaxOf(size) };
  const blocks = regions.map(({ buffer, bytes }) => hostPathBlock(spec, new Uint8Array(buffer, 0, bytes), shape));
  // Yielding ranks take turns on the CPUs: their time to arrive grows with their number.
  const spinNs = settings.syncSpinMicroseconds * 1000 * (share.yields ? size : 1);
  return { fast: new HostPathCaller({ world, spec, blocks, regions, spinNs, yields: share.yields }), hostBytesMax: settings.syncBytesMax };
}
