/** What a tensor is called between the node that sends it and the node that receives it, within one step. TensorFlow's form:
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
  return `${sendDevice};${incarnation.toString(16).padStart(16, '0')};${recvDevice};${name};${frame}:${iteration}`;
}

/** @throws ShoalError `protocol` for what is no key. */
export function parseRendezvousKey(text: string): RendezvousKey {
  const match = /^([^;]{1,1000});([0-9a-f]{16});([^;]{1,1000});([^;]{1,4000});(\d{1,15}):(\d{1,15})$/.exec(text);
  if (match === null) throw new ShoalError('protocol', `'${text.slice(0, 200)}' is no rendezvous key`);
  const [, sendDevice, incarnation, recvDevice, name, frame, iteration] = match;
  return { sendDevice, incarnation: BigInt(`0x${incarnation}`), recvDevice, name, frame: Number(frame), iteration: Number(iteration) };
}

/** For messages: `'edge_0_x' from /job:ps/task:0/device:CPU:0`. */
export function describeKey(key: string): string {
  const { name, sendDevice } = parseRendezvousKey(key);
  return `'${name}' from ${sendDevice}`;
}
