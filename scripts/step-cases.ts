/** Cases for test/sanitizers/step-threads.cc: operations that ranks of one host run whole, lowered as a process group lowers
 *  them, as text. */
import { headerBytes, signalOffset, slotBytes } from '../src/collectives/control-block.ts';
import { buildPlan, whyUnsupported } from '../src/collectives/build.ts';
import { algorithms } from '../src/collectives/registry.ts';
import { cardBytes, lowerWhole, type LoweredWhole, type SegmentName } from '../src/collectives/lower.ts';
import type { Collective, Plan } from '../src/plan/ir.ts';
import { bufferCounts } from '../src/plan/postcondition.ts';

const stagingBytes = 512 * 1024;
const elementBytes = 4;
const buffers = ['data', 'input', 'output'] as const;

/** Numbers of elements: small, cut by cache lines, of several blocks. */
const counts = [1, 5, 1000, 40_000];
const kinds: readonly Collective[] = ['all-reduce', 'broadcast', 'all-gather', 'reduce-scatter', 'all-to-all', 'reduce', 'barrier'];

/** Every operation that can run whole on this many ranks of a host, `rounds` times one after another. */
export function stepCases(ranks: number, rounds: number): string {
  const topology = { hosts: [Array.from({ length: ranks }, (_, rank) => rank)] };
  const operations: string[] = [];
  let signalMax = 0;
  for (const collective of kinds) {
    for (const count of collective === 'barrier' ? [0] : counts) {
      const splits = collective === 'all-to-all' ? topology.hosts[0].map(() => topology.hosts[0].map(() => count)) : undefined;
      const even = collective === 'all-gather' || collective === 'reduce-scatter';
      const total = splits === undefined ? count * (even ? ranks : 1) : count * ranks * ranks;
      const request = { collective, topology, count: total, elementBytes, ...(splits ? { splits } : {}) };
      for (const algorithm of algorithms) {
        if (whyUnsupported(algorithm, request) !== undefined) continue;
        const plan = buildPlan(algorithm.name, request);
        const wholes = lowered(plan, ranks);
        if (wholes === undefined) continue;
        signalMax = Math.max(signalMax, ...wholes.map(({ signalCount }) => signalCount));
        operations.push(operation(plan, wholes));
      }
    }
  }
  return `${[ranks, headerBytes, slotBytes(signalMax), stagingBytes, rounds, operations.length].join(' ')}\n${operations.join('\n')}\n`;
}

function lowered(plan: Plan, size: number): LoweredWhole[] | undefined {
  const loadStore = Array.from({ length: size }, () => true);
  const wholes = plan.programs.map((program) =>
    lowerWhole(program, { dtype: 'int32', op: 'sum', size, loadStore, scratchBytesMax: stagingBytes }),
  );
  return wholes.every((whole) => whole !== undefined) ? wholes : undefined;
}

function operation(plan: Plan, wholes: readonly LoweredWhole[]): string {
  const counted = plan.programs.map(({ rank }) => bufferCounts(plan.request, rank));
  const bytes = buffers.map((name) => Math.max(...counted.map((of) => of[name])) * elementBytes);
  const signals = Math.max(...wholes.map(({ signalCount }) => signalCount));
  const sums = plan.request.collective === 'all-reduce' ? 1 : 0;
  return [sums, ...bytes, signals, signalOffset(0), ...wholes.map((whole) => program(whole, wholes.length))].join(' ');
}

function program({ code, ordinalOperands, segments, cardSegment }: LoweredWhole, ranks: number): string {
  const places = [...segments.map(place), '4 0 0'];
  if (places.length !== cardSegment + 1) throw new Error('the card is the last segment');
  // The card is all zeros: contracts and addresses of all ranks agree.
  const card = new Array<number>(cardBytes(ranks)).fill(0);
  return [code.length, ...code, ordinalOperands.length, ...ordinalOperands, card.length, ...card, places.length, ...places].join(' ');
}

function place(name: SegmentName): string {
  if (name.kind === 'slot') return `0 ${name.rank} 0`;
  if (name.kind === 'header') return `1 ${name.rank} 0`;
  if (name.buffer === 'scratch') return `3 ${name.rank} 0`;
  return `2 ${name.rank} ${buffers.findIndex((each) => each === name.buffer)}`;
}
