/** Counters of the bytes that the streams of one fabric have moved; always on. */
export interface StreamCounters {
  /** Payload bytes moved by copies of our own in user space: messages, which `send` must take over. */
  bytesCopied: number;
  /** Payload bytes of writes that the kernel put straight into the destination region. */
  bytesReceivedInPlace: number;
  framesSent: number;
  framesReceived: number;
}

export function emptyCounters(): StreamCounters {
  return { bytesCopied: 0, bytesReceivedInPlace: 0, framesSent: 0, framesReceived: 0 };
}
