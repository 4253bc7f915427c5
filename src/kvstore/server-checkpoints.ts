/** Snapshots of a server: when they are taken, and who is told that they are durable. One at a time. */
import { messageOf, ShoalError } from '../base/errors.ts';
import type { Timer } from '../base/clock.ts';
import { durableRequests, takeSnapshot } from './server-snapshot.ts';
import type { ServerState } from './server-state.ts';
import type { ServerSession } from './server-session.ts';

const everyMsDefault = 60_000;

export class ServerCheckpoints {
  readonly #state: ServerState;
  readonly #onDurable: (session: ServerSession) => void;
  #timer: Timer | undefined;
  /** The snapshot that is being written. */
  #saving: Promise<void> | undefined;
  /** The one after it, of a later state. */
  #next: Promise<void> | undefined;
  #closed = false;

  constructor(state: ServerState, onDurable: (session: ServerSession) => void) {
    this.#state = state;
    this.#onDurable = onDurable;
  }

  /** Periodically, if something has changed. A failure is tried again with the next period: the latest snapshot stays. */
  schedule(): void {
    const { snapshots, clock, checkpointEveryMs = everyMsDefault } = this.#state.options;
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
      } catch (error) {
        this.#state.dirty = true;
        throw ShoalError.from(error, 'system', { operation: `snapshot: ${messageOf(error)}` });
      } finally {
        this.#saving = undefined;
      }
      if (this.#closed) return;
      for (const [address, request] of durableRequests(snapshot)) {
        const session = sessions.get(address);
        if (session === undefined || request <= session.durable) continue;
        session.durable = request;
        this.#onDurable(session);
      }
    };
    this.#saving = write();
    return this.#saving;
  }
}
