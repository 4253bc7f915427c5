/** Barriers of all workers of a job. Server 0 of each server group counts its workers; server 0 of group 0 counts groups.
 *  All messages carry the highest number so far, so that repeating them is harmless and no worker is released twice. */
import { listed } from '../../base/collections/lists.ts';
import { workersOf } from './state/rounds.ts';
import type { ServerSession } from './state/client-session.ts';
import type { ServerState } from './state/server-state.ts';
import { packNotice, type WorkerWait } from '../protocol/wire-control.ts';
import { KVMessage } from '../protocol/wire.ts';

export class ServerBarrier {
  readonly #state: ServerState;
  /** The barrier that all workers of each server group have reached, by group; group 0 counts it. */
  readonly #reached: number[];
  #released = 0;

  constructor(state: ServerState) {
    this.#state = state;
    this.#reached = Array.from({ length: state.options.topology.serverGroups }, () => 0);
  }

  arrive(session: ServerSession, request: number, barrier: number): void {
    session.barrier = Math.max(session.barrier, barrier);
    session.waitForBarrier(request, barrier);
    this.#answer();
    this.update();
    // One that has not pushed yet prepares itself, as the others did long ago.
    if (session.member.absent) this.#answer(session, barrier);
  }

  /** Workers have arrived, or a connection with another server has been made. */
  update(): void {
    const { group } = this.#state.options;
    const own = this.#ownReached();
    if (group === 0) this.reached(0, own);
    else if (own > 0) this.#state.actions.send(0, { type: KVMessage.barrierReached, request: own });
  }

  /** Group 0: what another group says. */
  reached(group: number, barrier: number): void {
    this.#reached[group] = Math.max(this.#reached[group], barrier);
    const released = Math.min(...this.#reached);
    this.released(released);
    for (let g = 1; g < this.#reached.length; g++) {
      if (this.#released > 0) this.#state.actions.send(g, { type: KVMessage.barrierReleased, request: this.#released });
    }
  }

  released(barrier: number): void {
    this.#released = Math.max(this.#released, barrier);
    this.#answer();
  }

  /** The last one that all have reached. */
  get passed(): number {
    return this.#released;
  }

  /** Names the missing workers, for an error. */
  describe(): WorkerWait {
    const { transfers, options } = this.#state;
    const { workersPerGroup: workers } = options.topology;
    const came = this.#present
      .filter(({ barrier, member }) => barrier > this.#released || member.absent)
      .flatMap(({ member }) => workersOf(member));
    const all = [...transfers.groups.keys()].flatMap((group) => workersOf({ firstWorker: group * workers, workers }));
    const late = all.filter((worker) => !came.includes(worker));
    return { text: late.length === 0 ? '' : `${late.length === 1 ? 'worker' : 'workers'} ${listed(late)} not there`, workers: late };
  }

  /** The barrier that all workers of this server group have reached. */
  #ownReached(): number {
    let workers = 0;
    let reached = Number.MAX_SAFE_INTEGER;
    for (const { member, barrier, lost, returns, joins } of this.#present) {
      workers += member.workers;
      // The first barrier waits until worker 0, or the process that comes in its place, has set up what all have.
      const isAwaited = this.#released === 0 && member.firstWorker === 0 && (lost === undefined ? joins : returns);
      if (!member.absent || isAwaited) reached = Math.min(reached, barrier);
    }
    return workers < this.#state.workers || reached === Number.MAX_SAFE_INTEGER ? 0 : reached;
  }

  /** The sessions whose workers no other has. */
  get #present(): ServerSession[] {
    return [...this.#state.sessions.values()].filter(({ replaced }) => !replaced);
  }

  /** Answers clients that wait at a barrier. @param only answers this client alone, up to `barrier`. */
  #answer(only?: ServerSession, barrier = 0): void {
    const { sessions, optimizerNotice, actions } = this.#state;
    for (const session of only === undefined ? sessions.values() : [only]) {
      const released = Math.max(this.#released, barrier);
      for (const request of session.takeBarriers(released)) actions.reply(session, request, packNotice(optimizerNotice));
    }
  }
}
