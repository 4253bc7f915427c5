import { describe, expect, it } from 'vitest';
import { bandwidthOf, collectiveNames, layoutOf } from './collective.ts';

describe('layouts', () => {
  // Layouts that nccl-tests 2.19 computes for float, 3 ranks, 4096 bytes: 1024 elements, parts of 341 rounded down to 340.
  it.each([
    ['all-reduce', { sendCount: 1024, receiveCount: 1024, paramCount: 1024, movedCount: 1024 }],
    ['all-gather', { sendCount: 340, receiveCount: 1020, paramCount: 340, movedCount: 1020 }],
    ['reduce-scatter', { sendCount: 1020, receiveCount: 340, paramCount: 340, movedCount: 1020 }],
    ['all-to-all', { sendCount: 1020, receiveCount: 1020, paramCount: 340, movedCount: 1020 }],
    ['broadcast', { sendCount: 1024, receiveCount: 1024, paramCount: 1024, movedCount: 1024 }],
    ['send-recv', { sendCount: 1024, receiveCount: 1024, paramCount: 1024, movedCount: 1024 }],
    ['barrier', { sendCount: 0, receiveCount: 0, paramCount: 0, movedCount: 0 }],
  ] as const)('%s', (collective, layout) => {
    expect(layoutOf(collective, { bytes: 4096, elementBytes: 4, ranks: 3 })).toEqual(layout);
  });

  it('round parts down to 16 bytes', () => {
    expect(layoutOf('all-gather', { bytes: 8, elementBytes: 4, ranks: 2 }).sendCount).toBe(0);
    expect(layoutOf('all-gather', { bytes: 79, elementBytes: 1, ranks: 2 }).sendCount).toBe(32);
  });
});

it('bus bandwidth is algorithm bandwidth times the factor of the collective', () => {
  const factors = collectiveNames.map((name) => bandwidthOf(name, { movedBytes: 4e9, timeUs: 2e6, ranks: 4 }));
  expect(factors.map(({ algorithm }) => algorithm)).toEqual([2, 2, 2, 2, 2, 2, 2]);
  expect(factors.map(({ bus }) => bus)).toEqual([3, 1.5, 1.5, 2, 1.5, 2, 0]);
});
