/** The life that pipes of all backends have. Packets that come before there are handlers wait for them; a pipe ends once, closed by its
 *  owner or lost by itself. It must not know how packets travel. */
import { within, type Clock } from '../../base/clock.ts';
import { isShoalError, messageOf, ShoalError } from '../../base/errors.ts';
import type { Pipe, PipeHandlers } from '../backend.ts';
import type { FramePlace } from '../msg.ts';

export interface BackendPipeOptions {
  /** The pipe's name for people. */
  readonly description: string;
  readonly clock: Clock;
  /** Called once, when it has ended. */
  onEnded(): void;
}

const nothing: readonly Uint8Array[] = [];

export abstract class BackendPipe implements Pipe {
  readonly pointers: boolean = false;
  readonly #options: BackendPipeOptions;
  #handlers: PipeHandlers | undefined;
  #early: Parameters<PipeHandlers['onParts']>[] = [];
  /** The reason why it ended by itself, until the owner knows. */
  #lost: ShoalError | undefined;
  #isOpen = true;
  #onFlushed: (() => void) | undefined;

  constructor(options: BackendPipeOptions) {
    this.#options = options;
  }

  get description(): string {
    return this.#options.description;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  setHandlers(handlers: PipeHandlers): void {
    this.#handlers = handlers;
    for (const packet of this.#early.splice(0)) handlers.onParts(...packet);
    this.#tellLost();
  }

  abstract send(parts: readonly Uint8Array[], pointers?: readonly Uint8Array[], places?: readonly (FramePlace | undefined)[]): void;

  async close(timeoutMs: number): Promise<void> {
    if (timeoutMs > 0 && this.#isOpen && this.isSending) {
      const flushed = new Promise<void>((resolve) => {
        this.#onFlushed = resolve;
      });
      await within(this.#options.clock, timeoutMs, flushed, () => undefined);
    }
    await this.#end(timeoutMs);
  }

  /** Ends it by itself: the peer went, or cannot be talked to. */
  lose(cause: unknown): void {
    if (!this.#isOpen) return;
    this.#lost = isShoalError(cause) ? cause : new ShoalError('peer-lost', `${this.description} is gone: ${messageOf(cause)}`, { cause });
    this.#end()?.catch(() => undefined);
    this.#tellLost();
  }

  /** Packets of `send` wait here. */
  protected abstract readonly isSending: boolean;

  /** Gives back what it has; called once. @param timeoutMs time that is left for what was sent; undefined: the pipe is lost. */
  protected abstract release(timeoutMs?: number): Promise<void> | undefined;

  /** A packet has come. */
  protected deliver(parts: Uint8Array[], pointers: readonly Uint8Array[] = nothing, release?: () => void): void {
    if (this.#handlers === undefined) this.#early.push([parts, pointers, release]);
    else this.#handlers.onParts(parts, pointers, release);
  }

  /** No packet waits here any more. */
  protected flushed(): void {
    this.#onFlushed?.();
  }

  #end(timeoutMs?: number): Promise<void> | undefined {
    if (!this.#isOpen) return undefined;
    this.#isOpen = false;
    const released = this.release(timeoutMs);
    this.#onFlushed?.();
    this.#options.onEnded();
    return released;
  }

  /** Never inside a call of the owner's. */
  #tellLost(): void {
    if (this.#lost === undefined || this.#handlers === undefined) return;
    const [lost, handlers] = [this.#lost, this.#handlers];
    this.#lost = undefined;
    queueMicrotask(() => handlers.onClose(lost));
  }
}
