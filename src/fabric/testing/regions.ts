/** Regions for tests of fabrics that need no other process. */
import type { Region } from '../../memory/region.ts';

let made = 0;

export function threadRegion(bytes: number): Region {
  const buffer = new SharedArrayBuffer(bytes);
  const id = `test-${made++}`;
  return { id, bytes, buffer, share: { kind: 'thread', id, bytes, buffer }, close: () => undefined, retire: () => undefined };
}
