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
    ['reduce', { sendCount: 1024, receiveCount: 1024, paramCount: 1024, movedCount: 1024 }],
    ['gather', { sendCount: 340, receiveCount: 1020, paramCount: 340, movedCount: 1020 }],
    ['scatter', { sendCount: 1020, receiveCount: 340, paramCount: 340, movedCount: 1020 }],
    ['barrier', { sendCount: 0, receiveCount: 0, paramCount: 0, movedCount: 0 }],
  ] as const)('%s', (collective, layout) => {
    expect(layoutOf(collective, { bytes: 4096, elementBytes: 4, ranks: 3 })).toMatchObject(layout);
  });

  it('grow with the rank in the uneven forms, and have nothing but their part beside the root', () => {
    const size = { bytes: 4096, elementBytes: 4, ranks: 3 };
    expect(layoutOf('all-gather-v', size)).toEqual({
      parts: [168, 340, 512],
      sendCount: 168,
      receiveCount: 1020,
      paramCount: 340,
      movedCount: 1020,
    });
    expect(layoutOf('gather-v', size, { rank: 2, root: 0 })).toMatchObject({ sendCount: 512, receiveCount: 0, movedCount: 1020 });
    expect(layoutOf('scatter', size, { rank: 1, root: 1 })).toMatchObject({ sendCount: 1020, receiveCount: 340 });
  });

  it('round parts down to 16 bytes', () => {
    expect(layoutOf('all-gather', { bytes: 8, elementBytes: 4, ranks: 2 }).sendCount).toBe(0);
    expect(layoutOf('all-gather', { bytes: 79, elementBytes: 1, ranks: 2 }).sendCount).toBe(32);
  });
});

it('bus bandwidth is algorithm bandwidth times the factor of the collective', () => {
  const factors = collectiveNames.map((name) => [name, bandwidthOf(name, { movedBytes: 4e9, timeUs: 2e6, ranks: 4 })] as const);
  expect(factors.every(([, { algorithm }]) => algorithm === 2)).toBe(true);
  expect(Object.fromEntries(factors.map(([name, { bus }]) => [name, bus]))).toEqual({
    ...{ 'all-reduce': 3, broadcast: 2, reduce: 2, 'send-recv': 2, barrier: 0, latency: 2, bandwidth: 2, bidirectional: 4 },
    ...{ 'all-gather': 1.5, 'reduce-scatter': 1.5, gather: 1.5, scatter: 1.5, 'all-to-all': 1.5 },
    ...{ 'all-gather-v': 1.5, 'reduce-scatter-v': 1.5, 'gather-v': 1.5, 'scatter-v': 1.5, 'all-to-all-v': 1.5 },
  });
});
