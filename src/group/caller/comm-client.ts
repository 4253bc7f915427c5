/** The main thread's end of a world: sends commands to the comm side, and receives its events about groups and about other ranks' memory.
 *  One per world. It must not know the meaning of collectives. */
import type { SchedulingStatus } from '../../call/group-spec.ts';
import type { ShoalError } from '../../base/errors.ts';
import { isExhaustion } from '../../base/exhaustion.ts';
import { CommChannel, type Unnumbered } from '../../comm/caller/comm-channel.ts';
import type { TraceSnapshot } from '../../trace/recorder.ts';
import { PeerRegions } from './peer-regions.ts';
import type { Command, FastPathShare, WorldInfo, WorldTold } from '../shared/comm-protocol.ts';
import { GroupNumbers } from '../../membership/group-numbers.ts';

/** The time that the comm thread may take to tell other ranks something. */
const tellMs = 2000;

export class CommClient extends CommChannel<Command, WorldInfo, WorldTold> {
  /** The fast paths of groups that have one. */
  readonly fastPaths = new Map<number, FastPathShare>();
  /** Memory of other ranks of this host. */
  readonly peerRegions = new PeerRegions();
  /** Groups that a rank has aborted. */
  readonly aborted = new Set<number>();
  /** Ranks that wait to be taken into the world. */
  waiting = 0;
  #troubled = false;
  /** The status of scheduled groups that are tuned. */
  readonly schedulings = new Map<number, SchedulingStatus>();
  /** Groups this rank is in, or was in with others that still are. */
  readonly groupNumbers = new GroupNumbers();

  /** This rank cannot go on with the group: all its ranks are told why. */
  failGroup(group: number, error: ShoalError): Promise<void> {
    return this.#tell({ type: 'fail-group', group, error: error.toData() });
  }

  /** Where this process has run out of something, others would wait for its part of a call in vain. @returns what was thrown. */
  tellExhaustion(group: number, thrown: unknown): unknown {
    if (isExhaustion(thrown)) void this.failGroup(group, thrown);
    return thrown;
  }

  /** Tells all ranks what may be the reason if this process ends now, which happens when nobody catches the error. */
  tellTrouble(error: ShoalError): void {
    this.#troubled = true;
    void this.#tell({ type: 'trouble', error: error.toData() });
  }

  /** Tells all ranks that the trouble is over. */
  endTrouble(): void {
    if (!this.#troubled) return;
    this.#troubled = false;
    this.start({ type: 'trouble', error: undefined }, 'telling other ranks');
  }

  /** Returns when others have heard it: this thread may be about to end the process. Where communication runs inline, that is when
   *  what is returned resolves. */
  #tell(command: Unnumbered<Command>): Promise<void> {
    const told = this.start(command, 'telling other ranks');
    // An error of the telling says less than what is being told.
    const heard = told.then(undefined, () => undefined);
    try {
      told.waitSync(tellMs);
    } catch {
      // The error says less than what is being told.
    }
    return heard;
  }

  /** @typeParam Answer that of the command. */
  async ask<Answer>(command: Unnumbered<Command>, description: string): Promise<Answer> {
    let given: unknown;
    await this.start(command, description, { onSuccess: (answer) => void (given = answer) });
    return given as Answer;
  }

  takeTrace(): Promise<TraceSnapshot | undefined> {
    return this.ask({ type: 'trace' }, 'collecting the trace');
  }

  /** Blocks this thread for it. Undefined when it does not come within the limit. */
  takeTraceSync(timeoutMs: number): TraceSnapshot | undefined {
    let trace: TraceSnapshot | undefined;
    this.start({ type: 'trace' }, 'collecting the trace', { onSuccess: (answer) => void (trace = answer as TraceSnapshot) }).waitSync(
      timeoutMs,
    );
    return trace;
  }

  protected override onTold(event: WorldTold): void {
    switch (event.type) {
      case 'fast-path':
        this.fastPaths.set(event.group, event.share);
        return;
      case 'peer-region':
        this.peerRegions.update(event.rank, event.key, event.share);
        return;
      case 'waiting':
        this.waiting = event.count;
        return;
      case 'scheduled-by':
        this.schedulings.set(event.group, event.status);
        return;
      case 'aborted':
        this.aborted.add(event.group);
        return;
      case 'group-ended':
        this.aborted.delete(event.group);
        this.schedulings.delete(event.group);
        this.fastPaths.delete(event.group);
        this.groupNumbers.free(event.group);
    }
  }
}
