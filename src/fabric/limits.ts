/** Limits that all providers share, and the errors of operations; no I/O. */
import { ShoalError } from '../base/errors.ts';
import type { PeerIdentity, Span } from './fabric.ts';

export const defaultMaxQueuedBytes: number = 64 * 1024 * 1024;
export const maxMessageBytes: number = 16 * 1024 * 1024;
const maxImmediate = 0xffffffff;
/** Most operations posted on one connection whose promises are pending. */
export const maxPendingOperations = 131_072;
/** Time that `close` flushes unless told otherwise. */
export const defaultCloseTimeoutMs = 1000;
export const defaultListenHosts: readonly string[] = ['127.0.0.1'];

/** @throws ShoalError `usage` when the span is not inside its region or the immediate not a uint32. */
export function checkSource(source: Span, immediate: number | undefined): void {
  const { region, offset, bytes } = source;
  if (!Number.isSafeInteger(offset) || !Number.isSafeInteger(bytes) || offset < 0 || bytes < 0 || bytes > region.bytes - offset) {
    throw new ShoalError('usage', `write: source of ${bytes} bytes at offset ${offset} is outside its region of ${region.bytes} bytes`);
  }
  if (immediate !== undefined && (!Number.isInteger(immediate) || immediate < 0 || immediate > maxImmediate)) {
    throw new ShoalError('usage', `write: immediate ${immediate} is not an integer from 0 to ${maxImmediate}`);
  }
}

/** @throws ShoalError `usage` above the limit. */
export function checkMessage(message: Uint8Array): void {
  if (message.length > maxMessageBytes) {
    const text = `send: message of ${message.length} bytes is larger than ${maxMessageBytes}; write it to a registered region`;
    throw new ShoalError('usage', text);
  }
}

/** Operations in flight on a connection. */
export interface InFlight {
  readonly operations: number;
  readonly bytes: number;
}

/** @throws ShoalError `out-of-memory` when the caller posts without awaiting and the peer does not take it. */
export function checkBacklog(peer: PeerIdentity, pending: InFlight & { messageBytes: number }, maxQueuedBytes: number): void {
  if (pending.operations < maxPendingOperations && pending.messageBytes <= maxQueuedBytes) return;
  const message = `rank ${peer.rank} does not take what is posted: ${pending.operations} operations with ${pending.messageBytes} bytes of messages wait; await send and write`;
  throw new ShoalError('out-of-memory', message, { peer: peer.rank, bytes: pending.messageBytes });
}

export function peerLost(options: { rank: number; peer: number; description: string; inFlight: InFlight; reason: string }): ShoalError {
  const { rank, peer, description, inFlight, reason } = options;
  const flight = inFlight.operations === 0 ? '' : `; ${inFlight.operations} operations with ${inFlight.bytes} bytes were in flight`;
  const message = `rank ${rank} lost rank ${peer} (${description}): ${reason}${flight}; did rank ${peer} die? its log says more`;
  return new ShoalError('peer-lost', message, { rank, peer, bytes: inFlight.bytes });
}

export function connectionClosed(rank: number, peer: number): ShoalError {
  return new ShoalError('closed', `connection of rank ${rank} to rank ${peer} is closed`, { rank, peer });
}
