/** Addresses and messages that checks of messaging are made of. */
import { makeAddress, type Address } from '../address.ts';
import { Msg } from '../msg.ts';

export const worker = (id: number): Address => makeAddress({ group: 0, id, role: 0 });
export const server = (id: number): Address => makeAddress({ group: 0, id, role: 2 });
export const stub: Address = makeAddress({ group: 0, id: 0, role: 3 });

export function message(source: Address, destination: Address, type = 0, ...frames: (Uint8Array | string)[]): Msg {
  const msg = new Msg(source, destination);
  msg.type = type;
  for (const frame of frames) msg.addFrame(frame);
  return msg;
}

export function pattern(bytes: number, seed: number): Uint8Array {
  const frame = new Uint8Array(bytes);
  for (let k = 0; k < bytes; k++) frame[k] = (k * 31 + (k >> 9) + seed) & 0xff;
  return frame;
}
