/** The processes behind one server of a job, and this process's role among them. server-records.ts has the rules.
 *
 *                        nobody is, or nobody answers                    primary and standby of the view are lost
 *      start ─▶ server ─────────────────────────────▶ primary ◀────────────────────────────────────┐
 *        │                                               ▲ primary lost, and we are in the view     │
 *        └▶ standby, or the primary answers ─▶ offers to stand by ────────────────────────────────┘
 *               └▶ somebody stands by already: refused */
import { setServedTimer, sleep } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { NodeContext } from './node-context.ts';
import type { ServerRecord, ServerSeat as Role, ServerView } from './server-records.ts';
import { lookMs } from './silence.ts';

export interface SeatOptions {
  readonly node: NodeContext;
  readonly group: number;
  readonly server: number;
  readonly replicas: 1 | 2;
  readonly own: ServerRecord;
}

/** The way in which a standby becomes the primary: with the state it was given, or with what a checkpoint has. */
export type Succession = 'with the state' | 'afresh';

export class ServerSeat {
  readonly #options: SeatOptions;
  /** A primary's view: it is in force unless another has taken over. */
  #view: ServerView | undefined;

  constructor(options: SeatOptions) {
    this.#options = options;
  }

  /** The term of a primary. */
  get term(): number {
    return this.#view?.term ?? 0;
  }

  /** The process that was the server before. */
  former: ServerRecord | undefined;

  /** @throws ShoalError `config` when both places are taken by processes that answer. */
  async take(role: Role, signal?: AbortSignal): Promise<'primary' | 'standby'> {
    const { node, group, server, replicas } = this.#options;
    for (;;) {
      if (signal?.aborted) throw new ShoalError('aborted', 'the server was stopped before it served');
      const view = await node.records.view(group, server);
      if (view === undefined && (role === 'server' || replicas === 1)) {
        if (await this.#succeed(view)) return 'primary';
      } else if (view !== undefined && replicas === 1) {
        if (await answers(node, view.primary, signal)) throw this.#refusal([view.primary]);
        if (await this.#succeed(view)) return 'primary';
      } else if (await this.#offer(view, signal)) {
        return 'standby';
      }
    }
  }

  /** Offers this process as the standby. @returns false when things have changed, or will. */
  async #offer(view: ServerView | undefined, signal: AbortSignal | undefined): Promise<boolean> {
    const { node, group, server, own } = this.#options;
    const candidate = await node.records.candidate(group, server);
    const taken =
      candidate !== undefined && candidate.incarnation !== view?.primary.incarnation && (await answers(node, candidate, signal));
    if (!taken) return node.records.changeCandidate(group, server, { expected: candidate, next: own });
    if (view !== undefined && (await answers(node, view.primary, signal))) throw this.#refusal([view.primary, candidate]);
    // It is about to become the primary; then its place is free.
    await sleep(node.clock, lookMs);
    return false;
  }

  /** A standby: looks whether its primary is there, which it has not heard of for `silentMs`, and takes its place if not.
   *  @returns how; undefined when nothing has changed. */
  async watch(silentMs: number): Promise<Succession | undefined> {
    const { node, group, server, own } = this.#options;
    const { serverSilenceMs, connectTimeoutMs } = node.settings;
    const view = await node.records.view(group, server);
    const isLost = view === undefined ? silentMs > connectTimeoutMs : silentMs > serverSilenceMs || node.processes.isGone(view.primary);
    if (!isLost) return undefined;
    if (view?.standby?.incarnation === own.incarnation) return (await this.#succeed(view)) ? 'with the state' : undefined;
    // Whoever has the state goes first.
    if (view?.standby && !node.processes.isGone(view.standby) && silentMs <= 2 * serverSilenceMs) return undefined;
    if (view !== undefined && (await answers(node, view.primary))) return undefined;
    return (await this.#succeed(view)) ? 'afresh' : undefined;
  }

  /** A primary: whether it still is, and nobody has taken its place. */
  async isOurs(): Promise<boolean> {
    const { node, group, server, own } = this.#options;
    return (await node.records.view(group, server))?.primary.incarnation === own.incarnation;
  }

  /** A primary: takes a standby that has the whole state into the view, or the one that is lost out of it.
   *  @returns false when another process has become the primary. */
  async setStandby(standby: ServerRecord | null): Promise<boolean> {
    const view = this.#view;
    if (view === undefined) return false;
    if (view.standby?.incarnation === standby?.incarnation) return true;
    return this.#change(view, { ...view, standby });
  }

  #succeed(view: ServerView | undefined): Promise<boolean> {
    this.former = view?.primary;
    return this.#change(view, { term: (view?.term ?? 0) + 1, primary: this.#options.own, standby: null });
  }

  async #change(expected: ServerView | undefined, next: ServerView): Promise<boolean> {
    const { node, group, server } = this.#options;
    const changed = await node.records.changeView(group, server, { expected, next });
    if (changed) this.#view = next;
    return changed;
  }

  #refusal(holders: readonly ServerRecord[]): ShoalError {
    const { group, server } = this.#options;
    const [primary, standby] = holders.map(({ pid, url }) => `process ${pid} at ${url}`);
    const who = standby === undefined ? `is ${primary}` : `is ${primary}, with the standby ${standby}`;
    const message = `server ${server} of group ${group} ${who}; this process is one too many: give it another SHOAL_SERVER`;
    return new ShoalError('config', message);
  }
}

/** Whether a process answers: it has not ended, and has answered within the time that a server may be silent. */
async function answers(node: NodeContext, record: ServerRecord, signal?: AbortSignal): Promise<boolean> {
  let isOver = false;
  const timer = setServedTimer(node.clock, node.settings.serverSilenceMs, () => (isOver = true));
  try {
    while (!isOver && signal?.aborted !== true) {
      const pulse = await node.processes.ask(record);
      if (pulse !== 'silent') return pulse === 'runs';
      await sleep(node.clock, lookMs);
    }
    return false;
  } finally {
    timer.cancel();
  }
}
