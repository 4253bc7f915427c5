/** The network path as the main thread sees it: small collectives between hosts, announced, awaited and ended by the calling
 *  thread. All ranks choose it by the same facts; the thread on which a call ends is a local matter.
 *
 *      call ─▶ begin ─▶ all there within the spin time ──▶ completed work
 *                   └─▶ comm thread, which goes on whatever this thread does next ─▶ work      later calls queue behind it */
import { BoundedCache } from '../../base/bounded-cache.ts';
import { CallSites } from '../../base/call-site.ts';
import type { ControlBlock } from '../../collectives/control-block.ts';
import type { Region } from '../../memory/region.ts';
import type { StepMachine } from '../../memory/step-machine.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { TraceRecorder } from '../../trace/recorder.ts';
import type { CommClient } from '../thread/comm-client.ts';
import type { SharedBuffer } from '../engine/comm-protocol.ts';
import { waitName, workName, type CallSpan } from '../diagnosis/collective-spans.ts';
import { callKey, type CollectiveCall } from '../call/contract.ts';
import { NetworkPath, type NetworkPathOperation } from '../fast/network-path.ts';
import type { NetworkPathBuffers, NetworkPathWire } from '../fast/network-path-wire.ts';
import type { GroupSpec } from '../call/group-spec.ts';
import type { Route } from '../call/route.ts';
import { assert } from '../../base/assert.ts';
import type { CallBuffers } from './call-buffers.ts';
import { catchUp, type FastPath, type FastRequest } from './fast-path.ts';
import type { SettlingWork } from '../../comm/work.ts';
import { CompletedWork } from '../../comm/work.ts';

/** Operations kept bound to their buffers. */
const boundMax = 512;

export interface NetworkPathCallerOptions {
  readonly spec: GroupSpec;
  readonly client: CommClient;
  readonly machine: StepMachine;
  readonly trace: TraceRecorder;
  readonly own: ControlBlock;
  /** What this thread maps for it; closed with it. */
  readonly regions: readonly Region[];
  readonly firstSlot: number;
  readonly wire: NetworkPathWire;
  /** How long a call itself waits. */
  readonly spinNs: number;
  readonly view: (buffer: SharedBuffer) => Uint8Array;
}

/** A call on its way. */
interface NetworkPathCall {
  readonly operation: NetworkPathOperation;
  readonly sequence: number;
  readonly ordinal: number;
}

const completedWork = new CompletedWork();

export class NetworkPathCaller implements FastPath<NetworkPathOperation> {
  readonly #options: NetworkPathCallerOptions;
  readonly #networkPath: NetworkPath;
  readonly #bound = new BoundedCache<string, NetworkPathOperation>(boundMax);
  readonly #sites = new CallSites();
  #ordinal = 0;
  /** Operations that the comm thread has taken over and not finished. */
  #handedOver = 0;

  constructor(options: NetworkPathCallerOptions) {
    this.#options = options;
    const { spec, own, firstSlot, wire, machine } = options;
    this.#networkPath = new NetworkPath({ rank: spec.rank, size: spec.globalRanks.length, own, firstSlot, wire, machine });
  }

  bind(call: CollectiveCall, route: Route, reach: CallBuffers): NetworkPathOperation {
    assert(route.path === 'network', () => `a call of the ${route.path} path is not the network's`);
    const buffers = reach.share();
    const key = keyOf(call, buffers);
    const known = this.#bound.get(key);
    if (known) return known;
    const views: NetworkPathBuffers = {};
    for (const name of Object.keys(buffers) as BufferName[]) {
      const buffer = buffers[name];
      if (buffer) views[name] = this.#options.view(buffer);
    }
    return this.#bound.put(key, this.#networkPath.bind(call, route.plan, views));
  }

  announce(calls: number): void {
    this.#options.own.called = calls;
  }

  checkRoom(): void {}

  run(operation: NetworkPathOperation, sequence: number, request: () => FastRequest): SettlingWork {
    const { own, spinNs, trace } = this.#options;
    const call = { operation, sequence, ordinal: this.#ordinal++ };
    if (this.#handedOver > 0) catchUp(this.#options.client, () => this.#handedOver, spinNs);
    if (this.#handedOver > 0 || own.failed) return this.#handOver(call, request(), { begun: false });
    const startMs = trace.enabled ? trace.now() : 0;
    own.logCall(sequence, operation.contract);
    this.#networkPath.begin(operation, sequence, call.ordinal);
    const status = this.#networkPath.advance(operation, sequence, call.ordinal, { spinNs, sleepMs: 0 });
    if (status === 'done') {
      if (trace.enabled) this.#draw(call, startMs, this.#sites.current()());
      return completedWork;
    }
    const made = request();
    if (trace.enabled) this.#drawWait(call, startMs, made.site());
    return this.#handOver(call, made, { begun: true });
  }

  end(): void {}

  close(): void {
    this.#options.wire.close();
    for (const region of this.#options.regions) region.close();
  }

  #handOver({ operation, sequence, ordinal }: NetworkPathCall, request: FastRequest, { begun }: { readonly begun: boolean }): SettlingWork {
    const { spec, client } = this.#options;
    const { buffers, timeoutMs, call, site, hooks } = request;
    this.#handedOver += 1;
    const progress = begun ? { ...operation.progress } : undefined;
    return client.start(
      { type: 'network-path', group: spec.id, sequence, ordinal, progress, call: { ...call, site: site() }, buffers, timeoutMs },
      `${call.kind} of group '${spec.name}'`,
      {
        ...hooks,
        site,
        onSettled: (touched, error) => {
          this.#handedOver -= 1;
          hooks.onSettled?.(touched || (error !== undefined && begun), error);
        },
      },
    );
  }

  /** What has not ended here has waited here; the comm thread draws the rest. */
  #drawWait({ operation, sequence, ordinal }: NetworkPathCall, startMs: number, site: string | undefined): void {
    const { trace, spec } = this.#options;
    const span: CallSpan = { call: { ...operation.call, site }, algorithm: operation.algorithm, path: 'network path' };
    const late = this.#networkPath.late(ordinal).find((rank) => rank !== spec.rank);
    trace.complete(waitName(trace, spec, span), startMs, 0, sequence, late === undefined ? Number.NaN : spec.globalRanks[late]);
  }

  #draw({ operation: { call, algorithm, lowered }, sequence }: NetworkPathCall, startMs: number, site: string | undefined): void {
    const { trace, spec } = this.#options;
    const span: CallSpan = { call: { ...call, site: call.site ?? site }, algorithm, path: 'network path' };
    trace.complete(workName(trace, spec, span, '(network path)'), startMs, 0, sequence);
    trace.moved(spec.globalRanks, lowered.movements);
  }
}

function keyOf(call: CollectiveCall, buffers: Partial<Record<BufferName, SharedBuffer>>): string {
  const places = (['data', 'input', 'output'] as const).map((each) => {
    const buffer = buffers[each];
    return buffer ? `${buffer.regionId}+${buffer.offset}+${buffer.bytes}` : '';
  });
  return [callKey(call), ...places].join(' ');
}
