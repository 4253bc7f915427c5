/** The end that receives tensors: a connection to one task, made when the first receive wants it, and again when it breaks. What the hello
 *  on it names is the caller that it belongs to. */
import { retry } from '../../base/connections/retry.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import type { Connection, FabricAddress, PeerIdentity } from '../../fabric/fabric.ts';
import type { TensorChannel } from '../../rendezvous/carriers/tensor-channel.ts';
import { LinkTensors } from './link-tensors.ts';
import { describeLoss, type RpcStats } from './rpc.ts';
import { nothingToCancel, openChannel, type ChannelSurroundings } from './tensor-channels.ts';

export interface TensorDialerOptions {
  /** For messages. */
  readonly task: string;
  readonly address: FabricAddress;
  readonly peer: PeerIdentity;
  /** As of its calls. */
  readonly caller: string;
  readonly around: ChannelSurroundings & {
    readonly random: Random;
    readonly connectMs: number;
    readonly reconnectMs: number;
    readonly stats: RpcStats;
  };
  /** No connection can be made, or the task has ended it. */
  readonly onLost: (error: ShoalError) => void;
}

export class TensorDialer {
  readonly tensors: LinkTensors;
  readonly #options: TensorDialerOptions;
  readonly #ended = new AbortController();
  #channel: TensorChannel | undefined;
  #isDialling = false;
  #wasConnected = false;

  constructor(options: TensorDialerOptions) {
    this.#options = options;
    this.tensors = new LinkTensors(options.task, options.around.stats, () => void this.#dial());
  }

  close(cause: ShoalError): void {
    this.#ended.abort(cause);
    this.tensors.fail(cause);
    this.#channel?.abort(cause);
  }

  async #dial(): Promise<void> {
    if (this.#isDialling) return;
    this.#isDialling = true;
    const { task, address, peer, around, onLost } = this.#options;
    const { fabric, clock, random, connectMs, reconnectMs } = around;
    const timeoutMs = this.#wasConnected ? reconnectMs : connectMs;
    const outcome = await retry(
      { clock, random, timeoutMs, signal: this.#ended.signal, isFinal, begin: this.#wasConnected ? 'pause' : 'attempt' },
      (signal, leftMs) => fabric.connect(address, { peer, timeoutMs: leftMs, signal }),
    );
    this.#isDialling = false;
    if ('value' in outcome) this.#open(outcome.value);
    if ('value' in outcome || outcome.why === 'aborted') return;
    const { why, error: cause } = outcome;
    const text = `no connection for its tensors within ${timeoutMs} ms${cause === undefined ? '' : `: ${cause.message}`}`;
    onLost(new ShoalError(why === 'final' ? cause!.code : 'peer-lost', describeLoss(task, text), { cause }));
  }

  #open(connection: Connection): void {
    if (this.#ended.signal.aborted) return void connection.close(0);
    const { peer, caller, around } = this.#options;
    this.#wasConnected = true;
    this.#channel = openChannel(connection, around, {
      self: { rank: peer.rank, device: caller, incarnation: 0n },
      take: (_stepId, _key, waiter) => {
        waiter.fail(new ShoalError('protocol', 'tensors are asked for over a connection of who receives them'));
        return nothingToCancel;
      },
      onClose: (error) => {
        this.#onClose(error);
        return undefined;
      },
    });
    this.tensors.attach(this.#channel);
  }

  #onClose(error: ShoalError | undefined): void {
    this.#channel = undefined;
    if (this.#ended.signal.aborted) return;
    if (error?.code === 'peer-lost') {
      this.tensors.detach();
      return;
    }
    const why = error?.message ?? 'it has closed the connection of its tensors';
    this.#options.onLost(new ShoalError(error?.code ?? 'peer-lost', describeLoss(this.#options.task, why), { cause: error }));
  }
}

/** It was reached before: connections break in the handshake, or another program may have the port of a task that is down. */
function isFinal({ code }: ShoalError): boolean {
  return code !== 'peer-lost' && code !== 'timeout' && code !== 'auth';
}
