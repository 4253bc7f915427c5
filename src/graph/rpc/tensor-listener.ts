/** The end that gives tensors: one connection of every caller, that of its last hello. One of whoever makes no calls is ended. */
import { ShoalError } from '../../base/errors.ts';
import type { Connection } from '../../fabric/fabric.ts';
import type { TensorChannel } from '../../rendezvous/carriers/tensor-channel.ts';
import type { TensorAsker, TensorService } from './rpc.ts';
import { nothingToCancel, openChannel, type ChannelSurroundings } from './tensor-channels.ts';

export class TensorListener {
  readonly #service: TensorService | undefined;
  readonly #rank: number;
  readonly #around: ChannelSurroundings;
  /** By the name that its calls have. */
  readonly #callers = new Map<string, TensorChannel | undefined>();
  #connections = 0;

  constructor(service: TensorService | undefined, rank: number, around: ChannelSurroundings) {
    this.#service = service;
    this.#rank = rank;
    this.#around = around;
  }

  /** It makes calls. Idempotent. */
  admit(caller: string): void {
    if (!this.#callers.has(caller)) this.#callers.set(caller, undefined);
  }

  dismiss(caller: string): void {
    const channel = this.#callers.get(caller);
    this.#callers.delete(caller);
    channel?.abort(new ShoalError('closed', 'the caller has gone'));
  }

  accept(connection: Connection): void {
    const { device = `rank ${this.#rank}`, incarnation = 0n } = this.#service ?? {};
    const service = this.#service;
    /** Nothing is asked for before hello. */
    let asker: TensorAsker = { caller: '', connection: ++this.#connections };
    const channel: TensorChannel = openChannel(connection, this.#around, {
      self: { rank: this.#rank, device, incarnation },
      take(stepId, key, waiter) {
        if (service !== undefined) return service.take(asker, stepId, key, waiter);
        waiter.fail(new ShoalError('unsupported', 'no tensors are received from here'));
        return nothingToCancel;
      },
      ...(service && { onAnswered: (stepId, key) => service.onAnswered(stepId, key) }),
      onHello: ({ device: caller }) => {
        if (!this.#callers.has(caller)) {
          channel.abort(new ShoalError('protocol', 'tensors are asked for by whoever makes calls'));
          return;
        }
        asker = { ...asker, caller };
        // This end may not know yet that the one before is lost: nobody listens there any more.
        this.#callers.get(caller)?.abort(new ShoalError('peer-lost', 'the caller has connected anew'));
        this.#callers.set(caller, channel);
      },
      onClose: () => {
        if (this.#callers.get(asker.caller) === channel) this.#callers.set(asker.caller, undefined);
      },
    });
  }
}
