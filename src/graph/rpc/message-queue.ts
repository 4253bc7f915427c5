/** Messages of one connection, in their order. A connection takes so many bytes at a time, and refuses what is beyond; what is beyond waits
 *  here, until it is sent or the connection is lost, with which it is lost. */
import { Fifo } from '../../base/fifo.ts';
import type { Connection } from '../../fabric/fabric.ts';

/** Posted and not sent: enough for the connection to be busy, and far less than it refuses. One larger message may be alone. */
const windowBytes = 16 * 1024 * 1024;

export class MessageQueue {
  readonly #connection: Pick<Connection, 'send'>;
  #waiting = new Fifo<Uint8Array>();
  #bytes = 0;
  #isLost = false;

  constructor(connection: Pick<Connection, 'send'>) {
    this.#connection = connection;
  }

  /** The message is the queue's from now on. */
  push(message: Uint8Array): void {
    if (this.#isLost) return;
    this.#waiting.push(message);
    this.#post();
  }

  #post(): void {
    for (let next = this.#waiting.peek(); next !== undefined; next = this.#waiting.peek()) {
      const { length } = next;
      if (this.#bytes > 0 && this.#bytes + length > windowBytes) return;
      this.#waiting.shift();
      this.#bytes += length;
      void this.#send(next);
    }
  }

  async #send(message: Uint8Array): Promise<void> {
    const { length } = message;
    try {
      await this.#connection.send(message);
    } catch {
      this.#lose();
      return;
    }
    this.#bytes -= length;
    this.#post();
  }

  /** The connection says why when it closes. */
  #lose(): void {
    this.#isLost = true;
    this.#waiting = new Fifo();
  }
}
