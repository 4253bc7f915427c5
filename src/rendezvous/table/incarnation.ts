/** A device has another incarnation each time its process starts. A key of an earlier one must not be answered with a tensor of the
 *  present one: its variables may have other values. */
import { ShoalError } from '../../base/errors.ts';
import type { Incarnations } from './rendezvous.ts';
import type { RendezvousKey } from './rendezvous-key.ts';

/** @throws ShoalError `usage` when the sending device is not here, `mismatch` when it has restarted since the key was made. */
export function checkIncarnation({ sendDevice, incarnation, name }: RendezvousKey, incarnations: Incarnations): void {
  const present = incarnations(sendDevice);
  if (present === incarnation) return;
  if (present === undefined) throw new ShoalError('usage', `'${name}' is asked of ${sendDevice}, which is not a device of this worker`);
  const [asked, is] = [incarnation, present].map((each) => each.toString(16).padStart(16, '0'));
  throw new ShoalError(
    'mismatch',
    `'${name}' is asked of incarnation ${asked} of ${sendDevice}, which is now ${is}: its process has restarted; make the step's keys again`,
  );
}
