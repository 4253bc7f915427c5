/** Calls between tasks: a request, any number of parts, an answer or an error. What carries them, fabric or gRPC, must not know graphs.
 *
 *  - A call is executed once, whatever happens to connections: after a loss the caller connects again and repeats what has no answer
 *    yet, by the same number; whoever has it already goes on with it, or gives the same answer again.
 *  - A caller that is gone for good ends its calls: their signal is aborted.
 *  - A call that is cancelled ends alone. */

/** Bytes in pieces, one after the other. */
export type Pieces = readonly Uint8Array[];

export interface RpcCall {
  readonly method: number;
  /** At an address that is a multiple of 8; the handler's own. */
  readonly body: Uint8Array;
  /** Who calls: differs between every two callers, stays over connections. */
  readonly caller: string;
  /** Aborted when nobody waits for the answer any more. */
  readonly signal: AbortSignal;
  /** Sends part of the answer before its end. */
  part(pieces: Pieces): void;
}

/** Rejections travel to the caller. */
export type RpcHandler = (call: RpcCall) => Promise<Pieces>;

export interface RpcService {
  readonly handle: RpcHandler;
  /** A caller has gone: cleanly, or for longer than connections may take to come back. */
  readonly callerGone: (caller: string) => void;
}

export interface CallOptions {
  readonly signal?: AbortSignal;
  /** In the order in which they were sent. */
  readonly onPart?: (body: Uint8Array) => void;
}

/** The way to one task. */
export interface RpcLink {
  /** @throws ShoalError what the handler threw; `peer-lost` naming the task when it cannot be reached any more; `aborted` by the signal. */
  call(method: number, body: Pieces, options?: CallOptions): Promise<Uint8Array>;
  /** Resolves when it has ended, however. */
  readonly lost: Promise<void>;
  close(): Promise<void>;
}

export interface RpcStats {
  /** That this process made. */
  calls: number;
  /** For its own calls and those it answered. */
  bytesSent: number;
  bytesReceived: number;
}

export interface RpcCarrier {
  readonly name: string;
  readonly stats: Readonly<RpcStats>;
  /** @returns where others connect, as text for the job's store. */
  listen(service: RpcService): Promise<string>;
  /** @param task for messages. */
  connect(address: string, task: string): Promise<RpcLink>;
  close(): Promise<void>;
}

/** For errors about a task that went. */
export function describeLoss(task: string, why: string): string {
  return `${task} is lost: ${why}`;
}

export function piecesBytes(pieces: Pieces): number {
  let bytes = 0;
  for (const piece of pieces) bytes += piece.byteLength;
  return bytes;
}

/** One after the other, behind `offset` free bytes. */
export function joinPieces(pieces: Pieces, offset = 0): Uint8Array {
  const joined = new Uint8Array(offset + piecesBytes(pieces));
  let at = offset;
  for (const piece of pieces) {
    joined.set(piece, at);
    at += piece.byteLength;
  }
  return joined;
}
