/** A pipe of a dealer: a socket of its own, connected to one router. */
import { isMainThread } from 'node:worker_threads';
import type * as Zmq from 'zeromq';
import { ShoalError } from '../../../base/errors.ts';
import type { PipeConnectOptions } from '../../backend.ts';
import type { ThreadGate } from '../../thread-gate.ts';
import { BackendPipe, type BackendPipeOptions } from '../backend-pipe.ts';
import { dial } from '../dial.ts';
import { join, lingerMs, PacketSocket } from './packet-socket.ts';

/** Packets of one byte that no router sends: its socket sends `up` to every dealer that gets in, the dealer's own socket receives `down`
 *  when the connection is gone. */
export const notices = { up: 1, down: 2 } as const;

/** This many connections in a row that end in the middle of the handshake, soon after it began, are no accident. */
const refusalsForAuth = 6;
const refusalMs = 2000;

export interface DealerPipeOptions extends Omit<BackendPipeOptions, 'description'> {
  readonly url: string;
  readonly gate: ThreadGate | undefined;
  /** A packet is no larger. */
  readonly packetBytes: number;
}

export class DealerPipe extends BackendPipe {
  readonly #zmq: Zmq.Dealer;
  readonly #options: DealerPipeOptions;
  readonly #socket: PacketSocket;
  #onUp: (() => void) | undefined;

  constructor(socket: Zmq.Dealer, options: DealerPipeOptions) {
    const { url, clock, onEnded, gate } = options;
    super({ description: url, clock, onEnded });
    this.#zmq = socket;
    this.#options = options;
    this.#socket = new PacketSocket(socket, {
      gate,
      onPieces: (pieces) => this.#onPieces(pieces),
      onError: (error) => this.lose(error),
      onIdle: () => this.flushed(),
    });
  }

  connect({ timeoutMs, signal }: PipeConnectOptions): Promise<void> {
    const { url, clock, gate } = this.#options;
    let problem = isMainThread ? 'nobody listens there' : 'nobody listens there, or it does not accept our keys';
    const late = (): string => noRouter(url, timeoutMs, problem);
    return dial({ url, clock, timeoutMs, signal, late }, (finish) => {
      this.#onUp = finish;
      // Listening to events leaves an operation of the package pending, which another thread must not (packet-socket.ts).
      if (isMainThread) {
        this.#onRefusals((refusals) => {
          problem = 'the handshake did not complete';
          const why = `what listens at ${url} does not accept our keys; do both sides have the job's secret, and is it a router?`;
          if (refusals >= refusalsForAuth) finish(new ShoalError('auth', why));
        });
      }
      if (gate?.enter() === false) return;
      this.#zmq.connect(url);
      gate?.leave();
    });
  }

  override send(parts: readonly Uint8Array[]): void {
    this.#socket.push(parts, (error) => this.lose(error));
  }

  protected override get isSending(): boolean {
    return this.#socket.isSending;
  }

  /** ZeroMQ itself lingers for what it has taken. */
  protected override release(timeoutMs?: number): undefined {
    this.#socket.close(timeoutMs === undefined ? 0 : lingerMs);
  }

  /** Counts connections that the other side ended in the middle of the handshake. */
  #onRefusals(callback: (refusals: number) => void): void {
    const { clock } = this.#options;
    const { events } = this.#zmq;
    let refusals = 0;
    let connectedMs = -Infinity;
    events.on('connect', () => {
      connectedMs = clock.now();
    });
    for (const name of ['disconnect', 'handshake:error:protocol', 'handshake:error:auth', 'handshake:error:other'] as const) {
      events.on(name, () => {
        // Whoever takes long is busy. One connection ends with several of these.
        if (clock.now() - connectedMs >= refusalMs) return;
        connectedMs = -Infinity;
        callback(++refusals);
      });
    }
  }

  #onPieces(pieces: Uint8Array[]): void {
    const notice = pieces.length === 1 && pieces[0].byteLength === 1 ? pieces[0][0] : undefined;
    if (notice === notices.up) this.#onUp?.();
    else if (notice === notices.down) this.lose(new Error('its connection has ended'));
    else this.deliver(join(pieces, this.#options.packetBytes));
  }
}

export function noRouter(url: string, timeoutMs: number, why: string): string {
  return `no router at ${url} within ${timeoutMs} ms: ${why}`;
}
