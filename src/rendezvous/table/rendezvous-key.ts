/** The key of a tensor between its sending and its receiving node, within one step. TensorFlow's form:
 *
 *      sendDevice;incarnation;recvDevice;name;frame:iteration
 *
 *  The incarnation is that of the sender's device, 16 hexadecimal digits. */
import { ShoalError } from '../../base/errors.ts';

export interface RendezvousKey {
  readonly sendDevice: string;
  readonly incarnation: bigint;
  readonly recvDevice: string;
  readonly name: string;
  /** Numbers of frame and iteration: 0 and 0 outside loops. */
  readonly frame: number;
  readonly iteration: number;
}

export function formatRendezvousKey({ sendDevice, incarnation, recvDevice, name, frame, iteration }: RendezvousKey): string {
  return `${sendDevice};${incarnationText(incarnation)};${recvDevice};${name};${frame}:${iteration}`;
}

/** @throws ShoalError `protocol` for what is no key. */
export function parseRendezvousKey(text: string): RendezvousKey {
  // Each tensor passes here several times: a regular expression over all of it takes longer than what is looked for.
  const first = text.indexOf(';');
  const second = text.indexOf(';', first + 1);
  const third = text.indexOf(';', second + 1);
  const fourth = text.indexOf(';', third + 1);
  const incarnation = text.slice(first + 1, second);
  const numbers = /^(\d{1,15}):(\d{1,15})$/.exec(text.slice(fourth + 1));
  const isKey =
    isLength(first, deviceCharactersMax) &&
    /^[0-9a-f]{16}$/.test(incarnation) &&
    isLength(third - second - 1, deviceCharactersMax) &&
    isLength(fourth - third - 1, nameCharactersMax) &&
    numbers !== null;
  if (!isKey) throw new ShoalError('protocol', `'${text.slice(0, 200)}' is no rendezvous key`);
  return {
    sendDevice: text.slice(0, first),
    incarnation: BigInt(`0x${incarnation}`),
    recvDevice: text.slice(second + 1, third),
    name: text.slice(third + 1, fourth),
    frame: Number(numbers[1]),
    iteration: Number(numbers[2]),
  };
}

const deviceCharactersMax = 1000;
const nameCharactersMax = 4000;

function isLength(characters: number, max: number): boolean {
  return characters >= 1 && characters <= max;
}

/** A key in messages: `'edge_0_x' from /job:ps/task:0/device:CPU:0`. */
export function describeKey(key: string): string {
  const { name, sendDevice } = parseRendezvousKey(key);
  return `'${name}' from ${sendDevice}`;
}

/** The keys of one request in messages. */
export function describeKeys(keys: readonly string[]): string {
  return keys.length === 1 ? describeKey(keys[0]) : `${keys.length} tensors, the first of them ${describeKey(keys[0])},`;
}

/** An incarnation, as keys have it. */
export function incarnationText(incarnation: bigint): string {
  return incarnation.toString(16).padStart(16, '0');
}

/** A device has another incarnation each time its process starts. A key of an earlier one must not be answered with a tensor of the
 *  present one: its variables may have other values.
 *  @param present the incarnation of the sending device; undefined: it is not here.
 *  @throws ShoalError `usage` when the sending device is not here, `mismatch` when it has restarted since the key was made. */
export function checkIncarnation({ sendDevice, incarnation, name }: RendezvousKey, present: bigint | undefined): void {
  if (present === incarnation) return;
  if (present === undefined) throw new ShoalError('usage', `'${name}' is asked of ${sendDevice}, which is not a device of this worker`);
  const message = `'${name}' is asked of incarnation ${incarnationText(incarnation)} of ${sendDevice}, which is now ${incarnationText(present)}: its process has restarted; make the step's keys again`;
  throw new ShoalError('mismatch', message);
}
