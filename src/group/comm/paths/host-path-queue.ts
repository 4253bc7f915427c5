/** Operations of a host path that the calling thread handed over to the comm thread.
 *
 *      calling thread: waited long enough ─▶ queue ─▶ adopt (peers' memory as this thread maps it) ─▶ resume … ─▶ done
 *                      is not to wait     ─▶ queue ─▶ resume, from the start … ─▶ done */
import { must } from '../../../base/assert.ts';
import { BoundedCache } from '../../../base/collections/bounded-cache.ts';
import { sameContract } from '../../../call/contract.ts';
import type { GroupContext } from '../engine/group-context.ts';
import { LateCalls, type HandedOver, type LateCall, type Look } from '../engine/late-calls.ts';
import { localBuffers, operationKey } from '../../../call/local-buffers.ts';
import { HostPath, type HostPathName, type HostPathOperation, type HostPathPosition } from '../../../call/host-path.ts';

export interface HostPathEntry extends LateCall<'host'> {
  readonly slot: number;
  /** Undefined until it is the head, and its plan is built. */
  operation: HostPathOperation | undefined;
  position: HostPathPosition;
  /** Peers' memory is bound as this thread maps it. */
  adopted: boolean;
  /** It has waited in vain where it stands. */
  sleeps: boolean;
}

/** Operations kept bound to their buffers. */
const boundMax = 64;
/** The length of a patient wait. It is fruitless once, at most: then the head sleeps until it has moved. */
const nsPerPatientByte = 0.05;
const patienceNsMax = 5e6;

export class HostPathQueue extends LateCalls<HostPathEntry> {
  readonly #name: HostPathName;
  readonly #bound = new BoundedCache<string, HostPathOperation>(boundMax);
  /** Made on first use: many a group never leaves anything to the comm thread. */
  #made: HostPath | undefined;
  /** Some call has been built. */
  #isWarm = false;

  constructor(group: GroupContext, name: HostPathName) {
    super(group, name);
    this.#name = name;
  }

  add(request: HandedOver<'host'>, submittedMs: number): HostPathEntry {
    const entry: HostPathEntry = {
      ...request,
      submittedMs,
      slot: this.#hostPath.slotOf(request.way.ordinal),
      operation: undefined,
      path: 'host path',
      started: false,
      waitedFor: undefined,
      get algorithm() {
        return this.operation?.plans.algorithms[this.position.code] ?? 'undecided';
      },
      get movements() {
        return this.operation?.bound.whole.movements ?? [];
      },
      position: request.way.position,
      adopted: request.way.position.pc === 0,
      sleeps: false,
    };
    this.calls.push(entry);
    return entry;
  }

  protected run(entry: HostPathEntry): Look {
    const { sequence, way } = entry;
    const hostPath = this.#hostPath;
    if (!this.#isWarm && this.#waitsUnbuilt(entry)) return 'waiting';
    entry.operation ??= this.#bind(entry);
    const { operation } = entry;
    // The other thread bound peers' memory as it maps it; here it is bound anew, once.
    if (!entry.adopted) this.#adopt(entry, operation);
    if (!entry.adopted) return 'nothing';
    const status = hostPath.resume(operation, sequence, way.ordinal, entry.position, this.#patienceNs(entry, operation));
    this.group.ring(hostPath.doorbells);
    if (status === 'done') return 'done';
    const position = hostPath.positionOf(operation);
    const moved = position.pc !== entry.position.pc || position.code !== entry.position.code;
    entry.position = position;
    entry.sleeps = !moved;
    return status === 'mismatch' ? 'mismatch' : moved ? 'moved' : 'waiting';
  }

  rest(): void {}

  /** True for a call that this rank has announced and another one has not, which may have been lost: a plan is built by code that runs for
   *  the first time, on CPUs that the others need for what follows. At a group's first call others are late because they begin; and what is
   *  traced names the algorithm of its plan. */
  #waitsUnbuilt({ position, way, slot, sequence }: HostPathEntry): boolean {
    const { members, world } = this.group;
    const mayWait = position.pc > 0 && way.ordinal > 0 && !world.env.recorder.trace.enabled;
    if (!mayWait || members.firstLate(slot, sequence) === undefined) return false;
    const own = members.own.contract(slot);
    return members.blocks.every((block) => !block.holds(slot, sequence) || sameContract(own, block.contract(slot)));
  }

  #patienceNs(entry: HostPathEntry, { bytes }: HostPathOperation): number {
    const { spinMs, world } = this.group;
    // Where work is drawn apart from waiting, native code does not wait for the beginning of the work.
    if (world.env.recorder.trace.enabled && !entry.started) return 0;
    // Where ranks outnumber CPUs, waits of native code give the CPU to other ranks: the head waits about as long as the operation takes
    // before the thread sleeps. Every bell costs both sides a cold start of JavaScript. Without the addon, of which wires are a part,
    // waits would keep the CPU.
    const isPatient = spinMs === 0 && world.env.wires !== undefined;
    return isPatient && !entry.sleeps ? Math.min(patienceNsMax, bytes * nsPerPatientByte) : spinMs * 1e6;
  }

  #adopt(entry: HostPathEntry, operation: HostPathOperation): void {
    const position = this.#hostPath.adopt(operation, entry.way.ordinal, entry.position);
    if (!position) return;
    entry.position = position;
    entry.adopted = true;
  }

  protected firstLate({ slot, sequence }: HostPathEntry): number | undefined {
    return this.group.members.firstLate(slot, sequence);
  }

  late({ slot, sequence }: HostPathEntry): number[] {
    return this.group.members.late(slot, sequence);
  }

  /** Done for the head alone, so that an operation called twice in a row can be one. */
  #bind(entry: HostPathEntry): HostPathOperation {
    const { call, way, position } = entry;
    this.#isWarm = true;
    const plans = must(this.group.plans.prepare(call).hostPath, () => 'operations of the host path run whole');
    const buffers = localBuffers(entry.buffers, way.announced);
    if (way.announced === 'private' || position.code === 'private') return this.#hostPath.bind(call, plans, buffers, position.code);
    const key = operationKey(call, buffers);
    const known = this.#bound.get(key);
    if (known?.bound.name === position.code) return known;
    return this.#bound.put(key, this.#hostPath.bind(call, plans, buffers, position.code));
  }

  get #hostPath(): HostPath {
    this.#made ??= this.#make();
    return this.#made;
  }

  #make(): HostPath {
    const { rank, size, blocks, members, spinMs, world } = this.group;
    const { machine, settings } = world.env;
    return new HostPath({
      name: this.#name,
      rank,
      size,
      blocks,
      slotCount: settings.inFlightMax,
      machine,
      yields: spinMs === 0,
      peerRegion: (peer, key) => members.memory(peer, key),
    });
  }
}
