/** Numbers by slot, in messages between server groups: a head, then an entry per slot. */
import { ByteReader, ByteWriter, Layout } from '../../../base/bytes.ts';

const tableHead = new Layout('a table of slots', { generation: 'f53' });
const tableEntry = new Layout('a table of slots', { slot: 'u32', zero: 'u32', count: 'f53' });

export interface SlotCount {
  readonly slot: number;
  readonly count: number;
}

export function encodeSlotTable(generation: number, slots: readonly number[], counts: readonly number[]): Uint8Array {
  const writer = new ByteWriter();
  writer.record(tableHead, { generation });
  for (const [k, slot] of slots.entries()) writer.record(tableEntry, { slot, count: counts[k] });
  return writer.bytes;
}

/** @throws ShoalError `protocol`, also for a slot that is there twice. */
export function decodeSlotTable(frame: Uint8Array = new Uint8Array(0)): { generation: number; entries: SlotCount[] } {
  const reader = new ByteReader(frame, 'a table of slots');
  const { generation } = reader.record(tableHead);
  const entries: SlotCount[] = [];
  const seen = new Set<number>();
  do {
    const entry = reader.record(tableEntry);
    if (seen.has(entry.slot)) throw reader.malformed(`slot ${entry.slot} twice`);
    seen.add(entry.slot);
    entries.push(entry);
  } while (!reader.done);
  return { generation, entries };
}
