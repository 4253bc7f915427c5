/** Signals of a group's calls: one that is aborted before its call is done ends the group on every rank, for others wait for this rank's
 *  part. It must not know what calls do. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import type { SettlingWork } from '../../comm/work.ts';
import type { GroupSpec } from '../call/group-spec.ts';

/** Who tells the other ranks. */
interface Teller {
  failGroup(group: number, error: ShoalError): Promise<void>;
}

export class CallAborts {
  readonly #client: Teller;
  readonly #group: Pick<GroupSpec, 'id' | 'name' | 'rank' | 'globalRanks'>;

  constructor(client: Teller, group: Pick<GroupSpec, 'id' | 'name' | 'rank' | 'globalRanks'>) {
    this.#client = client;
    this.#group = group;
  }

  /** Before the call: others may be waiting for this rank already, and hear of it. @throws ShoalError `aborted`. */
  check(signal: AbortSignal | undefined, what: string): void {
    if (signal?.aborted === true) throw this.#abort(signal, what);
  }

  /** Until the work is done, the signal ends it, and the group with it. */
  watch<W extends SettlingWork>(work: W, signal: AbortSignal | undefined, what: string): W {
    if (signal === undefined || work.done) return work;
    const onAbort = (): void => {
      if (!work.done) this.#abort(signal, what);
    };
    signal.addEventListener('abort', onAbort, { once: true });
    work.onceSettled(() => signal.removeEventListener('abort', onAbort));
    return work;
  }

  #abort(signal: AbortSignal, what: string): ShoalError {
    const { id, name, globalRanks, rank: own } = this.#group;
    const rank = globalRanks[own];
    const message = `rank ${rank} aborted ${what} of group '${name}' by its signal (${messageOf(signal.reason)}): the group has ended on all its ranks`;
    const error = new ShoalError('aborted', message, { rank, peer: rank, operation: what, cause: signal.reason });
    void this.#client.failGroup(id, error);
    return error;
  }
}
