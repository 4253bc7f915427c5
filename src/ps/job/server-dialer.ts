/** Dials one server: finds it through the job's records, connects, and does so again when the connection breaks or when
 *  another process becomes the server. Messages that a broken connection loses, and messages sent without one, are repeated by the protocol
 *  above; only a standby's connection is resumed, because the standby would need the whole state again. Messages sent
 *  during connecting wait, because the other end is ready first, and may send requests over its own connection.
 *
 *      look up record ─▶ connect ─▶ up ─▶ messages … ─▶ silence, error or another record ─▶ down ─┐
 *            ▲                                                                                    │
 *            └────────────────────────────────────────────────────────────────────────────────────┘ */
import { sleep } from '../../base/clock.ts';
import { ShoalError, type ErrorCode } from '../../base/errors.ts';
import { retry } from '../../base/connections/retry.ts';
import type { Address } from '../../messaging/address.ts';
import { Dealer } from '../../messaging/dealer.ts';
import type { Msg } from '../../messaging/msg.ts';
import type { NodeContext } from './node-context.ts';
import type { ServerRecord, ServerSeat } from './server-records.ts';
import { lookMs, Silence } from './silence.ts';

export interface ServerDialerOptions {
  readonly node: Pick<NodeContext, 'clock' | 'settings' | 'records' | 'messaging' | 'processes'>;
  readonly group: number;
  readonly server: number;
  /** Default `server`. */
  readonly seat?: ServerSeat;
  /** The address of this end; no other process may have it. */
  readonly own: Address;
  readonly onMessage: (msg: Msg) => void;
  readonly onUp: (record: ServerRecord) => void;
  /** After every `onUp`, and when it cannot be reached in the first place. `ended`: its process has, for certain. `refused`: the settings
   *  of this process and of the server disagree, and it is dialled no more. */
  readonly onDown: (error: ShoalError, how: 'lost' | 'ended' | 'refused') => void;
  /** Another process has taken the place of one that we were connected with: called before we connect to that one. */
  readonly onReplaced?: (former: ServerRecord) => Promise<void>;
  /** An incarnation that is ourselves, and is not connected to. */
  readonly except?: number;
}

/** Errors of a first connection that another attempt does not change. */
const disagreements: readonly ErrorCode[] = ['config', 'usage', 'unsupported'];
const connectMs = 5000;
const firstPauseMs = 100;
/** The dealer of a standby gives up soon: the standby may be elsewhere. */
const reconnectMs = 1000;

export class ServerDialer {
  readonly #options: ServerDialerOptions;
  readonly #stopped = new AbortController();
  #dealer: Dealer | undefined;
  /** The silence of the server that is connected. */
  #silence: Silence | undefined;
  #lost: ShoalError | undefined;
  /** Ends the wait for the next look at the connection. */
  #wake: () => void = () => undefined;
  /** The process that this one was connected with last, and whether it has ended. */
  #former: ServerRecord | undefined;
  #state: 'lost' | 'ended' = 'lost';

  constructor(options: ServerDialerOptions) {
    this.#options = options;
    void this.#run();
  }

  send(msg: Msg): void {
    try {
      this.#dealer?.send(msg);
    } catch (error) {
      // Full or closed: as lost as what was on its way when it closed.
      this.#lose(ShoalError.from(error));
    }
  }

  /** Passes on what was sent, for at most `timeoutMs`. Idempotent. */
  async close(timeoutMs = 1000): Promise<void> {
    this.#stopped.abort();
    const dealer = this.#dealer;
    this.#dealer = undefined;
    await dealer?.close({ timeoutMs });
  }

  async #run(): Promise<void> {
    const { node, group, server, seat = 'server', except } = this.#options;
    const { clock, messaging } = node;
    const { signal } = this.#stopped;
    let isRefused = false;
    const connectOnce = async (): Promise<void> => {
      try {
        const record = await node.records.get(group, server, { seat, signal });
        if (record.incarnation === except) await sleep(clock, lookMs);
        else await this.#serve(record);
      } catch (thrown) {
        const error = ShoalError.from(thrown);
        // A standby may be started anew; and where one has ended, a stranger may have its port.
        isRefused = seat === 'server' && this.#former === undefined && disagreements.includes(error.code);
        if (!signal.aborted) this.#options.onDown(isRefused ? refusal(this.#options, error) : error, isRefused ? 'refused' : this.#state);
        throw error;
      }
    };
    const options = { clock, random: messaging.random, signal, isFinal: () => isRefused, firstPauseMs };
    while (!signal.aborted && !isRefused) await retry(options, connectOnce);
  }

  /** Returns when the connection should be made anew. */
  async #serve(record: ServerRecord): Promise<void> {
    const { node, own, seat, onUp, onReplaced } = this.#options;
    const { processes } = node;
    const isKnown = this.#former?.incarnation === record.incarnation;
    if (isKnown ? (await processes.ask(record)) === 'ended' : processes.isGone(record)) throw this.#ended(record);
    if (this.#former !== undefined && !isKnown) await onReplaced?.(this.#former);
    const breaks = seat === 'standby' ? 'resume' : 'end';
    const dealer = new Dealer(node.messaging, { address: own, limits: { reconnectMs }, breaks });
    try {
      // A standby is sent the state before anything else.
      if (seat !== 'standby') this.#dealer = dealer;
      await dealer.connect(record.url, { timeoutMs: connectMs });
      if (this.#stopped.signal.aborted) return;
      this.#dealer = dealer;
      this.#former = record;
      this.#state = 'lost';
      this.#silence = new Silence(node.settings.serverSilenceMs, () => processes.ask(record));
      dealer.watch(() => this.#drain(dealer));
      onUp(record);
      this.#drain(dealer);
      const lost = await this.#watchOver(dealer, record);
      if (!this.#stopped.signal.aborted) this.#options.onDown(lost, this.#state);
    } finally {
      if (this.#dealer === dealer) this.#dealer = undefined;
      if (!this.#stopped.signal.aborted) await dealer.close({ timeoutMs: 0 });
    }
  }

  /** Resolves when the connection is over, with the reason. */
  async #watchOver(dealer: Dealer, record: ServerRecord): Promise<ShoalError> {
    const { node, group, server, seat = 'server' } = this.#options;
    for (;;) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        node.clock.setTimer(lookMs, resolve, { keepAlive: true });
      });
      if (this.#stopped.signal.aborted || this.#dealer !== dealer) return this.#lost ?? gone(this.#options, 'was closed');
      const current = await node.records.get(group, server, { seat });
      if (current.incarnation !== record.incarnation) return gone(this.#options, `was replaced by process ${current.pid}`);
      if (node.processes.isGone(record)) return this.#ended(record);
      const why = this.#silence?.look();
      if (why !== undefined) return gone(this.#options, why);
    }
  }

  /** The error of a server whose process has ended. */
  #ended(record: ServerRecord): ShoalError {
    this.#state = 'ended';
    return gone(this.#options, `was process ${record.pid}, which has ended`);
  }

  #lose(error: ShoalError): void {
    this.#lost = error;
    this.#dealer = undefined;
    this.#wake();
  }

  #drain(dealer: Dealer): void {
    if (this.#dealer !== dealer) return;
    this.#silence?.heard();
    try {
      for (let msg = dealer.tryReceive(); msg !== undefined; msg = dealer.tryReceive()) this.#options.onMessage(msg);
    } catch (error) {
      this.#lose(ShoalError.from(error));
    }
  }
}

function refusal({ group, server }: ServerDialerOptions, cause: ShoalError): ShoalError {
  const next = 'give all processes the same SHOAL_KV_CARRIER, SHOAL_FABRICS and SHOAL_ENCRYPTION';
  return new ShoalError('config', `server ${server} of group ${group} cannot be reached from here: ${cause.message}; ${next}`, { cause });
}

function gone({ group, server, seat = 'server' }: ServerDialerOptions, how: string): ShoalError {
  return new ShoalError('peer-lost', `${seat} ${server} of group ${group} ${how}`);
}
