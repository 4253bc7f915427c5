/** Counters of one end of a connection; always on. In the steady state each tensor is one request and one write, without a
 *  copy: tests check that here. */
export type TensorCounters = typeof none;

const none = {
  /** Control messages, with records or only to give credits back. */
  messagesSent: 0,
  /** Messages among `messagesSent` that carry no record: they give receive credits back. */
  creditMessagesSent: 0,
  /** Control messages of the peer. */
  messagesReceived: 0,
  /** Requests posted: a fused one counts once, a step of a standing one not at all. */
  requests: 0,
  /** Requests that were posted again, because the tensor's dtype or shape was another than before: its memory was not that of the last
   *  step. */
  rerequests: 0,
  /** Tensors written, and writes that carried an immediate. */
  writes: 0,
  /** Writes that carried an immediate. */
  immediates: 0,
  /** Bytes of tensors that this end has written into the peer's memory. */
  bytesWritten: 0,
  /** Bytes of tensors that this process has moved from memory to memory, beside the write itself. */
  bytesCopied: 0,
  /** Bytes made from values that do not lie in memory as they travel. */
  bytesSerialized: 0,
  /** Payload writes that were left out because the tensor has no bytes. */
  emptyTensors: 0,
};

export function tensorCounters(): TensorCounters {
  return { ...none };
}
