/** Barriers of all workers of a job. Server 0 of each server group counts its workers; server 0 of group 0 counts groups.
 *  All messages carry the highest number so far, so that repeating them is harmless and no worker is released twice. */
import { listed } from '../../base/collections/lists.ts';
import { workersOf, type WorkerWait } from './state/rounds.ts';
import type { ServerSession } from './state/client-session.ts';
import type { ServerState } from './state/server-state.ts';
import { packNotice } from '../protocol/wire-control.ts';
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

  /** Names the missing workers, for an error. */
  describe(): WorkerWait {
    const { sessions, transfers, options } = this.#state;
    const { workersPerGroup: workers } = options.topology;
    const came = [...sessions.values()].filter(({ barrier }) => barrier > this.#released).flatMap(({ member }) => workersOf(member));
    const all = [...transfers.groups.keys()].flatMap((group) => workersOf({ firstWorker: group * workers, workers }));
    const late = all.filter((worker) => !came.includes(worker));
    return { text: late.length === 0 ? '' : `${late.length === 1 ? 'worker' : 'workers'} ${listed(late)} not there`, workers: late };
  }

  /** The barrier that all workers of this server group have reached. */
  #ownReached(): number {
    let workers = 0;
    let reached = Number.MAX_SAFE_INTEGER;
    for (const session of this.#state.sessions.values()) {
      workers += session.member.workers;
      reached = Math.min(reached, session.barrier);
    }
    return workers < this.#state.workers ? 0 : reached;
  }

  #answer(): void {
    const { sessions, optimizerNotice, actions } = this.#state;
    for (const session of sessions.values()) {
      for (const request of session.takeBarriers(this.#released)) actions.reply(session, request, packNotice(optimizerNotice));
    }
  }
}
