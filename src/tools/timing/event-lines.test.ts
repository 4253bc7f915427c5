import { describe, expect, it } from 'vitest';
import { EventLines, formatEvent } from './event-lines.ts';

function linesOf(event: unknown): string[] {
  return formatEvent(event).split('\n').slice(0, -1);
}

describe('events in lines', () => {
  it('come back as they were, in lines of bounded length', () => {
    const large = { event: 'row', samplesUs: Array.from({ length: 20_000 }, (_, k) => k / 7) };
    for (const event of [{ event: 'row' }, large, { text: 'a\nb “c”' }]) {
      const reader = new EventLines();
      const taken = linesOf(event).map((line) => reader.take(line));
      expect(taken.at(-1)).toEqual({ event });
      expect(taken.slice(0, -1).every((each) => each === undefined)).toBe(true);
    }
    expect(linesOf(large).length).toBeGreaterThan(1);
    expect(Math.max(...linesOf(large).map((line) => line.length))).toBeLessThan(16_384);
  });

  it("are told from a program's other lines, also in between", () => {
    const reader = new EventLines();
    const [first, ...rest] = linesOf({ samples: 'x'.repeat(10_000) });
    expect(reader.take(first)).toBeUndefined();
    for (const other of ['', '{"event":"row"}', 'shoal-event', 'shoal-event? x', 'shoal-events. {}'])
      expect(reader.take(other)).toBe('other');
    expect(rest.map((line) => reader.take(line))).toEqual([{ event: { samples: 'x'.repeat(10_000) } }]);
  });
});
