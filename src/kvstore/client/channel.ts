/** A worker's end of its channel to the client thread: numbers operations, settles them, and can wait without the event loop.
 *
 *      worker's thread                      client thread
 *        post(command) ────── port ───────▶ ClientNode
 *        deliver       ◀───── port ──────── event, then events += 1 and notify      (waitSync sleeps on `events`) */
import { receiveMessageOnPort } from 'node:worker_threads';
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { PendingWork, type WorkWaiter } from '../../comm/work.ts';
import type { ClientAnswer, ClientCommand, ClientEvent, ClientTicket, WorkerInfo } from './protocol.ts';

type Numbered = Extract<ClientCommand, { work: number }>;
type Unnumbered<C> = C extends Numbered ? Omit<C, 'work'> : never;

export interface StartHooks {
  /** Before the work counts as done; a throw is its error. */
  readonly onSuccess?: (answer: ClientAnswer | undefined) => void;
  readonly onSettled?: (error: ShoalError | undefined) => void;
}

export class ClientChannel implements WorkWaiter {
  readonly #ticket: ClientTicket;
  readonly #events: Int32Array;
  readonly #pending = new Map<number, { work: PendingWork; answer: ClientAnswer | undefined }>();
  readonly #ready: Promise<WorkerInfo>;
  #resolveReady!: (info: WorkerInfo) => void;
  #rejectReady!: (error: ShoalError) => void;
  #nextWork = 1;
  #seen = 0;
  #lost: ShoalError | undefined;

  constructor(ticket: ClientTicket) {
    this.#ticket = ticket;
    this.#events = new Int32Array(ticket.events);
    this.#ready = new Promise((resolve, reject) => {
      this.#resolveReady = resolve;
      this.#rejectReady = reject;
    });
    this.#ready.catch(() => undefined);
    ticket.port.on('message', (event: ClientEvent) => this.#deliver(event));
  }

  ready(): Promise<WorkerInfo> {
    return this.#ready;
  }

  post(command: Exclude<ClientCommand, Numbered>): void {
    if (command.type === 'attach') this.#ticket.port.postMessage(command, [command.ticket.port]);
    else if (this.#lost === undefined) this.#ticket.port.postMessage(command);
  }

  start(command: Unnumbered<Numbered>, description: string, hooks: StartHooks = {}): PendingWork {
    const number = this.#nextWork++;
    const { onSuccess, onSettled } = hooks;
    const work = new PendingWork(this, description, {
      ...(onSuccess === undefined ? {} : { onSuccess: () => onSuccess(entry.answer) }),
      ...(onSettled === undefined ? {} : { onSettled: () => onSettled(work.error) }),
    });
    const entry: { work: PendingWork; answer: ClientAnswer | undefined } = { work, answer: undefined };
    if (this.#lost !== undefined) {
      work.settle(this.#lost);
      return work;
    }
    if (this.#pending.size === 0) this.#ticket.port.ref();
    this.#pending.set(number, entry);
    this.#ticket.port.postMessage({ ...command, work: number });
    return work;
  }

  /** Everything pending, and everything later, fails. Idempotent. */
  fail(error: ShoalError): void {
    this.#lost ??= error;
    this.#rejectReady(this.#lost);
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const { work } of pending) work.settle(this.#lost);
  }

  /** The other end is gone. What it said last counts: it may still wait to be heard. */
  end(error: ShoalError): void {
    this.drain();
    this.fail(error);
  }

  close(): void {
    this.#ticket.port.close();
  }

  readonly now = (): number => systemClock.now();

  pump(timeoutMs: number): boolean {
    this.drain();
    if (this.#pending.size === 0) return true;
    Atomics.wait(this.#events, 0, this.#seen, Math.min(timeoutMs, 0x7fffffff));
    this.drain();
    return true;
  }

  drain(): void {
    if (Atomics.load(this.#events, 0) === this.#seen) return;
    for (let next = receiveMessageOnPort(this.#ticket.port); next !== undefined; next = receiveMessageOnPort(this.#ticket.port)) {
      this.#deliver(next.message as ClientEvent);
    }
  }

  #deliver(event: ClientEvent): void {
    this.#seen = (this.#seen + 1) | 0;
    switch (event.type) {
      case 'ready':
        this.#resolveReady(event.info);
        break;
      case 'failed':
        this.fail(ShoalError.fromData(event.error));
        break;
      case 'done': {
        const entry = this.#pending.get(event.work);
        if (entry === undefined) break;
        this.#pending.delete(event.work);
        entry.answer = event.answer;
        entry.work.settle(event.error && ShoalError.fromData(event.error));
      }
    }
    // An idle store does not keep its process from ending.
    if (this.#pending.size === 0) this.#ticket.port.unref();
  }
}
