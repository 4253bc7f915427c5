/** The network path of a group in the comm thread, from the group's opening to its end, and the calls that the calling thread handed over.
 *  Every group has one of these; it stays empty if the ranks do not agree on a network path.
 *
 *      the group opens ─▶ ranks agree (network-path-opening.ts) ─▶ none
 *                                     └─▶ memory, wire ─▶ share: the calling thread's wire (network-path-caller.ts)
 *      calling thread: waited long enough ─▶ queue ─▶ begin, if that is still to be done ─▶ advance … ─▶ done
 *
 *  While there are calls, the event loop watches the sockets. It must not know how a group opens. */
import { must } from '../../../base/assert.ts';
import { ShoalError } from '../../../base/errors.ts';
import type { Region } from '../../../memory/region.ts';
import type { GroupContext } from '../engine/group-context.ts';
import { LateCalls, type HandedOver, type LateCall, type Look } from '../engine/late-calls.ts';
import { localBuffers } from '../../../call/local-buffers.ts';
import { Planner } from '../../../call/planner.ts';
import { NetworkPathOpening, type AgreedNetworkPath } from './network-path-opening.ts';
import { NetworkPath, networkPathSpec, type NetworkPathOperation } from '../../../call/network-path.ts';
import { NetworkPathWire } from '../../../call/network-path-wire.ts';

export interface NetworkPathEntry extends LateCall<'network'> {
  readonly operation: NetworkPathOperation;
  begun: boolean;
}

/** The network path that all ranks have agreed on. */
interface OpenNetworkPath {
  readonly path: NetworkPath;
  readonly wire: NetworkPathWire;
  readonly planner: Planner;
  readonly sockets: AgreedNetworkPath['sockets'];
}

export class NetworkPathQueue extends LateCalls<NetworkPathEntry> {
  readonly opening: NetworkPathOpening;
  #open: OpenNetworkPath | undefined;
  /** Memory of the wires. */
  #memory: Region | undefined;
  #settling = false;

  constructor(group: GroupContext) {
    super(group, 'network');
    this.opening = new NetworkPathOpening(group);
  }

  /** All ranks have joined. Tells once, however often it is called, that there is a network path or none; not after `abandon`. */
  settle(onSettled: () => void): void {
    if (this.#settling) return;
    this.#settling = true;
    this.opening.agree((agreed) => {
      try {
        if (agreed) this.#openFor(agreed);
      } catch (thrown) {
        this.group.life.suspect(thrown);
        return;
      }
      onSettled();
    });
  }

  #openFor({ sockets, memory, rates }: AgreedNetworkPath): void {
    const { spec, rank, size, world, members, plans } = this.group;
    const { wires, settings, machine, log } = world.env;
    const planner = must(plans instanceof Planner ? plans : undefined, () => 'a rank that agrees on a network path has plans');
    const native = must(wires, () => 'a rank with sockets has the addon');
    this.#memory = memory;
    const { own, signalMax: signalCount } = members;
    const firstSlot = settings.inFlightMax;
    const view = new Uint8Array(memory.buffer, 0, memory.bytes);
    const descriptors = sockets.map(({ descriptor }) => descriptor);
    const wire = new NetworkPathWire({ native, rank, own, firstSlot, signalCount, memory: view, descriptors });
    planner.openNetworkPath(networkPathSpec(size, settings.syncBytesMax, rates));
    this.#open = { path: new NetworkPath({ rank, size, own, firstSlot, wire, machine }), wire, planner, sockets };
    log.debug(`group '${spec.name}' has a network path: ${JSON.stringify(rates)}`);
    const share = { path: 'network', own: members.nothing.region.share, memory: memory.share, rates, descriptors } as const;
    world.env.tell({ type: 'fast-path', group: spec.id, share });
  }

  add(request: HandedOver<'network'>, submittedMs: number): NetworkPathEntry {
    const { path, planner, sockets } = must(this.#open, () => 'the calling thread knows the network path from here');
    // A call that is late may have lost packets.
    for (const socket of sockets) socket.review();
    const operation = path.bind(request.call, planner.prepare(request.call, 'network'), localBuffers(request.buffers));
    const { progress } = request.way;
    Object.assign(operation.progress, progress);
    const entry: NetworkPathEntry = {
      ...request,
      submittedMs,
      operation,
      begun: progress !== undefined,
      path: 'network path',
      started: false,
      waitedFor: undefined,
      algorithm: operation.algorithm,
      movements: operation.lowered.movements,
    };
    this.calls.push(entry);
    return entry;
  }

  protected run(entry: NetworkPathEntry): Look {
    if (this.#open === undefined) return 'nothing';
    const { path, wire } = this.#open;
    const { operation, sequence, way } = entry;
    wire.watch(this.#onReadable, { on: true });
    if (!entry.begun) path.begin(operation, sequence, way.ordinal);
    entry.begun = true;
    path.announceToAll(operation, way.ordinal);
    const status = path.advance(operation, sequence, way.ordinal, 0);
    if (status !== 'ended') return status;
    this.rest();
    const late = this.late(entry);
    const code = wire.isForged ? 'protocol' : 'peer-lost';
    return new ShoalError(code, `the network path sockets of rank ${late.join(', ')} have ended`, { peer: late.at(0) });
  }

  readonly #onReadable = (): void => this.group.onReadable();

  protected firstLate({ way }: NetworkPathEntry): number | undefined {
    return this.#open?.path.late(way.ordinal).find((rank) => rank !== this.group.rank);
  }

  /** World ranks that have not announced the entry's operation. */
  late({ way }: NetworkPathEntry): number[] {
    return this.#open ? this.group.members.worldRanks(this.#open.path.late(way.ordinal)) : [];
  }

  /** Stops watching until the head advances again. Nobody reads what comes now, and the loop would call without end. */
  rest(): void {
    this.#open?.wire.watch(this.#onReadable, { on: false });
  }

  override abandon(error: ShoalError): void {
    this.opening.abandon();
    super.abandon(error);
  }

  close(): void {
    this.#open?.wire.close();
    this.#memory?.close();
  }
}
