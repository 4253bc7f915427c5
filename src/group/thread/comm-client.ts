/** The main thread's end of the comm side: numbers work, sends commands, settles work when events arrive.
 *  One per world. It must not know what collectives mean. */
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { TraceSnapshot } from '../../trace/recorder.ts';
import type { RegionShare } from '../../memory/region.ts';
import type { PeerRegions } from './peer-regions.ts';
import type { CommHost, CommHostHandlers } from './comm-host.ts';
import type { Command, CommEvent, NetworkPathShare, WorldInfo } from '../engine/comm-protocol.ts';
import { GroupNumbers } from '../call/group-numbers.ts';
import { PendingWork, type WorkHooks, type WorkWaiter } from './work.ts';

/** A command that is answered by a `done` event, before it has its work number. */
type WorkCommand = Extract<Command, { work: number }>;
type Unnumbered<C> = C extends WorkCommand ? Omit<C, 'work'> : never;

/** How long the comm thread may take to tell other ranks something. */
const tellMs = 2000;

export class CommClient implements WorkWaiter {
  readonly #host: CommHost;
  readonly #pending = new Map<number, PendingWork>();
  readonly #ready: Promise<WorldInfo>;
  #resolveReady!: (info: WorldInfo) => void;
  #rejectReady!: (error: ShoalError) => void;
  #trace: TraceSnapshot | undefined;
  readonly #networkPaths = new Map<number, NetworkPathShare>();
  readonly #hostPathBlocks = new Map<number, readonly RegionShare[]>();
  /** Memory of other ranks of this host; given once the world is open. */
  peerRegions: PeerRegions | undefined;
  /** Announcements that came before. */
  readonly #earlyRegions: Extract<CommEvent, { type: 'peer-region' }>[] = [];
  #nextWork = 1;
  #troubled = false;
  #heard = false;
  #lost: ShoalError | undefined;
  /** Groups this rank is in, or was in with others that still are. */
  readonly groupNumbers = new GroupNumbers();

  constructor(createHost: (handlers: CommHostHandlers) => CommHost) {
    this.#ready = new Promise((resolve, reject) => {
      this.#resolveReady = resolve;
      this.#rejectReady = reject;
    });
    // Whoever awaits `ready` gets the error; if nobody does, it is not unhandled.
    this.#ready.catch(() => undefined);
    this.#host = createHost({ onEvent: (event) => this.#onEvent(event), onLost: (error) => this.#onLost(error) });
  }

  /** The comm side has been heard of: it tells other ranks itself what becomes of it. */
  get hasBegun(): boolean {
    return this.#heard;
  }

  /** The world is set up. @throws ShoalError why not. */
  ready(): Promise<WorldInfo> {
    return this.#ready;
  }

  post(command: Exclude<Command, WorkCommand>): void {
    if (!this.#lost) this.#host.post(command);
  }

  start(command: Unnumbered<WorkCommand>, description: string, hooks: WorkHooks = {}): PendingWork {
    const pending = new PendingWork(this, description, hooks);
    this.submit(pending, command);
    return pending;
  }

  /** Sends the command of a work that was made before. */
  submit(pending: PendingWork, command: Unnumbered<WorkCommand>): void {
    if (this.#lost) {
      pending.settle(this.#lost, { begun: false });
      return;
    }
    const work = this.#nextWork++;
    if (this.#pending.size === 0) this.#host.keepAlive(true);
    this.#pending.set(work, pending);
    this.#host.post({ ...command, work });
  }

  /** This rank cannot go on with the group: all its ranks are told why. */
  failGroup(group: number, error: ShoalError): Promise<void> {
    return this.#tell({ type: 'fail-group', group, error: error.toData() });
  }

  /** What may be the reason if this process ends now, which happens when nobody catches the error. */
  tellTrouble(error: ShoalError): void {
    this.#troubled = true;
    void this.#tell({ type: 'trouble', error: error.toData() });
  }

  /** What was wrong is not any more. */
  endTrouble(): void {
    if (!this.#troubled) return;
    this.#troubled = false;
    this.start({ type: 'trouble', error: undefined }, 'telling other ranks');
  }

  /** Returns when others have heard it: this thread may be about to end the process. Where communication runs inline, that is when
   *  what is returned resolves. */
  #tell(command: Unnumbered<WorkCommand>): Promise<void> {
    const told = this.start(command, 'telling other ranks');
    // What goes wrong here says less than what is being told.
    const heard = told.then(undefined, () => undefined);
    try {
      told.waitSync(tellMs);
    } catch {
      // As above.
    }
    return heard;
  }

  async takeTrace(): Promise<TraceSnapshot | undefined> {
    await this.start({ type: 'trace' }, 'collecting the trace');
    return this.#trace;
  }

  async terminate(error: ShoalError): Promise<void> {
    this.#fail(error);
    await this.#host.terminate();
  }

  readonly now = (): number => systemClock.now();

  pump(timeoutMs: number): boolean {
    this.#host.drain();
    if (this.#pending.size === 0) return true;
    const blocked = this.#host.block(Math.min(timeoutMs, 0x7fffffff));
    this.#host.drain();
    return blocked;
  }

  #onEvent(event: CommEvent): void {
    this.#heard = true;
    switch (event.type) {
      case 'ready':
        this.#resolveReady(event.info);
        this.#release();
        return;
      case 'failed':
        this.#fail(ShoalError.fromData(event.error));
        return;
      case 'host-path':
        this.#hostPathBlocks.set(event.group, event.blocks);
        return;
      case 'network-path':
        this.#networkPaths.set(event.group, event.share);
        return;
      case 'peer-region':
        if (this.peerRegions) this.peerRegions.update(event.rank, event.key, event.share);
        else this.#earlyRegions.push(event);
        return;
      case 'group-ended':
        this.#hostPathBlocks.delete(event.group);
        this.#networkPaths.delete(event.group);
        this.groupNumbers.free(event.group);
        return;
      case 'done': {
        if (event.trace) this.#trace = event.trace;
        const pending = this.#pending.get(event.work);
        this.#pending.delete(event.work);
        pending?.settle(event.error && ShoalError.fromData(event.error), { begun: event.begun ?? true });
        this.#release();
      }
    }
  }

  /** Where other ranks' memory is mapped from now on. */
  usePeerRegions(regions: PeerRegions): void {
    this.peerRegions = regions;
    for (const { rank, key, share } of this.#earlyRegions.splice(0)) regions.update(rank, key, share);
  }

  /** How to map the control blocks of a group; undefined unless its ranks share memory. */
  hostPathBlocks(group: number): readonly RegionShare[] | undefined {
    return this.#hostPathBlocks.get(group);
  }

  /** The network path of a group; undefined where there is none. */
  networkPath(group: number): NetworkPathShare | undefined {
    return this.#networkPaths.get(group);
  }

  /** Delivers what has arrived. */
  drain(): void {
    this.#host.drain();
  }

  #release(): void {
    if (this.#pending.size === 0) this.#host.keepAlive(false);
  }

  #onLost(error: ShoalError): void {
    this.#fail(error);
  }

  #fail(error: ShoalError): void {
    this.#lost ??= error;
    this.#rejectReady(this.#lost);
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const work of pending) work.settle(this.#lost);
  }
}
