/** Operations of the network path that the main thread handed over to the comm thread, in the order of their calls. Only the head runs.
 *
 *      main thread: waited long enough ─▶ queue ─▶ begin, if that is still to be done ─▶ advance … ─▶ done
 *
 *  While the queue is not empty, the event loop watches the sockets. It must not know how a disagreement is handled. */
import { ShoalError } from '../../base/errors.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { CallQueue } from '../comm/engine/call-queue.ts';
import type { CollectiveCall } from '../shared/call/contract.ts';
import { NetworkPath, type NetworkPathOperation, type NetworkPathOptions, type NetworkPathProgress } from './network-path.ts';
import type { NetworkPathBuffers } from './network-path-wire.ts';
import type { Members } from '../comm/engine/members.ts';
import type { Buffers } from '../comm/engine/operation.ts';
import type { Planner } from '../shared/call/planner.ts';
import type { Watched } from '../comm/diagnosis/watchdog.ts';
import type { Movement } from '../../trace/traffic.ts';

/** An operation of the network path that the main thread did not finish. */
export interface NetworkPathCommand {
  readonly sequence: number;
  /** Position among the calls of the network path. */
  readonly ordinal: number;
  /** How far it has come; undefined: this rank has not begun it. */
  readonly progress: NetworkPathProgress | undefined;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  readonly timeoutMs: number;
  complete(error?: ShoalError): void;
}

export interface NetworkPathEntry extends NetworkPathCommand, Watched {
  readonly operation: NetworkPathOperation;
  readonly path: 'network path';
  readonly algorithm: string;
  readonly movements: readonly Movement[];
  begun: boolean;
  /** All ranks have announced it. */
  started: boolean;
  /** The last rank that was seen not to have announced it. */
  waitedFor: number | undefined;
}

export interface NetworkPathQueueOptions {
  readonly networkPath: NetworkPathOptions;
  /** As on the main thread: nobody's memory is reached but by sending. */
  readonly planner: Planner;
  readonly members: Members;
  /** Something has come. */
  readonly onReadable: () => void;
  /** All ranks have announced the head. */
  readonly onStarted: (entry: NetworkPathEntry) => void;
  /** Ranks called different things, or this one's call went the network path's way and another's did not. */
  readonly onMismatch: (entry: NetworkPathEntry) => void;
  /** The head cannot be ended. */
  readonly onThrown: (thrown: unknown, sequence: number) => void;
}

const noPatience = { spinNs: 0, sleepMs: 0 };

export class NetworkPathQueue implements CallQueue<NetworkPathEntry> {
  readonly #options: NetworkPathQueueOptions;
  readonly #networkPath: NetworkPath;
  readonly #entries: NetworkPathEntry[] = [];

  constructor(options: NetworkPathQueueOptions) {
    this.#options = options;
    this.#networkPath = new NetworkPath(options.networkPath);
  }

  get pending(): readonly NetworkPathEntry[] {
    return this.#entries;
  }

  get size(): number {
    return this.#entries.length;
  }

  get runnable(): boolean {
    return this.size > 0;
  }

  add(request: NetworkPathCommand, submittedMs: number): NetworkPathEntry {
    const operation = this.#networkPath.bind(
      request.call,
      this.#options.planner.prepare(request.call, 'network'),
      viewsOf(request.buffers),
    );
    Object.assign(operation.progress, request.progress);
    const begun = request.progress !== undefined;
    const entry: NetworkPathEntry = {
      ...request,
      complete: request.complete,
      submittedMs,
      operation,
      begun,
      path: 'network path',
      started: false,
      waitedFor: undefined,
      algorithm: operation.algorithm,
      movements: operation.lowered.movements,
    };
    this.#entries.push(entry);
    return entry;
  }

  /** Continues the head. */
  advance(): boolean {
    const entry = this.#entries.at(0);
    const { wire } = this.#options.networkPath;
    if (entry === undefined) return false;
    const { operation, sequence, ordinal } = entry;
    const { onMismatch, onThrown, onReadable } = this.#options;
    this.#noteStart(entry);
    try {
      wire.watch(onReadable, { on: true });
      if (!entry.begun) this.#networkPath.begin(operation, sequence, ordinal);
      entry.begun = true;
      this.#networkPath.announceToAll(operation, ordinal);
      const status = this.#networkPath.advance(operation, sequence, ordinal, noPatience);
      if (status === 'done') {
        this.#start(entry);
        this.#entries.shift();
        // Before the main thread hears of it: the sockets are its again then.
        if (this.#entries.length === 0) this.rest();
        entry.complete();
        return true;
      }
      if (status === 'mismatch' || this.#someoneWentElsewhere(sequence)) onMismatch(entry);
      else if (status === 'ended') this.#lost(entry);
    } catch (thrown) {
      onThrown(thrown, sequence);
    }
    return false;
  }

  #noteStart(entry: NetworkPathEntry): void {
    if (entry.started) return;
    const late = this.#networkPath.late(entry.ordinal).find((rank) => rank !== this.#options.networkPath.rank);
    if (late === undefined) this.#start(entry);
    else entry.waitedFor = late;
  }

  #start(entry: NetworkPathEntry): void {
    if (entry.started) return;
    entry.started = true;
    this.#options.onStarted(entry);
  }

  /** World ranks that have not announced the entry's operation. */
  late({ ordinal }: NetworkPathEntry): number[] {
    return this.#options.members.worldRanks(this.#networkPath.late(ordinal));
  }

  /** Until it advances again. Nobody reads what comes now, and the loop would call without end. */
  rest(): void {
    const { networkPath, onReadable } = this.#options;
    networkPath.wire.watch(onReadable, { on: false });
  }

  abandon(error: ShoalError): void {
    this.rest();
    for (const entry of this.#entries.splice(0)) entry.complete(error);
  }

  close(): void {
    this.#options.networkPath.wire.close();
  }

  #lost(entry: NetworkPathEntry): void {
    const { onThrown } = this.#options;
    const late = this.late(entry);
    this.rest();
    const error = new ShoalError('peer-lost', `the network path sockets of rank ${late.join(', ')} have ended`, { peer: late.at(0) });
    onThrown(error, entry.sequence);
  }

  /** Some rank made its call `sequence` another way, or left before it. */
  #someoneWentElsewhere(sequence: number): boolean {
    const { members, networkPath } = this.#options;
    return members.links.some(
      (_, rank) => rank !== networkPath.rank && (members.leftBefore(rank, sequence) || members.tookCommThread(rank, sequence)),
    );
  }
}

function viewsOf(buffers: Buffers): NetworkPathBuffers {
  const views: NetworkPathBuffers = {};
  for (const name of Object.keys(buffers) as BufferName[]) {
    const buffer = buffers[name];
    if (buffer) views[name] = new Uint8Array(buffer.region.buffer, buffer.offset, buffer.bytes);
  }
  return views;
}
