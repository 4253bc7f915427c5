/** Counters of the bytes that the streams of one fabric have moved; always on. */
export class StreamCounters {
  /** Payload bytes moved by copies of our own in user space: messages, which `send` must take over. */
  bytesCopied = 0;
  /** Payload bytes of writes that the kernel put straight into the destination region. */
  bytesReceivedInPlace = 0;
  framesSent = 0;
  framesReceived = 0;
}
