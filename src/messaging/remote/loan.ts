/** Memory that a backend lends to the messages of a packet: given back when the last of them is released. */
import type { Packet } from './packet.ts';

export function lend(packet: Packet, release: () => void): void {
  if (packet.kind !== 3) {
    release();
    return;
  }
  let borrowers = packet.messages.length;
  for (const msg of packet.messages) {
    msg.onRelease(() => {
      if (--borrowers === 0) release();
    });
  }
}
