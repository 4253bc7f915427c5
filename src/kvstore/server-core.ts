/** One server of the parameter server, as a state machine: messages in, messages out. It must not know sockets, threads or
 *  processes; who calls it calls one method at a time. */
import type { ShoalError } from '../base/errors.ts';
import type { Address } from '../messaging/address.ts';
import type { Msg } from '../messaging/msg.ts';
import type { ServerOptions } from './server-options.ts';

export class ServerCore {
  readonly #options: ServerOptions;

  private constructor(options: ServerOptions) {
    this.#options = options;
  }

  /** Loads the latest snapshot, if there is one. @throws ShoalError of the store, `mismatch` for another server's. */
  static async start(options: ServerOptions): Promise<ServerCore> {
    await options.snapshots?.load();
    return new ServerCore(options);
  }

  /** Whatever arrived, from stubs, other servers, the primary or the standby. Never throws: see `onFault`. */
  receive(msg: Msg): void {
    void msg;
    void this.#options;
  }

  /** A connection with a stub, server or the standby has been made (again): what may have been lost is sent again. */
  peerUp(address: Address): void {
    void address;
  }

  /** A standby's connection is lost: the primary goes on alone. A stub that will not come back: rounds that miss its
   *  workers fail with its error. */
  peerLost(address: Address, error: ShoalError): void {
    void address;
    void error;
  }

  /** The standby serves from now on. */
  promote(): void {
    void this.#options;
  }

  /** Resolves when the present state is durable; at once without snapshots. */
  checkpoint(): Promise<void> {
    return Promise.resolve();
  }

  /** After a last snapshot, when there is a place for it. Idempotent. */
  close(): Promise<void> {
    return Promise.resolve();
  }
}
