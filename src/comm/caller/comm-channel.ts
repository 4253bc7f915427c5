/** A thread's end of its channel to a guest of the comm thread: numbers work, sends commands, settles work on replies, and
 *  blocks without the event loop. It must not know the meaning of commands. */
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { CommHost, CommHostHandlers, TakeBack } from './comm-host.ts';
import type { GuestEvent } from '../shared/thread-protocol.ts';
import { PendingWork, type WorkHooks, type WorkWaiter } from './work.ts';

interface Typed {
  readonly type: string;
}

/** Commands that are answered by `done`. */
type Numbered<Command> = Extract<Command, { readonly work: number }>;
/** Such a command as the caller writes it: the channel adds its number. */
export type Unnumbered<Command> = Command extends { readonly work: number } ? Omit<Command, 'work'> : never;

/** @typeParam Told what the guest says of its own accord. */
export class CommChannel<Command extends Typed, Info, Told extends Typed = never> implements WorkWaiter {
  readonly #host: CommHost<Command>;
  readonly #pending = new Map<number, PendingWork>();
  readonly #ready: Promise<Info>;
  #resolveReady!: (info: Info) => void;
  #rejectReady!: (error: ShoalError) => void;
  #nextWork = 1;
  #opening = true;
  #heard = false;
  #lost: ShoalError | undefined;

  constructor(createHost: (handlers: CommHostHandlers<GuestEvent<Info, unknown> | Told>) => CommHost<Command>) {
    this.#ready = new Promise((resolve, reject) => {
      this.#resolveReady = resolve;
      this.#rejectReady = reject;
    });
    // Whoever awaits `ready` gets the error; if nobody does, it is not unhandled.
    this.#ready.catch(() => undefined);
    this.#host = createHost({ onEvent: (event) => this.#onEvent(event), onLost: (error) => this.#fail(error) });
  }

  /** The guest has been heard of: from here on it tells other processes itself what becomes of it. */
  get hasBegun(): boolean {
    return this.#heard;
  }

  /** @throws ShoalError why the guest cannot start. */
  ready(): Promise<Info> {
    return this.#ready;
  }

  post(command: Exclude<Command, Numbered<Command>>, transfer?: Parameters<CommHost<Command>['post']>[1]): void {
    if (!this.#lost) this.#host.post(command, transfer);
  }

  start(command: Unnumbered<Command>, description: string, hooks: WorkHooks = {}): PendingWork {
    const pending = new PendingWork(this, description, hooks);
    this.submit(pending, command);
    return pending;
  }

  /** Sends the command of a work that was made before. */
  submit(pending: PendingWork, command: Unnumbered<Command>): void {
    if (this.#lost) {
      pending.settle(this.#lost, { begun: false });
      return;
    }
    this.#host.post(this.#number(pending, command));
  }

  /** Sends it after `delayNs`, or before the next one. What is taken back has not been sent: `pending` is the caller's again. */
  submitLater(pending: PendingWork, command: Unnumbered<Command>, delayNs: number): TakeBack {
    if (this.#lost) {
      pending.settle(this.#lost, { begun: false });
      return () => false;
    }
    const numbered = this.#number(pending, command);
    const takeBack = this.#host.postLater(numbered, delayNs);
    return () => {
      if (!takeBack()) return false;
      this.#pending.delete((numbered as Command & { readonly work: number }).work);
      if (this.#pending.size === 0) this.#host.keepAlive(false);
      return true;
    };
  }

  #number(pending: PendingWork, command: Unnumbered<Command>): Command {
    const work = this.#nextWork++;
    if (this.#pending.size === 0) this.#host.keepAlive(true);
    this.#pending.set(work, pending);
    return { ...command, work } as unknown as Command;
  }

  /** Everything pending, and everything later, fails; the guest ends. */
  async leave(error: ShoalError): Promise<void> {
    this.#fail(error);
    await this.#host.leave();
  }

  readonly now = (): number => systemClock.now();

  pump(timeoutMs: number): boolean {
    this.#host.drain();
    if (this.#pending.size === 0) return true;
    const blocked = this.#host.block(Math.min(timeoutMs, 0x7fffffff));
    this.#host.drain();
    return blocked;
  }

  drain(): void {
    this.#host.drain();
  }

  /** Handles an event that is not about work. */
  protected onTold(event: Told): void {
    void event;
  }

  #onEvent(event: GuestEvent<Info, unknown> | Told): void {
    if (isAnswer<Info>(event)) this.#onAnswer(event);
    else {
      this.#heard = true;
      this.onTold(event);
    }
    // An idle channel does not keep its process from ending.
    if (this.#pending.size === 0 && !this.#opening) this.#host.keepAlive(false);
  }

  #onAnswer(event: GuestEvent<Info, unknown>): void {
    this.#heard ||= event.type !== 'failed' || event.begun !== false;
    switch (event.type) {
      case 'ready':
        this.#opening = false;
        this.#resolveReady(event.info);
        return;
      case 'failed':
        this.#fail(ShoalError.fromData(event.error));
        return;
      case 'done': {
        const { work, error, begun, answer } = event;
        const pending = this.#pending.get(work);
        this.#pending.delete(work);
        pending?.settle(error && ShoalError.fromData(error), { begun, answer });
      }
    }
  }

  #fail(error: ShoalError): void {
    this.#opening = false;
    this.#lost ??= error;
    this.#rejectReady(this.#lost);
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const work of pending) work.settle(this.#lost);
  }
}

function isAnswer<Info>(event: Typed): event is GuestEvent<Info, unknown> {
  return event.type === 'done' || event.type === 'ready' || event.type === 'failed';
}
