/** Breaking a connection as a crash would, for tests and faults: every provider's connections can, the contract of
 *  `Connection` has only the orderly end. */
import type { Connection } from './fabric.ts';

export interface Abortable {
  /** Nothing is flushed; both sides see `peer-lost`. */
  abort(): void;
}

/** @throws TypeError for a connection that cannot. */
export function abortConnection(connection: Connection): void {
  (connection as Connection & Abortable).abort();
}
