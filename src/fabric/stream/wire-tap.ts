/** Faults on the wire of a stream, for tests: a sender asks the tap before each frame. */
import type { FrameHeader } from './frame.ts';

export interface WireTap {
  /** Called with every header about to be sent, which it may change. `cut` sends half of the frame and breaks the connection. */
  onHeader(header: Uint8Array, frame: Readonly<FrameHeader>): 'send' | 'cut';
}
