/** Operations of the express that the main thread left to the comm thread, in the order of their calls. Only the head runs.
 *
 *      main thread: waited long enough ─▶ queue ─▶ begin, if that is still to be done ─▶ advance … ─▶ done
 *
 *  While there are any, the sockets are watched by the event loop. It must not know what becomes of a disagreement. */
import { ShoalError } from '../../base/errors.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { CallQueue } from '../call/call-queue.ts';
import type { CollectiveCall } from '../call/contract.ts';
import { Express, type ExpressOperation, type ExpressOptions, type ExpressProgress } from '../fast/network-path.ts';
import type { ExpressBuffers } from '../fast/network-path-wire.ts';
import type { Members } from './members.ts';
import type { Buffers } from './operation.ts';
import type { PlanRunner } from '../call/plan-runner.ts';
import type { Watched } from '../diagnosis/watchdog.ts';

/** An operation of the express that the main thread did not finish. */
export interface ExpressCommand {
  readonly sequence: number;
  /** Position among the calls of the express. */
  readonly ordinal: number;
  /** How far it has come; undefined: this rank has not begun it. */
  readonly progress: ExpressProgress | undefined;
  readonly call: CollectiveCall;
  readonly buffers: Buffers;
  readonly timeoutMs: number;
  complete(error?: ShoalError): void;
}

export interface ExpressEntry extends ExpressCommand, Watched {
  readonly operation: ExpressOperation;
  readonly path: 'express';
  readonly algorithm: string;
  begun: boolean;
  /** All ranks have announced it. */
  started: boolean;
  /** The last rank that was seen not to have announced it. */
  waitedFor: number | undefined;
}

export interface ExpressQueueOptions {
  readonly express: ExpressOptions;
  /** As on the main thread: nobody's memory is reached but by sending. */
  readonly plans: PlanRunner;
  readonly members: Members;
  /** Something has come. */
  readonly onReadable: () => void;
  /** All ranks have announced the head. */
  readonly onStarted: (entry: ExpressEntry) => void;
  /** Ranks called different things, or this one's call went the express's way and another's did not. */
  readonly onMismatch: (entry: ExpressEntry) => void;
  /** The head cannot be ended. */
  readonly onThrown: (thrown: unknown, sequence: number) => void;
}

const noPatience = { spinNs: 0, sleepMs: 0 };

export class ExpressQueue implements CallQueue<ExpressEntry> {
  readonly #options: ExpressQueueOptions;
  readonly #express: Express;
  readonly #entries: ExpressEntry[] = [];

  constructor(options: ExpressQueueOptions) {
    this.#options = options;
    this.#express = new Express(options.express);
  }

  get pending(): readonly ExpressEntry[] {
    return this.#entries;
  }

  get size(): number {
    return this.#entries.length;
  }

  get runnable(): boolean {
    return this.size > 0;
  }

  add(request: ExpressCommand, submittedMs: number): ExpressEntry {
    const operation = this.#express.bind(request.call, this.#options.plans.prepare(request.call), viewsOf(request.buffers));
    Object.assign(operation.progress, request.progress);
    const begun = request.progress !== undefined;
    const entry: ExpressEntry = {
      ...request,
      complete: request.complete,
      submittedMs,
      operation,
      begun,
      warned: false,
      path: 'express',
      started: false,
      waitedFor: undefined,
      algorithm: operation.algorithm,
    };
    this.#entries.push(entry);
    return entry;
  }

  /** Continues the head. */
  advance(): boolean {
    const entry = this.#entries.at(0);
    const { wire } = this.#options.express;
    if (entry === undefined) return false;
    const { operation, sequence, ordinal } = entry;
    const { onMismatch, onThrown, onReadable } = this.#options;
    this.#noteStart(entry);
    try {
      wire.watch(onReadable, { on: true });
      if (!entry.begun) this.#express.begin(operation, sequence, ordinal);
      entry.begun = true;
      this.#express.announceToAll(operation, ordinal);
      const status = this.#express.advance(operation, sequence, ordinal, noPatience);
      if (status === 'done') {
        this.#start(entry);
        this.#entries.shift();
        // Before the main thread hears of it: the sockets are its again then.
        if (this.#entries.length === 0) wire.watch(onReadable, { on: false });
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

  #noteStart(entry: ExpressEntry): void {
    if (entry.started) return;
    const late = this.#express.late(entry.ordinal).find((rank) => rank !== this.#options.express.rank);
    if (late === undefined) this.#start(entry);
    else entry.waitedFor = late;
  }

  #start(entry: ExpressEntry): void {
    if (entry.started) return;
    entry.started = true;
    this.#options.onStarted(entry);
  }

  /** World ranks that have not announced the entry's operation. */
  late({ ordinal }: ExpressEntry): number[] {
    return this.#options.members.worldRanks(this.#express.late(ordinal));
  }

  abandon(error: ShoalError): void {
    const { wire } = this.#options.express;
    wire.watch(this.#options.onReadable, { on: false });
    for (const entry of this.#entries.splice(0)) entry.complete(error);
  }

  close(): void {
    this.#options.express.wire.close();
  }

  #lost(entry: ExpressEntry): void {
    const { onReadable, onThrown, express } = this.#options;
    const late = this.late(entry);
    // Nothing more will come of it, and the loop would call without end.
    express.wire.watch(onReadable, { on: false });
    const error = new ShoalError('peer-lost', `the express sockets of rank ${late.join(', ')} have ended`, { peer: late.at(0) });
    onThrown(error, entry.sequence);
  }

  /** Some rank made its call `sequence` another way, or left before it. */
  #someoneWentElsewhere(sequence: number): boolean {
    const { members, express } = this.#options;
    return members.links.some(
      (_, rank) => rank !== express.rank && (members.leftBefore(rank, sequence) || members.tookCommThread(rank, sequence)),
    );
  }
}

function viewsOf(buffers: Buffers): ExpressBuffers {
  const views: ExpressBuffers = {};
  for (const name of Object.keys(buffers) as BufferName[]) {
    const buffer = buffers[name];
    if (buffer) views[name] = new Uint8Array(buffer.region.buffer, buffer.offset, buffer.bytes);
  }
  return views;
}
