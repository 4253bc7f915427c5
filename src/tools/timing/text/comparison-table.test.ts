import { describe, expect, it } from 'vitest';
import type { ComparedRow } from '../compare.ts';
import { choicesOf, formatComparison, formatComparisonHead } from './comparison-table.ts';

function row(bytes: number, timesUs: Record<string, number>, change: Partial<ComparedRow> = {}): ComparedRow {
  const names = Object.keys(timesUs);
  const best = names.reduce((a, b) => (timesUs[b] < timesUs[a] ? b : a));
  const chosen = change.chosen ?? names[0];
  const auto = timesUs[chosen];
  return {
    collective: 'all-reduce',
    bytes,
    timesUs: { auto, ...timesUs },
    chosen,
    hopeless: [],
    best,
    autoOverBest: auto / timesUs[best],
    scatter: 1,
    wrong: 0,
    ...change,
  };
}

describe('choicesOf', () => {
  it('ranges meet half-way between sizes, on a logarithmic scale, and cover the measured sizes and no others', () => {
    const [choice] = choicesOf([row(16, { tree: 1, direct: 9 }), row(1024, { tree: 1, direct: 9 }), row(65_536, { tree: 9, direct: 1 })]);
    expect(choice.ranges).toEqual([
      { from: 16, to: 8192, algorithm: 'tree' },
      { from: 8192, to: 65_537, algorithm: 'direct' },
    ]);
    expect(choice.measured.map(({ bytes }) => bytes)).toEqual([16, 1024, 65_536]);
  });

  it('does not change for a difference that may be noise: neither from the size before nor from the usual choice', () => {
    const rangesOf = (rows: ComparedRow[]): string[] => choicesOf(rows)[0].ranges.map(({ algorithm }) => algorithm);
    expect(choicesOf([row(8, { tree: 1 })])[0].ranges).toEqual([{ from: 8, to: 9, algorithm: 'tree' }]);
    expect(rangesOf([row(8, { tree: 100, direct: 96 })])).toEqual(['tree']);
    expect(rangesOf([row(8, { tree: 100, direct: 94 })])).toEqual(['direct']);
    expect(rangesOf([row(8, { direct: 1, tree: 9 }), row(64, { tree: 96, direct: 100 })])).toEqual(['direct']);
    expect(rangesOf([row(8, { direct: 1, tree: 9 }), row(64, { tree: 90, direct: 100 })])).toEqual(['direct', 'tree']);
  });

  it('an algorithm that was left out is never taken', () => {
    const rows = [row(8, { tree: 1, direct: 2 }), row(64, { direct: 2 }, { hopeless: ['tree'] })];
    expect(choicesOf(rows)[0].ranges.map(({ algorithm }) => algorithm)).toEqual(['tree', 'direct']);
  });

  it('keeps collectives apart', () => {
    const rows = [row(8, { tree: 1 }), row(8, { direct: 1 }, { collective: 'broadcast' })];
    expect(choicesOf(rows).map(({ collective, ranges }) => [collective, ranges[0].algorithm])).toEqual([
      ['all-reduce', 'tree'],
      ['broadcast', 'direct'],
    ]);
  });
});

it('columns stand under their names; a cell that was not measured says why', () => {
  const names = ['mailbox', 'halving-doubling', 'tree'];
  const head = formatComparisonHead(names);
  const line = formatComparison(
    row(1024, { tree: 123.456, mailbox: 1.5 }, { chosen: 'tree', hopeless: ['halving-doubling'], wrong: 3 }),
    names,
  );
  expect(line).toMatch(/^all-reduce +1KiB +123 +1\.50 +>4x +123 +mailbox \(auto: tree\), 82\.30, 1\.00, 3 WRONG\n$/);
  const end = (text: string, word: string): number => text.indexOf(word) + word.length;
  expect(end(line, '1.50')).toBe(end(head, 'mailbox'));
  expect(end(line, '>4x')).toBe(end(head, 'halving-doubling'));
});
