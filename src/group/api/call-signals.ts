/** Signals of calls: one that is aborted ends the group on every rank. A signal has one listener here, however many calls it is given to.
 *  It must not know what calls do. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import { CompletedWork, type SettlingWork } from '../../comm/caller/work.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { CommClient } from '../caller/comm-client.ts';

export class CallSignals {
  readonly #client: Pick<CommClient, 'failGroup'>;
  readonly #spec: Pick<GroupSpec, 'id' | 'name' | 'globalRanks' | 'rank'>;
  /** The works that are not done, with the names of their calls. */
  readonly #watched = new Map<AbortSignal, Map<SettlingWork, string>>();

  constructor(client: Pick<CommClient, 'failGroup'>, spec: Pick<GroupSpec, 'id' | 'name' | 'globalRanks' | 'rank'>) {
    this.#client = client;
    this.#spec = spec;
  }

  /** Before the call. Others may be waiting for this rank already: they hear of it. @throws ShoalError `aborted`. */
  check(signal: AbortSignal | undefined, what: string): void {
    if (signal?.aborted === true) throw this.#abort(signal, what);
  }

  /** Until it is done, the signal ends it, and the group with it. */
  watch<W extends SettlingWork>(work: W, signal: AbortSignal | undefined, what: string): W {
    if (signal === undefined || work instanceof CompletedWork) return work;
    const works = this.#watched.get(signal) ?? this.#listen(signal);
    works.set(work, what);
    work.onceSettled(() => works.delete(work) && works.size === 0 && this.#unlisten(signal));
    return work;
  }

  #listen(signal: AbortSignal): Map<SettlingWork, string> {
    const works = new Map<SettlingWork, string>();
    this.#watched.set(signal, works);
    signal.addEventListener('abort', this);
    return works;
  }

  #unlisten(signal: AbortSignal): void {
    this.#watched.delete(signal);
    signal.removeEventListener('abort', this);
  }

  handleEvent({ target }: Event): void {
    const signal = target as AbortSignal;
    // Asking whether it is done may find that it is, and forget it.
    const [first] = [...(this.#watched.get(signal) ?? [])].filter(([work]) => !work.done);
    if (first) this.#abort(signal, first[1]);
  }

  #abort(signal: AbortSignal, what: string): ShoalError {
    const { id, name, globalRanks, rank: own } = this.#spec;
    const rank = globalRanks[own];
    const message = `rank ${rank} aborted ${what} of group '${name}' by its signal (${messageOf(signal.reason)}): the group has ended on all its ranks`;
    const error = new ShoalError('aborted', message, { rank, peer: rank, operation: what, cause: signal.reason });
    void this.#client.failGroup(id, error);
    return error;
  }
}
