/** Staged blocks at run time: lowered for every rank, on both step machines, in a random order of the ranks. The proof of the
 *  plans is in algorithms.test.ts. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../../base/clock.ts';
import { seededRandom } from '../../base/random.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import { loadNative } from '../../memory/native.ts';
import type { ReduceOp } from '../../memory/reduce-op.ts';
import { createStepMachine } from '../../memory/step-machine/create-step-machine.ts';
import { Opcode, type StepMachine } from '../../memory/step-machine.ts';
import { oneHost } from '../../plan/topology.ts';
import { buildPlan } from '../build.ts';
import { ControlBlock, controlBlockBytes } from '../control-block.ts';
import { lowerProgram, lowerWhole, type SegmentName } from '../lower.ts';
import { stagingBlockBytes } from './host-staged.ts';

const native = loadNative({ enabled: true });
const machines = [createStepMachine({ clock: systemClock }), ...(native ? [createStepMachine({ native, clock: systemClock })] : [])];

interface Call {
  readonly algorithm: string;
  readonly ranks: number;
  readonly dtype: DType;
  readonly op: ReduceOp;
  readonly count: number;
  readonly stagingCount?: number;
}

/** Runs an all-reduce of all ranks' `data` in place, ranks advancing in an order drawn from `seed`. */
function run(
  machine: StepMachine,
  { algorithm, ranks, dtype, op, count, stagingCount }: Call,
  data: readonly Uint8Array[],
  seed = 1,
): void {
  const elementBytes = dtypeInfo(dtype).bytes;
  const plan = buildPlan(algorithm, { collective: 'all-reduce', topology: oneHost(ranks), count, elementBytes, stagingCount });
  const signalMax = Math.max(...plan.programs.map(({ signalCount }) => signalCount));
  const shape = { slotCount: 1, signalMax };
  const blocks = data.map(() => new ControlBlock(new ArrayBuffer(controlBlockBytes(shape)), 0, shape));
  const scratch = plan.programs.map(({ scratchCount }) => new Uint8Array(scratchCount * elementBytes).fill(0xee));
  const memory = ({ kind, rank, ...name }: SegmentName): Uint8Array => {
    if (kind === 'slot') return blocks[rank].slot(0);
    if (kind === 'header') return blocks[rank].header;
    return 'buffer' in name && name.buffer === 'scratch' ? scratch[rank] : data[rank];
  };
  const loadStore = data.map(() => true);
  const random = seededRandom(seed);
  const running = plan.programs.map((program) => {
    const lowered = lowerProgram(program, { dtype, op, size: ranks, loadStore });
    const segments = machine.createSegments(lowered.segments.length);
    lowered.segments.forEach((name, index) => segments.set(index, memory(name)));
    return { code: lowered.channels[0], segments, state: machine.createState(ranks) };
  });
  while (running.length > 0) {
    const turn = random.integer(running.length);
    const { code, segments, state } = running[turn];
    const status = machine.run(code, segments, state, 0, false);
    expect(['done', 'waiting']).toContain(status);
    if (status === 'done') running.splice(turn, 1);
  }
}

const reduced: readonly [DType, ReduceOp][] = [
  ['float32', 'sum'],
  ['float64', 'avg'],
  ['bfloat16', 'sum'],
  ['float16', 'max'],
  ['int64', 'product'],
  ['int8', 'min'],
  ['uint16', 'bit-xor'],
];

describe.each(machines)('host-staged on the $name step machine', (machine) => {
  it('has the bits of host-direct, for any size, type and staging', () => {
    const call = fc.record({
      algorithm: fc.constant('host-staged'),
      ranks: fc.integer({ min: 2, max: 5 }),
      count: fc.integer({ min: 1, max: 700 }),
      stagingCount: fc.integer({ min: 1, max: 400 }),
      reduction: fc.constantFrom(...reduced),
      seed: fc.integer({ min: 0, max: 2 ** 31 - 1 }),
    });
    fc.assert(
      fc.property(call, ({ reduction: [dtype, op], seed, ...rest }) => {
        const random = seededRandom(seed);
        const bytes = rest.count * dtypeInfo(dtype).bytes;
        const data = Array.from({ length: rest.ranks }, () => Uint8Array.from({ length: bytes }, () => random.integer(64) + 32));
        const expected = data.map((each) => each.slice());
        run(machine, { ...rest, algorithm: 'host-direct', dtype, op }, expected);
        run(machine, { ...rest, dtype, op }, data, seed);
        expect(data).toEqual(expected);
      }),
      { numRuns: 150 },
    );
  });

  it('works in blocks of its own size where nothing limits them', () => {
    const count = (3 * stagingBlockBytes) / 4 + 7;
    const data = [1, 2].map((factor) => Float32Array.from({ length: count }, (_, index) => (index % 1000) * factor));
    run(
      machine,
      { algorithm: 'host-staged', ranks: 2, dtype: 'float32', op: 'sum', count },
      data.map((each) => new Uint8Array(each.buffer)),
    );
    for (const each of data) expect(each.every((value, index) => value === (index % 1000) * 3)).toBe(true);
  });
});

describe('host-staged', () => {
  it('runs the same code whether loops are built once or step by step', () => {
    const call = fc.record({
      ranks: fc.integer({ min: 2, max: 9 }),
      count: fc.integer({ min: 1, max: 100_000 }),
      stagingCount: fc.integer({ min: 1, max: 5000 }),
      dtype: fc.constantFrom<DType>('float32', 'float64', 'int8'),
    });
    let looped = 0;
    fc.assert(
      fc.property(call, fc.nat(), ({ ranks, dtype, ...rest }, any) => {
        const rank = any % ranks;
        const request = { collective: 'all-reduce', topology: oneHost(ranks), elementBytes: dtypeInfo(dtype).bytes, ...rest } as const;
        const [once, always] = [true, false].map((loops) => {
          const program = buildPlan('host-staged', request, { onlyRank: rank, loops }).programs[rank];
          looped += program.channels.flat().filter(({ kind }: { kind: string }) => kind === 'loop').length;
          return lowerWhole(program, {
            dtype,
            op: 'sum',
            size: ranks,
            loadStore: oneHost(ranks).hosts[0].map(() => true),
            scratchBytesMax: Infinity,
          });
        });
        expect(once).toEqual(always);
      }),
      { numRuns: 300 },
    );
    expect(looped).toBeGreaterThan(50);
  });

  it('has as many steps for a gigabyte as for a megabyte', () => {
    const [small, large] = [2 ** 18, 2 ** 28].map((count) => {
      const request = { collective: 'all-reduce', topology: oneHost(4), count, elementBytes: 4 } as const;
      return buildPlan('host-staged', request, { onlyRank: 1, loops: true }).programs[1].channels[0].length;
    });
    expect(large).toBe(small);
  });

  it('moves the lines of a block once: the results out, the next block in', () => {
    const plan = buildPlan('host-staged', {
      collective: 'all-reduce',
      topology: oneHost(2),
      count: 1024,
      elementBytes: 4,
      stagingCount: 256,
    });
    const { channels } = lowerProgram(plan.programs[0], { dtype: 'float32', op: 'sum', size: 2, loadStore: [true, true] });
    // Counts for four blocks: in, three times out and in, out.
    const lengths: Record<number, number> = { [Opcode.Copy]: 6, [Opcode.Shift]: 8, [Opcode.Signal]: 7, [Opcode.Wait]: 4, [Opcode.End]: 1 };
    const opcodes: number[] = [];
    for (let at = 0; at < channels[0].length;) {
      const opcode = channels[0][at];
      opcodes.push(opcode);
      const locations = (from: number): number => 1 + 2 * channels[0][from];
      if (opcode === Opcode.Reduce) {
        const sources = at + 5 + locations(at + 5);
        const tree = sources + locations(sources);
        at = tree + 1 + channels[0][tree];
      } else at += lengths[opcode];
    }
    const { Copy, Shift, Signal, Wait, Reduce, End } = Opcode;
    const block = [Signal, Wait, Reduce, Signal, Wait];
    expect(opcodes).toEqual([Copy, ...block, Shift, ...block, Shift, ...block, Shift, ...block, Copy, End]);
  });
});
