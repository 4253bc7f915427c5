/** Breaking a connection as a crash would, for tests and faults: connections of every provider can be broken so, while the
 *  contract of `Connection` has only the orderly end. */
import type { Connection } from './fabric.ts';

export interface Abortable {
  /** Breaks the connection: nothing is flushed, both sides see `peer-lost`. */
  abort(): void;
}

/** @throws TypeError for a connection that cannot be broken so. */
export function abortConnection(connection: Connection): void {
  (connection as Connection & Abortable).abort();
}
