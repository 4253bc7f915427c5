import { expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import type { JobFailure } from './node-records.ts';
import { WorldLedger } from './world-ledger.ts';

function begin({ sizes, min }: { sizes: Record<number, number>; min: number }) {
  const clock = new VirtualClock();
  const [lines, failures, ended, changes]: [string[], JobFailure[], number[], string[]] = [[], [], [], []];
  let isOver = false;
  const ledger = new WorldLedger({
    ...{ clock, min, hostOf: (node) => `host-${node}`, say: (line) => lines.push(line) },
    sizes: new Map(Object.entries(sizes).map(([node, size]) => [Number(node), size])),
    onChange: ({ from, to, rank }) => changes.push(`${from} → ${to}: ${rank}`),
    onTooFew: (failure) => failures.push(failure),
    onLostWithNode: (rank) => ended.push(rank),
    onOver: () => (isOver = true),
  });
  const join = (node: number, rank: number): void => {
    ledger.hear(node, { what: 'waits', rank });
    ledger.hear(node, { what: 'joined', rank });
  };
  const failureOf = (node: number, rank: number): JobFailure => ({
    node,
    host: `host-${node}`,
    rank,
    exitCode: 3,
    text: 'exited with code 3',
    final: true,
  });
  const lose = (node: number, rank: number): void =>
    ledger.hear(node, {
      what: 'ended',
      rank,
      text: 'exited with code 3',
      described: `rank ${rank} exited with code 3: Error: x`,
      again: '',
      failure: failureOf(node, rank),
    });
  const finish = (node: number, rank: number): void => ledger.hear(node, { what: 'ended', rank });
  return { clock, ledger, lines, failures, ended, changes, isOver: () => isOver, join, lose, finish };
}

it('tells in one line of ranks of a node that join together, and of those that are lost with their node', () => {
  const { clock, ledger, lines, ended, changes, join } = begin({ sizes: { 0: 2 }, min: 2 });
  [2, 3].forEach((rank) => join(1, rank));
  join(2, 4);
  clock.advance(1000);
  ledger.nodeGone(1, 'host-1');
  expect(lines).toEqual([
    'world 2 → 4: ranks 2, 3 on node 1 (host-1) joined',
    'world 4 → 5: rank 4 on node 2 (host-2) joined',
    'world 5 → 3: node 1 (host-1) was lost with ranks 2, 3; the others go on',
  ]);
  expect(changes).toEqual(['2 → 3: 2', '3 → 4: 3', '4 → 5: 4', '5 → 4: 2', '4 → 3: 3']);
  expect(ended).toEqual([2, 3]);
});

it('tells of those that have joined before it tells of a loss', () => {
  const { lines, join, lose } = begin({ sizes: { 0: 2 }, min: 1 });
  join(1, 2);
  lose(1, 2);
  expect(lines).toEqual([
    'world 2 → 3: rank 2 on node 1 (host-1) joined',
    'world 3 → 2: rank 2 exited with code 3: Error: x; the others go on',
  ]);
});

it('fails with the rank, or the node, without which too few are left, and hears no more', () => {
  const ranks = begin({ sizes: { 0: 1, 1: 1 }, min: 2 });
  ranks.lose(1, 1);
  expect(ranks.failures).toMatchObject([{ node: 1, rank: 1, exitCode: 3 }]);
  ranks.ledger.nodeGone(1, 'host-1');
  expect(ranks.lines).toEqual([]);
  const nodes = begin({ sizes: { 0: 1, 1: 2 }, min: 2 });
  nodes.ledger.nodeGone(1, 'host-1');
  const text = 'its launcher was lost with ranks 1, 2, and 1 of the 2 ranks that the job needs are left';
  expect(nodes.failures).toEqual([{ node: 1, host: 'host-1', exitCode: 1, text, final: true }]);
});

it('is over when all have ended, unless one has just joined', () => {
  const { clock, ledger, isOver, join, finish } = begin({ sizes: { 0: 1 }, min: 1 });
  ledger.hear(1, { what: 'waits', rank: 1 });
  finish(0, 0);
  clock.advance(100);
  ledger.hear(1, { what: 'joined', rank: 1 });
  clock.advance(10_000);
  expect(isOver()).toBe(false);
  join(2, 2);
  finish(1, 1);
  ledger.nodeGone(2, 'host-2');
  expect(isOver()).toBe(true);
});

it('is over without those that nobody can take in any more', () => {
  const { clock, ledger, isOver, finish } = begin({ sizes: { 0: 2 }, min: 1 });
  ledger.hear(1, { what: 'waits', rank: 2 });
  [0, 1].forEach((rank) => finish(0, rank));
  expect(isOver()).toBe(false);
  clock.advance(1000);
  expect(isOver()).toBe(true);
});
