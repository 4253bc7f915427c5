/** A router's socket, with a pipe for each dealer, known by the routing id that ZeroMQ gives it. */
import type * as Zmq from 'zeromq';
import { must } from '../../../base/assert.ts';
import { sleep } from '../../../base/clock.ts';
import type { Listener, Pipe } from '../../backend.ts';
import { BackendPipe } from '../backend-pipe.ts';
import type { DealerPipeOptions } from './dealer-pipe.ts';
import { join, lingerMs, PacketSocket } from './packet-socket.ts';
import { answers } from './zeromq-url.ts';

/** Longest time that ZeroMQ gets to give an address back. */
const releaseMs = 2000;
const releaseLookMs = 5;

export interface RouterListenerOptions extends DealerPipeOptions {
  onPipe(pipe: Pipe): void;
}

export class RouterListener implements Listener {
  readonly #options: RouterListenerOptions;
  readonly #socket: PacketSocket;
  readonly #pipes = new Map<string, RouterPipe>();
  #onIdle: (() => void) | undefined;
  #closed: Promise<void> | undefined;

  constructor(socket: Zmq.Router, options: RouterListenerOptions) {
    this.#options = options;
    this.#socket = new PacketSocket(socket, {
      gate: options.gate,
      onPieces: (pieces) => this.#onPieces(pieces),
      // Only `close` ends it.
      onError: () => undefined,
      onIdle: () => this.#onIdle?.(),
    });
  }

  get url(): string {
    return this.#options.url;
  }

  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    if (this.#socket.isSending) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    }
    this.#socket.close(lingerMs);
    // ZeroMQ gives the address back on its own time: until then nobody can bind it again.
    const { clock, url, onEnded } = this.#options;
    const deadlineMs = clock.now() + releaseMs;
    while (clock.now() < deadlineMs && (await answers(url))) await sleep(clock, releaseLookMs);
    onEnded();
  }

  #onPieces(pieces: Uint8Array[]): void {
    const id = must(pieces.shift(), () => 'a ROUTER socket tells who sent a message');
    const key = Buffer.from(id.buffer, id.byteOffset, id.byteLength).toString('latin1');
    const known = this.#pipes.get(key);
    if (pieces.length === 1 && pieces[0].byteLength === 0) known?.lose(new Error('its connection has ended'));
    else (known ?? this.#newPipe(id, key)).onPieces(pieces);
  }

  #newPipe(id: Uint8Array, key: string): RouterPipe {
    // Whatever a pipe that has ended still receives makes a new one, and is told to say hello.
    const options = { ...this.#options, onEnded: () => this.#pipes.delete(key) };
    const pipe = new RouterPipe(this.#socket, Uint8Array.from(id), options);
    this.#pipes.set(key, pipe);
    this.#options.onPipe(pipe);
    return pipe;
  }
}

class RouterPipe extends BackendPipe {
  protected override readonly isSending = false;
  readonly #socket: PacketSocket;
  readonly #id: Uint8Array;
  readonly #packetBytes: number;

  constructor(socket: PacketSocket, id: Uint8Array, { url, clock, packetBytes, onEnded }: DealerPipeOptions) {
    super({ description: `a dealer of ${url}`, clock, onEnded });
    this.#socket = socket;
    this.#id = id;
    this.#packetBytes = packetBytes;
  }

  override send(parts: readonly Uint8Array[]): void {
    if (this.isOpen) this.#socket.push(parts, (error) => this.lose(error), this.#id);
  }

  onPieces(pieces: Uint8Array[]): void {
    try {
      this.deliver(join(pieces, this.#packetBytes));
    } catch (thrown) {
      this.lose(thrown);
    }
  }

  protected override release(): undefined {
    // Its socket is the listener's.
  }
}
