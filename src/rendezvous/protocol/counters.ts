/** Counters of one end of a connection; always on. In the steady state each tensor is one request and one write, without a
 *  copy: tests check that here. */
export interface TensorCounters {
  /** Control messages, with records or only to give credits back. */
  messagesSent: number;
  /** Those of `messagesSent` that carry no record: they give receive credits back. */
  creditMessagesSent: number;
  /** Control messages of the peer. */
  messagesReceived: number;
  /** Requests posted: a fused one counts once, a step of a standing one not at all. */
  requests: number;
  /** Requests that were posted again, because the tensor's dtype or shape was another than before: its memory was not that of the last
   *  step. */
  rerequests: number;
  /** Tensors written, and writes that carried an immediate. */
  writes: number;
  /** Writes that carried an immediate. */
  immediates: number;
  /** Bytes of tensors that this end has written into the peer's memory. */
  bytesWritten: number;
  /** Bytes of tensors that this process has moved from memory to memory, beside the write itself. */
  bytesCopied: number;
  /** Bytes made from values that do not lie in memory as they travel. */
  bytesSerialized: number;
  /** Payload writes that were left out because the tensor has no bytes. */
  emptyTensors: number;
}

export function tensorCounters(): TensorCounters {
  return {
    messagesSent: 0,
    creditMessagesSent: 0,
    messagesReceived: 0,
    requests: 0,
    rerequests: 0,
    writes: 0,
    immediates: 0,
    bytesWritten: 0,
    bytesCopied: 0,
    bytesSerialized: 0,
    emptyTensors: 0,
  };
}
