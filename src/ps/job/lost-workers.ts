/** Workers whose processes have ended, in a job that goes on without them: its launcher says so. Those that are only stopped are silent
 *  (silence.ts). */
import { ShoalError } from '../../base/errors.ts';
import type { Address } from '../../messaging/address.ts';
import { clientAddress, workerCount, workerGroupOf, type KVTopology } from '../protocol/topology.ts';
import type { KVPlace } from './environment.ts';
import { goneRanks } from '../../store/ended-ranks.ts';
import type { ServerRecords } from './server-records.ts';

/** More about a client that is lost. */
export interface LostPlace {
  /** Another will be started in its place. */
  readonly returns: boolean;
  /** The workers of a client with which the job began: it may have been lost before it said hello. */
  readonly group?: number;
  readonly first?: number;
  readonly workers?: number;
}

/** Tells of all that have been lost since the job began, and of each that is, until `signal`, or until the store is lost: others hear of
 *  that. */
export async function followLosses(
  records: ServerRecords,
  topology: KVTopology,
  { processes }: Pick<KVPlace, 'processes'>,
  signal: AbortSignal,
  onLost: (client: Address, error: ShoalError, place: LostPlace) => void,
): Promise<void> {
  const workers = workerCount(topology) / processes;
  try {
    for await (const { rank, place, text, returns } of goneRanks(records.store, signal)) {
      const first = place * workers;
      const group = workerGroupOf(topology, first);
      const whole = { returns, ...(rank === place && { group, first, workers }) };
      onLost(clientAddress(group, rank * workers), new ShoalError('peer-lost', text), whole);
    }
  } catch {
    return;
  }
}
