/** Snapshots of a server: their times, and the notices to clients that they are durable, or failed. One at a time. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import type { Timer } from '../../base/clock.ts';
import { durableRequests, takeSnapshot } from './snapshot.ts';
import type { ServerState } from './state/server-state.ts';

/** Reasons of failures that are remembered, so that none is reported twice. */
const reasonsMax = 16;

export class ServerCheckpoints {
  readonly #state: ServerState;
  /** The reasons for which attempts have failed since the last that succeeded. */
  readonly #reasons = new Set<string>();
  #failure: ShoalError | undefined;
  #timer: Timer | undefined;
  /** The snapshot that is being written. */
  #saving: Promise<void> | undefined;
  /** The one after it, of a later state. */
  #next: Promise<void> | undefined;
  #closed = false;

  constructor(state: ServerState) {
    this.#state = state;
  }

  /** The reason why the latest snapshot could not be written, in words; empty when it could. */
  describe(): string {
    return this.#failure === undefined ? '' : `server ${this.#state.options.server} cannot save a checkpoint: ${this.#failure.message}`;
  }

  /** Periodically, if something has changed. A failure is reported and tried again with the next period: the latest snapshot
   *  stays. */
  schedule(): void {
    const { snapshots, clock, checkpointEveryMs } = this.#state.options;
    if (snapshots === undefined || this.#closed || this.#timer !== undefined) return;
    this.#timer = clock.setTimer(checkpointEveryMs, () => {
      this.#timer = undefined;
      if (this.#state.dirty) this.save().catch(() => undefined);
      this.schedule();
    });
  }

  /** Resolves when the state of now, or a later one, is durable. @throws ShoalError `system`. */
  save(): Promise<void> {
    if (this.#saving === undefined) return this.#begin();
    // The one under way is older than now.
    this.#next ??= this.#saving.catch(() => undefined).then(() => this.#begin());
    return this.#next;
  }

  close(): void {
    this.#closed = true;
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  #begin(): Promise<void> {
    const { sessions, options } = this.#state;
    const { snapshots } = options;
    this.#next = undefined;
    if (this.#saving !== undefined) return this.save();
    if (snapshots === undefined || this.#closed) return Promise.resolve();
    const snapshot = takeSnapshot(this.#state);
    this.#state.dirty = false;
    const write = async (): Promise<void> => {
      try {
        await snapshots.save(snapshot);
        this.#report(undefined);
      } catch (thrown) {
        this.#state.dirty = true;
        const error = ShoalError.from(thrown, 'system', { operation: `snapshot: ${messageOf(thrown)}` });
        this.#report(error);
        throw error;
      } finally {
        this.#saving = undefined;
      }
      if (this.#closed) return;
      for (const [address, request] of durableRequests(snapshot)) {
        const session = sessions.get(address);
        if (session === undefined || request <= session.durable) continue;
        session.durable = request;
        this.#state.actions.tellDurable(session);
      }
    };
    this.#saving = write();
    return this.#saving;
  }

  /** Once per reason; that it works again, once as well. */
  #report(error: ShoalError | undefined): void {
    const { onCheckpoint, checkpointEveryMs: againMs } = this.#state.options;
    const recovered = error === undefined && this.#failure !== undefined;
    this.#failure = error;
    if (error === undefined) {
      this.#reasons.clear();
      if (recovered) onCheckpoint?.({ state: 'recovered' });
    } else if (!this.#reasons.has(error.message) && this.#reasons.size < reasonsMax) {
      this.#reasons.add(error.message);
      onCheckpoint?.({ state: 'failed', error, againMs });
    }
  }
}
