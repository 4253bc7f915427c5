import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { LinePrefix } from './line-prefix.ts';

function run(chunks: readonly Buffer[], maxLineBytes?: number): string {
  const prefix = new LinePrefix('[rank 1] ', { maxLineBytes });
  return Buffer.concat([...chunks.map((chunk) => prefix.push(chunk)), prefix.end()]).toString();
}

describe('LinePrefix', () => {
  it('prefixes every line and completes the last one', () => {
    expect(run([Buffer.from('a\nb'), Buffer.from('c\n\nd')])).toBe('[rank 1] a\n[rank 1] bc\n[rank 1] \n[rank 1] d\n');
    expect(run([])).toBe('');
  });

  it('gives nothing out before a line is complete', () => {
    const prefix = new LinePrefix('> ');
    expect(prefix.push(Buffer.from('half')).length).toBe(0);
    expect(prefix.push(Buffer.from('\n')).toString()).toBe('> half\n');
  });

  it('bounds what it holds of a line without end, between characters', () => {
    expect(run([Buffer.from('aéé'.repeat(3))], 4)).toBe(['aé', 'éa', 'éé', 'aé', 'é'].map((line) => `[rank 1] ${line}\n`).join(''));
  });

  it('loses and invents nothing, however the bytes arrive', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: fc.constantFrom('a', 'é', '\n', '€', '😀'), maxLength: 60 }),
        fc.integer({ min: 1, max: 7 }),
        (text, step) => {
          const bytes = Buffer.from(text);
          const chunks: Buffer[] = [];
          for (let at = 0; at < bytes.length; at += step) chunks.push(bytes.subarray(at, at + step));
          const lines = text.endsWith('\n') || text === '' ? text.split('\n').slice(0, -1) : text.split('\n');
          expect(run(chunks)).toBe(lines.map((line) => `[rank 1] ${line}\n`).join(''));
          const cut = run(chunks, 5);
          expect(cut.replaceAll('[rank 1] ', '').replaceAll('\n', '')).toBe(text.replaceAll('\n', ''));
          for (const line of cut.split('\n')) expect(Buffer.byteLength(line)).toBeLessThanOrEqual(9 + 5);
        },
      ),
    );
  });
});
