/** The network path as the main thread sees it: small collectives between hosts, announced, awaited and ended by the calling
 *  thread. All ranks choose it by the same facts; the thread on which a call ends is a local matter.
 *
 *      call ─▶ begin ─▶ all there within the spin time ──▶ completed work
 *                   ├─▶ the script blocks or awaits at once: it goes on here, in turns with the event loop ─▶ work
 *                   └─▶ comm thread, which goes on whatever this thread does next ─▶ work      later calls queue behind it */
import { assert } from '../../../base/assert.ts';
import { BoundedCache } from '../../../base/collections/bounded-cache.ts';
import { CallSites, type CallSite } from '../../../base/call-site.ts';
import { clamp } from '../../../base/numbers.ts';
import type { ControlBlock } from '../../../collectives/control-block.ts';
import { completedWork, PendingWork, type SettlingWork } from '../../../comm/caller/work.ts';
import type { TakeBack } from '../../../comm/caller/comm-host.ts';
import type { NativeWire } from '../../../memory/native-wire.ts';
import type { Region, RegionAllocator } from '../../../memory/region.ts';
import type { CallBuffers } from '../call-buffers.ts';
import {
  catchUp,
  drawRun,
  handOverCommand,
  handOverHooks,
  openRegions,
  type FastOperation,
  type FastPath,
  type FastRequest,
  type OpenFastPath,
} from '../fast-path.ts';
import type { WorldHandle } from '../world-handle.ts';
import { hostPathBlock } from '../../../call/host-path.ts';
import { callKey, type CollectiveCall } from '../../../call/contract.ts';
import { signalMaxOf, type GroupSpec } from '../../../call/group-spec.ts';
import { hasPrivate, operationKey, type LocalBuffers } from '../../../call/local-buffers.ts';
import type { Planner } from '../../../call/planner.ts';
import type { Route } from '../../../call/route.ts';
import type { NetworkPathShare } from '../../shared/comm-protocol.ts';
import { NetworkPath, networkPathSpec, type NetworkPathOperation, type NetworkPathStatus } from '../../../call/network-path.ts';
import { NetworkPathWire } from '../../../call/network-path-wire.ts';

/** Operations kept bound to their buffers. */
const boundMax = 512;
/** Where hops take long, a call waits for all announcements as long as this many take, but at most this many times its usual time. */
const hopsAwaited = 8;
/** A script that does nothing but wait for a call goes on with it for so many times the usual time before the comm thread takes over, which
 *  would be woken for each message of it. */
const waitedSpins = 20;

interface NetworkPathCallerOptions {
  readonly world: WorldHandle;
  readonly spec: GroupSpec;
  /** The control block of this rank. */
  readonly own: ControlBlock;
  /** The regions that this thread maps for the path; closed with it. */
  readonly regions: readonly Region[];
  readonly wire: NetworkPathWire;
  /** The time that a call itself waits for all announcements. */
  readonly announcedSpinNs: number;
}

/** A call on its way. */
interface NetworkPathCall {
  readonly operation: NetworkPathOperation & Pick<FastOperation, 'tally'>;
  readonly sequence: number;
  readonly ordinal: number;
}

class NetworkPathCaller implements FastPath<NetworkPathOperation> {
  readonly comesInPieces = true;
  readonly called: Float64Array;
  readonly #options: NetworkPathCallerOptions;
  readonly #networkPath: NetworkPath;
  readonly #bound = new BoundedCache<string, NetworkPathOperation>(boundMax);
  readonly #sites = new CallSites();
  #ordinal = 0;
  /** Operations that the comm thread has taken over and not finished. */
  #handedOver = 0;
  /** The script waited for the latest such operation before the comm thread had it, and is expected to do so again. */
  #waits = false;

  constructor(options: NetworkPathCallerOptions) {
    this.#options = options;
    const { world, spec, own, wire } = options;
    this.called = own.callWords.runs;
    const place = { rank: spec.rank, size: spec.globalRanks.length, firstSlot: world.settings.inFlightMax };
    this.#networkPath = new NetworkPath({ ...place, own, wire, machine: world.planning.machine });
  }

  bind(call: CollectiveCall, route: Route, reach: CallBuffers): NetworkPathOperation {
    assert(route.path === 'network', () => `a call of the ${route.path} path is not the network's`);
    const buffers = reach.local;
    const isPrivate = hasPrivate(buffers);
    const key = isPrivate ? callKey(call) : operationKey(call, buffers);
    const known = this.#bound.get(key);
    if (known && isPrivate) this.#networkPath.rebind(known, buffers);
    return known ?? this.#bound.put(key, this.#networkPath.bind(call, route.plan, buffers));
  }

  run(operation: NetworkPathOperation, request: () => FastRequest, buffers: LocalBuffers): SettlingWork {
    if (buffers !== operation.buffers) this.#networkPath.rebind(operation, buffers);
    const { own, world } = this.#options;
    const { trace, client, settings } = world;
    const usualNs = settings.syncSpinMicroseconds * 1000;
    const spinNs = operation.spreads ? usualNs : this.#options.announcedSpinNs;
    const call = { operation, sequence: this.called[0]++, ordinal: this.#ordinal++ };
    if (this.#handedOver > 0) catchUp(client, () => this.#handedOver, spinNs);
    if (this.#handedOver > 0 || own.failed) return this.#handOver(call, request(), false);
    const startMs = trace.enabled ? trace.now() : 0;
    own.logCall(call.sequence, operation.contract);
    this.#networkPath.begin(operation, call.sequence, call.ordinal);
    const status = this.#networkPath.advance(operation, call.sequence, call.ordinal, spinNs);
    if (trace.enabled) this.#draw(call, startMs, status === 'done', this.#sites.current());
    return status === 'done' ? completedWork : this.#handOver(call, request(), true);
  }

  close(): void {
    this.#options.wire.close();
    for (const region of this.#options.regions) region.close();
  }

  /** A call that has begun may be taken back by a script that waits for it. */
  #handOver(call: NetworkPathCall, request: FastRequest, begun: boolean): SettlingWork {
    const { spec, world } = this.#options;
    const { client, settings, trace } = world;
    const { operation, sequence, ordinal } = call;
    const usualNs = settings.syncSpinMicroseconds * 1000;
    let takeBack: TakeBack = () => false;
    const submit = (delayNs: number): void => {
      const way = { path: 'network', ordinal, progress: begun ? { ...operation.progress } : undefined } as const;
      const command = handOverCommand(spec, request, sequence, way);
      if (delayNs > 0) takeBack = client.submitLater(work, command, delayNs);
      else client.submit(work, command);
    };
    const goOn = (spinNs: number, turns: number): void => {
      this.#waits = takeBack();
      if (!this.#waits) return;
      const beganUs = operation.tally?.nowUs ?? 0;
      const startMs = trace.enabled ? trace.now() : 0;
      const status = this.#advance(call, request, spinNs);
      if (trace.enabled) this.#draw(call, startMs, status === 'done', request.site);
      if (status === 'done') {
        operation.tally?.ran(beganUs);
        return work.settle(undefined);
      }
      submit(status === 'waiting' && turns > 0 ? waitedSpins * usualNs : 0);
      if (turns > 0) setImmediate(goOn, spinNs, turns - 1);
    };
    this.#handedOver += 1;
    const hasBegun = (): boolean => begun;
    const work: PendingWork = new PendingWork(client, `${request.call.kind} of group '${spec.name}'`, {
      ...handOverHooks(request, hasBegun, () => (this.#handedOver -= 1)),
      onWait: () => goOn(waitedSpins * usualNs, 0),
      onAwaited: () => setImmediate(goOn, usualNs, waitedSpins),
    });
    submit(begun ? (this.#waits ? waitedSpins * usualNs : usualNs) : 0);
    return work;
  }

  /** Goes on with a call that was taken back. Undefined: the comm thread is to find out why that cannot be. */
  #advance({ operation, sequence, ordinal }: NetworkPathCall, { local }: FastRequest, spinNs: number): NetworkPathStatus | undefined {
    if (this.#options.own.failed) return undefined;
    try {
      this.#networkPath.rebind(operation, local());
      this.#networkPath.announceToAll(operation, ordinal);
      return this.#networkPath.advance(operation, sequence, ordinal, spinNs);
    } catch {
      return undefined;
    }
  }

  #draw({ operation, sequence, ordinal }: NetworkPathCall, startMs: number, isDone: boolean, site: CallSite): void {
    const { spec, world } = this.#options;
    const { call, algorithm, lowered } = operation;
    const span = { call: { ...call, site: call.site ?? site() }, algorithm, path: 'network path' } as const;
    const isLate = (rank: number): boolean => rank !== spec.rank;
    const late = isDone ? undefined : this.#networkPath.late(ordinal).find(isLate);
    const outcome = isDone
      ? { text: '(network path)', movements: lowered.movements }
      : { late: late === undefined ? undefined : spec.globalRanks[late] };
    drawRun(world.trace, spec, span, { sequence, startMs, outcome });
  }
}

/** Opens the network fast path of a group over several hosts whose ranks have agreed on one, for which the planner plans from now on;
 *  undefined where it has none. */
export function openNetworkPath(world: WorldHandle, spec: GroupSpec, planner: Planner): OpenFastPath | undefined {
  const { settings, client, allocator, native } = world;
  const share = client.fastPaths.get(spec.id);
  if (share?.path !== 'network' || !native) return undefined;
  const { rank, globalRanks } = spec;
  const [firstSlot, signalCount] = [settings.inFlightMax, signalMaxOf(globalRanks.length)];
  const opened = openShare(share, allocator, native);
  if (opened === undefined) return undefined;
  const { regions, descriptors } = opened;
  const [ownView, memory] = regions.map(({ buffer, bytes }) => new Uint8Array(buffer, 0, bytes));
  const own = hostPathBlock(spec, ownView, { slotCount: firstSlot, signalMax: signalCount });
  const networkPath = networkPathSpec(globalRanks.length, settings.syncBytesMax, share.rates);
  planner.openNetworkPath(networkPath);
  const wire = new NetworkPathWire({ native, rank, own, firstSlot, signalCount, memory, descriptors });
  // Handed over by all, a call of one hop over a slow network would arrive later still.
  const usualNs = settings.syncSpinMicroseconds * 1000;
  const announcedSpinNs = clamp(hopsAwaited * share.rates.hop * 1e9, usualNs, hopsAwaited * usualNs);
  return { fast: new NetworkPathCaller({ world, spec, own, regions, wire, announcedSpinNs }), networkBytesMax: networkPath.bytesMax };
}

/** Opens all that is shared, or nothing: undefined when the group has failed. @throws ShoalError `out-of-memory` when descriptors or memory
 *  are used up. */
function openShare(share: NetworkPathShare, allocator: RegionAllocator, native: NativeWire) {
  const regions = openRegions(allocator, [share.own, share.memory]);
  if (regions === undefined) return undefined;
  const descriptors: number[] = [];
  try {
    for (const descriptor of share.descriptors) descriptors.push(native.takeSocket(descriptor));
    return { regions, descriptors };
  } catch (thrown) {
    for (const region of regions) region.close();
    for (const descriptor of descriptors) native.closeSocket(descriptor);
    throw thrown;
  }
}
