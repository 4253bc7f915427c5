/** The buffers of a call in this rank's memory, as one of its threads maps them, and as the rank announces them. */
import type { Span } from '../fabric/fabric.ts';
import type { BufferName } from '../plan/ir.ts';
import { callKey, type CollectiveCall } from './contract.ts';

/** A buffer in memory that peers may reach. */
export interface BoundBuffer extends Span {
  /** The region's name among ranks. */
  readonly key: number;
}

/** The bytes of a buffer, as this thread maps them. */
export function bytesIn({ region, offset, bytes }: Span): Uint8Array {
  return new Uint8Array(region.buffer, offset, bytes);
}

export type Buffers = Partial<Record<BufferName, BoundBuffer>>;

/** The key that announces a buffer which only its owner can reach. */
export const privateKey = 0;

export interface LocalBuffer {
  /** The region's name among ranks; `privateKey`: peers cannot reach it. */
  readonly key: number;
  readonly offset: number;
  readonly view: Uint8Array;
}

export type LocalBuffers = Partial<Record<BufferName, LocalBuffer>>;

export const bufferNames = ['data', 'input', 'output'] as const;

/** Own buffers of a call are private, or none is. */
export function hasPrivate(buffers: LocalBuffers): boolean {
  for (const name of bufferNames) if (buffers[name]?.key === privateKey) return true;
  return false;
}

/** @param announced `private`: the buffers are copies of memory that only the calling thread reaches. */
export function localBuffers(buffers: Buffers, announced: 'shared' | 'private' = 'shared'): LocalBuffers {
  const local: LocalBuffers = {};
  for (const name of Object.keys(buffers) as BufferName[]) {
    const buffer = buffers[name];
    if (!buffer) continue;
    const view = bytesIn(buffer);
    local[name] = announced === 'private' ? { key: privateKey, offset: 0, view } : { key: buffer.key, offset: buffer.offset, view };
  }
  return local;
}

/** Equal for calls that can use the same bound operation. */
export function operationKey(call: CollectiveCall, buffers: LocalBuffers): string {
  const places = Object.values(buffers).map(({ key, offset, view }) => ` ${key} ${offset} ${view.length}`);
  return callKey(call) + places.join('');
}
