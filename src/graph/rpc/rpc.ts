/** Calls between tasks: a request, and an answer or an error. Their carrier must not know graphs.
 *
 *  - A call is executed once, whatever happens to connections: after a loss the caller connects again, and both go on where they stopped.
 *    When they cannot, because the task has counted the caller as gone or is another process, the call fails.
 *  - A caller that is gone for good ends its calls: their signal is aborted.
 *  - A call that is cancelled ends alone. */
import { ShoalError, type ErrorData } from '../../base/errors.ts';

/** Bytes in pieces, one after the other. */
export type Pieces = readonly Uint8Array[];

export interface RpcCall {
  readonly method: number;
  /** The handler's own memory, at an address that is a multiple of 8. */
  readonly body: Uint8Array;
  /** The caller: differs between every two, and stays over connections. */
  readonly caller: string;
  /** Aborted when nobody waits for the answer any more. */
  readonly signal: AbortSignal;
}

export interface RpcService {
  /** Rejections travel to the caller. */
  readonly handle: (call: RpcCall) => Promise<Pieces>;
  /** A caller has gone: cleanly, or for longer than connections may take to come back. */
  readonly callerGone: (caller: string) => void;
}

/** The way to one task. */
export interface RpcLink {
  /** @throws ShoalError what the handler threw; `peer-lost` naming the task when it cannot be reached any more; `aborted` by the signal. */
  call(method: number, body: Pieces, options?: { readonly signal?: AbortSignal }): Promise<Uint8Array>;
  /** Resolves when it has ended, however. */
  readonly lost: Promise<void>;
  close(): Promise<void>;
}

export interface RpcStats {
  /** That this process made. */
  calls: number;
  /** Bytes of its own calls and of those that it answered. */
  bytesSent: number;
  bytesReceived: number;
}

export function encodeError(error: ShoalError): Uint8Array {
  return Buffer.from(JSON.stringify(error.toData()));
}

export function decodeError(body: Uint8Array): ShoalError {
  try {
    return ShoalError.fromData(JSON.parse(Buffer.from(body).toString()) as ErrorData);
  } catch (cause) {
    return new ShoalError('protocol', 'an error could not be read', { cause });
  }
}

/** One after the other, in memory of their own. */
export function joinPieces(pieces: Pieces): Uint8Array {
  const joined = new Uint8Array(pieces.reduce((sum, { byteLength }) => sum + byteLength, 0));
  let at = 0;
  for (const piece of pieces) {
    joined.set(piece, at);
    at += piece.byteLength;
  }
  return joined;
}
