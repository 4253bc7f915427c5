/** Aborts of a group, by `abort` or by the signal of a call: either ends it on every rank. A signal has one
 *  listener here, however many calls it is given to. It must not know what calls do. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import { CompletedWork, type SettlingWork } from '../../comm/caller/work.ts';
import type { GroupSpec } from '../../call/group-spec.ts';
import type { CommClient } from '../caller/comm-client.ts';

export class CallSignals {
  readonly #client: Pick<CommClient, 'failGroup' | 'aborted'>;
  readonly #spec: Pick<GroupSpec, 'id' | 'name' | 'globalRanks' | 'rank'>;
  /** The works that are not done, with the names of their calls. */
  readonly #watched = new Map<AbortSignal, Map<SettlingWork, string>>();

  constructor(client: Pick<CommClient, 'failGroup' | 'aborted'>, spec: Pick<GroupSpec, 'id' | 'name' | 'globalRanks' | 'rank'>) {
    this.#client = client;
    this.#spec = spec;
  }

  /** Before the call. Others may be waiting for this rank already: they hear of it. @throws ShoalError `aborted`. */
  check(signal: AbortSignal | undefined, what: string): void {
    if (signal?.aborted === true) throw this.abort(signal.reason, what);
  }

  /** Watches the signal of a call: until the call is done, the signal ends it, and the group with it. */
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
    if (first) this.abort(signal.reason, first[1]);
  }

  /** Ends the group on every rank. @param operation the call whose signal was aborted. Default: the group itself was. */
  abort(reason: unknown, operation?: string): ShoalError {
    const { id, name, globalRanks, rank: own } = this.#spec;
    const rank = globalRanks[own];
    const what = operation === undefined ? `group '${name}'` : `${operation} of group '${name}' by its signal`;
    const why = reason === undefined ? '' : ` (${messageOf(reason)})`;
    const message = `rank ${rank} aborted ${what}${why}: the group has ended on all its ranks`;
    const error = new ShoalError('aborted', message, { rank, peer: rank, operation, cause: reason });
    this.#client.aborted.add(id);
    void this.#client.failGroup(id, error);
    return error;
  }
}
