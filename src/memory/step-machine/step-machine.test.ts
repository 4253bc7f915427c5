/** The contract of StepMachine on both implementations, their agreement, and the proof that no code can touch memory outside its
 *  segments. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { systemClock, VirtualClock, type Clock } from '../../base/clock.ts';
import { dtypes } from '../dtype.ts';
import { loadNative, nativeBinary, nativeUnavailableReason } from '../native.ts';
import type { RegionShare } from '../region.ts';
import { createRegionAllocator } from '../regions/allocator.ts';
import {
  machineStatuses,
  notStarted,
  Opcode,
  type MachineState,
  type MachineStatus,
  type RepetitionOptions,
  type Segments,
  type StepMachine,
} from '../step-machine.ts';
import { createStepMachine } from './create-step-machine.ts';

const native = loadNative({ enabled: true });
const skipped = native === undefined ? ` (skipped: ${nativeUnavailableReason()})` : '';
const { End, Copy, Reduce, Signal, Wait, Publish, Match, Call, Shift } = Opcode;
const direct = [
  createStepMachine({ clock: systemClock }),
  ...(native === undefined ? [] : [createStepMachine({ native, clock: systemClock })]),
];
/** Also each machine whose programs start as repetitions: the contract of a run is the same. */
const machines = [...direct, ...direct.map(startingByRepetition)];

/** Most looks, of at most a millisecond each, for another thread or process: catches hangs, not processes without CPU. */
const looksMax = 100_000;

interface Bench {
  readonly memory: Uint8Array[];
  readonly state: MachineState;
  run(code: readonly number[], spinNs?: number): MachineStatus;
}

/** Segments of the given sizes over plain memory. */
function bench(machine: StepMachine, sizes: readonly number[], peers = 64): Bench {
  const memory = sizes.map((bytes) => new Uint8Array(new ArrayBuffer(bytes)));
  const segments = machine.createSegments(sizes.length);
  memory.forEach((view, index) => segments.set(index, view));
  const state = machine.createState(peers);
  return {
    memory,
    state,
    run: (code, spinNs = 0) => {
      state.pc = 0;
      return machine.run(Float64Array.from(code), segments, state, spinNs, true);
    },
  };
}

type Numbers = Omit<RepetitionOptions, 'code' | 'segments' | 'state' | 'spinNs' | 'yields'>;

/** The numbers that a repetition counts and writes; of three words a record, of four records a log. */
function numbersOf(operands: readonly number[] = []): Numbers {
  return {
    numbers: new Float64Array(2),
    operands: Uint32Array.from(operands),
    runs: new Float64Array(1),
    stop: new Uint32Array(1),
    record: Uint32Array.of(0, 8, 9),
    log: new Uint32Array(12),
  };
}

function startingByRepetition(machine: StepMachine): StepMachine & { readonly title: string } {
  return {
    title: `${machine.name}, by repetition`,
    name: machine.name,
    createSegments: (count) => machine.createSegments(count),
    createState: (peers) => machine.createState(peers),
    repetition: (options) => machine.repetition(options),
    run(code, segments, state, spinNs, yields) {
      if (state.pc !== 0) return machine.run(code, segments, state, spinNs, yields);
      const start = machine.repetition({ ...numbersOf(), code, segments: [segments, segments], state, spinNs, yields });
      const status = start();
      return status === undefined ? 'done' : machineStatuses[status];
    },
  };
}

const words = (bytes: Uint8Array): Uint32Array => new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >> 2);

describe.each(direct)('repetitions of StepMachine $name', (machine) => {
  function repeated(code: readonly number[], operands: readonly number[]) {
    const memory = [new Uint8Array(64), new Uint8Array(64)];
    const segments = memory.map((view) => {
      const made = machine.createSegments(1);
      made.set(0, view);
      return made;
    }) as unknown as [Segments, Segments];
    const numbers = numbersOf(operands);
    const state = machine.createState(1);
    const options = { ...numbers, code: Float64Array.from(code), segments, state, spinNs: 0, yields: false };
    return { memory, segments, state, numbers, options, start: machine.repetition(options) };
  }
  const publishing = [Publish, 0, 0, 0, 0, 8, 0, End];

  it('count, number the code, publish and log before each run, and change memory in turn', () => {
    const { memory, numbers, start } = repeated(publishing, [3]);
    numbers.runs[0] = 10; // as if others had run ten times, four of them on these segments
    numbers.numbers[0] = 4;
    for (let run = 1; run <= 5; run++) expect(start()).toBeUndefined();
    expect([...numbers.runs, ...numbers.numbers]).toEqual([15, 9, 0]);
    expect([words(memory[0])[0], words(memory[1])[0]]).toEqual([9, 8]); // the last ordinals from 1: an odd one lies in even memory
    expect([...numbers.record]).toEqual([15, 8, 9]);
    expect([...numbers.log]).toEqual([13, 8, 9, 14, 8, 9, 15, 8, 9, 12, 8, 9]);
  });

  it('start nothing, and change nothing, when they are closed or stopped', () => {
    const { memory, numbers, start } = repeated(publishing, [3]);
    for (const [closed, stop] of [
      [1, 0],
      [0, 1],
    ]) {
      numbers.numbers[1] = closed;
      numbers.stop[0] = stop;
      expect(start()).toBe(notStarted);
    }
    numbers.stop[0] = 0;
    expect([...numbers.numbers, ...numbers.runs, ...numbers.log, words(memory[0])[0]].every((each) => each === 0)).toBe(true);
    expect(start()).toBeUndefined();
  });

  it('go on by run() where they had to wait', () => {
    const { memory, segments, state, options, start } = repeated([Wait, 0, 0, 5, Copy, 0, 4, 0, 8, 4, End], []);
    memory[0][8] = 3;
    expect(machineStatuses[start()!]).toBe('waiting');
    words(memory[0])[0] = 5;
    expect(machine.run(options.code, segments[0], state, 0, false)).toBe('done');
    expect(memory[0][4]).toBe(3);
  });

  it('say at their end that a peer sleeps, which nothing but its bell wakes', () => {
    const { memory, state, start } = repeated(publishing, [3]);
    words(memory[0])[2] = 1; // the peer has gone to sleep after it had announced its call
    expect(machineStatuses[start()!]).toBe('done');
    expect(state.doorbells[0]).toBe(1);
    state.doorbells.fill(0);
    expect(start()).toBeUndefined(); // in the other memory it is awake
  });

  it('work on memory that segments were given since', () => {
    const { segments, start } = repeated(publishing, [3]);
    start();
    const other = new Uint8Array(64);
    segments[1].set(0, other);
    start();
    expect(words(other)[0]).toBe(2);
  });

  it('start nothing on memory that was given back', () => {
    const region = createRegionAllocator({ native }).create(64);
    const { segments, numbers, start } = repeated(publishing, [3]);
    segments[0].set(0, new Uint8Array(region.buffer));
    region.close();
    const status = start();
    // Without the addon nothing is ever unmapped, and lost memory is found when the program runs.
    if (machine.name === 'native') expect([status, numbers.runs[0]]).toEqual([notStarted, 0]);
    else expect([undefined, machineStatuses.indexOf('fault')]).toContain(status);
  });
});

describe.each(machines.map((machine) => ({ title: machine.name, ...machine, machine })))('StepMachine $title', ({ machine }) => {
  it('copies and reduces', () => {
    const { memory, run } = bench(machine, [64, 64, 64]);
    new Float32Array(memory[0].buffer).set([1, 2, 3, 4]);
    new Float32Array(memory[1].buffer).set([10, 20, 30, 40]);
    const status = run([
      ...[Reduce, 1, 0, 4, 2, 2, 2, 0, 1, 16, 2, 0, 0, 1, 0, 3, 0, 1, -1], // two targets: segment 2 at 0, segment 1 at 16
      ...[Copy, 2, 16, 1, 16, 16],
      End,
    ]);
    expect(status).toBe('done');
    const floats = new Float32Array(memory[2].buffer);
    expect([...floats.subarray(0, 8)]).toEqual([5.5, 11, 16.5, 22, 5.5, 11, 16.5, 22]);
    expect([...new Float32Array(memory[1].buffer, 16, 4)]).toEqual([5.5, 11, 16.5, 22]);
  });

  it('stops at a wait, stays there, and goes on when the word arrives', () => {
    const { memory, state, run } = bench(machine, [16]);
    const code = [Copy, 0, 8, 0, 12, 4, Wait, 0, 0, 3, Copy, 0, 4, 0, 8, 4, End];
    memory[0][12] = 9;
    expect(run(code)).toBe('waiting');
    expect([state.pc, memory[0][8], memory[0][4]]).toEqual([6, 9, 0]);
    expect(run(code)).toBe('waiting');
    words(memory[0])[0] = 3;
    expect(run(code)).toBe('done');
    expect(memory[0][4]).toBe(9);
  });

  it('compares words modulo 2^32', () => {
    const { memory, run } = bench(machine, [4]);
    const [word] = [words(memory[0])];
    for (const [now, value, reached] of [
      [5, 5, true],
      [4, 5, false],
      [2, 0xfffffffe, true], // has wrapped since
      [0xfffffffe, 2, false],
      [0xfffffffe, 2 ** 32 - 2, true],
      [0, 2 ** 32, true],
      [1, -1, true],
    ] as const) {
      word[0] = now;
      expect(run([Wait, 0, 0, value, End]), `${now} ≥ ${value}`).toBe(reached ? 'done' : 'waiting');
    }
  });

  it('signals by adding, publishes by storing, and rings sleepers', () => {
    const { memory, state, run } = bench(machine, [16], 70);
    const word = words(memory[0]);
    word[0] = 0xffffffff;
    expect(run([Signal, 0, 0, 3, 0, 8, 5, Publish, 0, 4, 77, 0, 8, 69, End])).toBe('done');
    expect([...word]).toEqual([2, 77, 0, 0]);
    expect([...state.doorbells].every((bits) => bits === 0)).toBe(true);
    word[2] = 1;
    expect(run([Signal, 0, 0, 1, 0, 8, 5, Publish, 0, 4, 78, 0, 8, 69, Signal, 0, 0, 1, 0, 8, 31, End])).toBe('done');
    expect([...word]).toEqual([4, 78, 1, 0]);
    expect(state.doorbells[0]).toBe(((1 << 5) | (1 << 31)) >>> 0);
    expect(state.doorbells[2]).toBe(1 << 5);
  });

  it('stops at a wait when it has set a doorbell, even one that is satisfied: bells come first', () => {
    const { memory, state, run } = bench(machine, [16]);
    const word = words(memory[0]);
    word[2] = 1;
    const code = [Publish, 0, 0, 7, 0, 8, 3, Wait, 0, 0, 7, Copy, 0, 12, 0, 0, 4, End];
    expect(run(code)).toBe('waiting');
    expect([state.pc, state.doorbells[0], word[3]]).toEqual([7, 1 << 3, 0]);
    state.doorbells.fill(0);
    word[2] = 0; // it has woken
    expect(run(code)).toBe('done');
    expect(word[3]).toBe(7);
  });

  it('calls out and resumes behind the call', () => {
    const { state, run } = bench(machine, [8]);
    const code = [Call, 42, Call, -1.5, End];
    expect(run(code)).toBe('call');
    expect([state.pc, state.argument]).toEqual([2, 42]);
  });

  it('resumes behind each call until done', () => {
    const segments = machine.createSegments(0);
    const state = machine.createState(0);
    const code = Float64Array.of(Call, 1, Call, 2, End);
    const seen: [MachineStatus, number][] = [];
    for (let k = 0; k < 3; k++) seen.push([machine.run(code, segments, state, 0, false), state.argument]);
    expect(seen).toEqual([['call', 1], ['call', 2], ['done', 2]]); // prettier-ignore
  });

  it('says that bytes differ, with the tag', () => {
    const { memory, state, run } = bench(machine, [32]);
    const code = [Match, 0, 0, 0, 16, 16, 7, End];
    expect(run(code)).toBe('done');
    memory[0][15] = 1;
    expect(run(code)).toBe('differs');
    expect([state.pc, state.argument]).toEqual([0, 7]);
    expect(run([Match, 0, 0, 0, 16, 0, 7, End])).toBe('done');
  });

  // The sizes are whole lines and a rest: one with looking ahead, one without.
  it.each([200, 5003])('shifts %i bytes: out of a place, and the next ones in', (bytes) => {
    const { memory, run } = bench(machine, [bytes, bytes + 1, bytes + 3]);
    const [result, through, next] = [memory[0], memory[1].subarray(1), memory[2].subarray(3)];
    through.forEach((_, k) => (through[k] = k));
    next.forEach((_, k) => (next[k] = 255 - k));
    const [leaving, coming] = [through.slice(), next.slice()];
    expect(run([Shift, 0, 0, 1, 1, 2, 3, bytes, End])).toBe('done');
    expect([result, through, next]).toEqual([leaving, coming, coming]);
    expect(run([Shift, 0, 0, 0, 0, 0, 0, 0, End])).toBe('done');
  });

  it.each([5, 200, 5003, 1_050_000])('copies %i bytes, wherever they lie, and no more', (bytes) => {
    const { memory, run } = bench(machine, [bytes + 2, bytes + 3]);
    memory[1].forEach((_, k) => (memory[1][k] = k % 251));
    expect(run([Copy, 0, 1, 1, 3, bytes, End])).toBe('done');
    expect([memory[0][0], memory[0][bytes + 1]]).toEqual([0, 0]);
    expect(Buffer.compare(memory[0].subarray(1, bytes + 1), memory[1].subarray(3))).toBe(0);
  });

  it('touches nothing for empty copies and reductions', () => {
    const { run } = bench(machine, [8, 0]);
    expect(run([Copy, 0, 8, 1, 0, 0, Reduce, 0, 0, 0, NaN, 1, 0, 0, 1, 1, 0, 1, 0, End])).toBe('done');
  });

  const faults: [string, number[]][] = [
    ['no code', []],
    ['an unknown opcode', [11]],
    ['a fraction as opcode', [0.5]],
    ['a cut copy', [Copy, 0, 0, 0, 8]],
    ['a cut wait', [Wait, 0, 0]],
    ['a cut call', [Call]],
    ['an unknown segment', [Copy, 3, 0, 0, 0, 8, End]],
    ['a negative segment', [Copy, -1, 0, 0, 0, 8, End]],
    ['a fraction of an offset', [Copy, 0, 0.5, 1, 0, 8, End]],
    ['a NaN offset', [Copy, 0, NaN, 1, 0, 8, End]],
    ['an infinite size', [Copy, 0, 0, 1, 0, Infinity, End]],
    ['a negative size', [Copy, 0, 0, 1, 0, -8, End]],
    ['a target that ends outside', [Copy, 0, 60, 1, 0, 8, End]],
    ['a source that ends outside', [Copy, 0, 0, 1, 60, 8, End]],
    ['an offset far outside', [Copy, 0, 2 ** 53 - 1, 1, 0, 8, End]],
    ['a size far outside', [Copy, 0, 0, 1, 0, 2 ** 53 - 1, End]],
    ['a copy over a part of itself', [Copy, 0, 0, 0, 4, 8, End]],
    ['an unknown dtype', [Reduce, 12, 0, 1, NaN, 1, 0, 0, 1, 1, 0, 1, 0, End]],
    ['an unknown operator', [Reduce, 5, 7, 1, NaN, 1, 0, 0, 1, 1, 0, 1, 0, End]],
    ['bits of floats', [Reduce, 1, 5, 1, NaN, 1, 0, 0, 1, 1, 0, 1, 0, End]],
    ['a scaled integer', [Reduce, 5, 0, 1, 2, 1, 0, 0, 1, 1, 0, 1, 0, End]],
    ['a reduction without target', [Reduce, 5, 0, 1, NaN, 0, 1, 1, 0, 1, 0, End]],
    ['a reduction without source', [Reduce, 5, 0, 1, NaN, 1, 0, 0, 0, 0, End]],
    ['more targets than code', [Reduce, 5, 0, 1, NaN, 1e6, 0, 0, End]],
    ['more sources than code', [Reduce, 5, 0, 1, NaN, 1, 0, 0, 1e15, 0, 0, End]],
    ['more tree than code', [Reduce, 5, 0, 1, NaN, 1, 0, 0, 1, 1, 0, 1e9, 0, End]],
    ['a tree that combines nothing', [Reduce, 5, 0, 1, NaN, 1, 0, 0, 1, 1, 0, 1, -1, End]],
    ['a tree with a missing source', [Reduce, 5, 0, 1, NaN, 1, 0, 0, 1, 1, 0, 1, 1, End]],
    ['a tree of other numbers', [Reduce, 5, 0, 1, NaN, 1, 0, 0, 1, 1, 0, 1, -2, End]],
    ['a tree of fractions', [Reduce, 5, 0, 1, NaN, 1, 0, 0, 1, 1, 0, 1, 0.5, End]],
    ['an unaligned operand', [Reduce, 5, 0, 1, NaN, 1, 0, 2, 1, 1, 0, 1, 0, End]],
    ['operands that overlap in part', [Reduce, 5, 0, 4, NaN, 1, 0, 4, 1, 0, 0, 1, 0, End]],
    ['the same source twice', [Reduce, 5, 0, 4, NaN, 1, 0, 0, 2, 1, 0, 1, 0, 3, 0, 1, -1, End]],
    ['a count that leaves the segment', [Reduce, 5, 0, 17, NaN, 1, 0, 0, 1, 1, 0, 1, 0, End]],
    ['a count whose bytes overflow', [Reduce, 0, 0, 2 ** 53 - 1, NaN, 1, 0, 0, 1, 1, 0, 1, 0, End]],
    ['an unaligned word', [Wait, 0, 2, 0, End]],
    ['a word that ends outside', [Wait, 0, 64, 0, End]],
    ['a fraction to wait for', [Wait, 0, 0, 0.5, End]],
    ['an unaligned sleeper', [Signal, 0, 0, 1, 0, 6, 0, End]],
    ['a peer that is not there', [Signal, 0, 0, 1, 0, 8, 64, End]],
    ['a negative peer', [Publish, 0, 0, 1, 0, 8, -1, End]],
    ['a cut shift', [Shift, 0, 0, 1, 0, 2, 0]],
    ['a shift of more than there is', [Shift, 0, 0, 1, 0, 2, 0, 65, End]],
    ['a shift out of its own place', [Shift, 0, 0, 0, 0, 1, 0, 8, End]],
    ['a shift into its own place', [Shift, 0, 0, 1, 0, 1, 0, 8, End]],
    ['a shift whose result lies over what comes next', [Shift, 0, 0, 1, 0, 0, 4, 8, End]],
    ['matching outside', [Match, 0, 0, 1, 56, 16, 0, End]],
  ];
  it.each(faults)('faults on %s and touches nothing', (_, code) => {
    const { memory, state, run } = bench(machine, [64, 64, 64]);
    memory.forEach((view, k) => view.fill(k + 1));
    const before = memory.map((view) => view.slice());
    expect(run(code)).toBe('fault');
    expect(memory).toEqual(before);
    expect(state.pc).toBe(0);
    expect([...state.doorbells].some((bits) => bits !== 0)).toBe(false);
  });

  it('faults where the code ends without an end', () => {
    const { state, run } = bench(machine, [64]);
    expect(run([Copy, 0, 0, 0, 8, 8])).toBe('fault');
    expect(state.pc).toBe(6);
  });

  it('faults on an invalid program counter', () => {
    const segments = machine.createSegments(0);
    const state = machine.createState(0);
    for (const pc of [-1, 0.5, NaN, 2, 1e300]) {
      state.pc = pc;
      expect(machine.run(Float64Array.of(End), segments, state, 0, false)).toBe('fault');
    }
  });

  describe('memory of a segment that was taken away', () => {
    const transferred = (): { view: Uint8Array; take: () => void } => {
      const view = new Uint8Array(new ArrayBuffer(1 << 16));
      return { view, take: () => void structuredClone(view.buffer, { transfer: [view.buffer] }) };
    };
    const ofClosedRegion = (): { view: Uint8Array; take: () => void } => {
      const region = createRegionAllocator({ native }).create(128);
      return { view: new Uint8Array(region.buffer), take: () => region.close() };
    };
    // Without the addon regions are SharedArrayBuffers, which cannot be taken away.
    const cases = createRegionAllocator({ native }).kind === 'shared' ? { transferred, ofClosedRegion } : { transferred };
    it.each(Object.entries(cases))('%s: a step that reaches there faults, the others go on', (_, make) => {
      const lost = make();
      const segments = machine.createSegments(2);
      const state = machine.createState(0);
      const stays = new Uint8Array(128);
      segments.set(0, lost.view);
      segments.set(1, stays);
      const code = Float64Array.of(Copy, 0, 0, 0, 64, 64, Wait, 1, 0, 1, Copy, 1, 0, 1, 64, 64, End);
      expect(machine.run(code, segments, state, 0, false)).toBe('waiting');
      lost.take();
      words(stays)[0] = 1;
      stays.fill(7, 64);
      expect(machine.run(code, segments, state, 0, false)).toBe('done');
      expect(stays[0]).toBe(7);

      state.pc = 0;
      expect(machine.run(code, segments, state, 0, false)).toBe('fault');
      expect(state.pc).toBe(0);

      segments.set(0, new Uint8Array(128));
      expect(machine.run(code, segments, state, 0, false)).toBe('done');
    });
  });

  it('gives up spinning, and continues when called again', () => {
    const { memory, run } = bench(machine, [8]);
    expect(run([Wait, 0, 0, 1, End], 20_000)).toBe('waiting');
    words(memory[0])[0] = 1;
    expect(run([Wait, 0, 0, 1, End], 20_000)).toBe('done');
  });

  it('sees another thread’s data once its signal is there', async () => {
    const rounds = 300;
    const shared = new SharedArrayBuffer(4096 + 64);
    const segments = machine.createSegments(2);
    segments.set(0, new Uint8Array(shared));
    const received = new Uint8Array(4096);
    segments.set(1, received);
    const state = machine.createState(1);
    const worker = new Worker(
      `const { workerData: { shared, rounds }, parentPort } = require('node:worker_threads');
       const words = new Int32Array(shared);
       const data = new Uint8Array(shared, 64, 4096);
       for (let round = 1; round <= rounds; round++) {
         data.fill(round);
         Atomics.add(words, 0, 1);
         while (Atomics.load(words, 1) !== round) Atomics.wait(words, 1, round - 1, 1);
       }`,
      { eval: true, workerData: { shared, rounds } },
    );
    for (let round = 1; round <= rounds; round++) {
      state.pc = 0;
      const code = Float64Array.of(Wait, 0, 0, round, Copy, 1, 0, 0, 64, 4096, Signal, 0, 4, 1, 0, 8, 0, End);
      let status: MachineStatus = 'waiting';
      for (let looks = 0; status === 'waiting' && looks < looksMax; looks++) status = machine.run(code, segments, state, 1_000_000, true);
      expect(status).toBe('done');
      expect(new Set(received)).toEqual(new Set([round & 0xff]));
    }
    await once(worker, 'exit');
  });
});

describe('StepMachine js', () => {
  it('spins by its clock', () => {
    let reads = 0;
    const virtual = new VirtualClock();
    const clock: Clock = { wallNow: () => 0, setTimer: (delay, callback) => virtual.setTimer(delay, callback), now: () => reads++ * 0.01 };
    const { run } = bench(createStepMachine({ clock }), [8]);
    expect(run([Wait, 0, 0, 1, End], 0)).toBe('waiting');
    expect(reads).toBe(0);
    expect(run([Wait, 0, 0, 1, End], 100_000)).toBe('waiting'); // 0.1 ms at 0.01 ms per reading
    expect(reads).toBeGreaterThanOrEqual(10);
    expect(reads).toBeLessThan(14);
  });

  it('has as much patience at every wait: those before were satisfied', () => {
    const words = new Uint32Array(8);
    let reads = 0;
    const virtual = new VirtualClock();
    // A peer raises the next word at every seventh reading, after 0.07 ms.
    const now = (): number => {
      reads += 1;
      if (reads % 7 === 0) words[reads / 7 - 1] = 1;
      return reads * 0.01;
    };
    const clock: Clock = { wallNow: () => 0, setTimer: (delay, callback) => virtual.setTimer(delay, callback), now };
    const machine = createStepMachine({ clock });
    const segments = machine.createSegments(1);
    segments.set(0, new Uint8Array(words.buffer));
    const code = Float64Array.of(...Array.from(words).flatMap((_, index) => [Wait, 0, index * 4, 1]), End);
    expect(machine.run(code, segments, machine.createState(0), 100_000, false)).toBe('done');
  });
});

// Programs over three segments of 256 bytes. Integers only: they have no NaN whose payload may differ.

const sizes = [256, 256, 256] as const;
const integerCodes = dtypes.filter((dtype) => dtype.kind !== 'float').map((dtype) => dtype.code);

/** Slots of 32 bytes never overlap unless they are the same. */
const slot = fc.record({ segment: fc.integer({ min: 0, max: 2 }), offset: fc.integer({ min: 0, max: 7 }).map((k) => k * 32) });
const slotArray = (min: number, max: number) =>
  fc.uniqueArray(slot, { minLength: min, maxLength: max, selector: ({ segment, offset }) => segment * 1000 + offset });

const instruction: fc.Arbitrary<number[]> = fc.oneof(
  fc
    .tuple(slotArray(2, 2), fc.integer({ min: 0, max: 32 }))
    .map(([[a, b], bytes]) => [Copy, a.segment, a.offset, b.segment, b.offset, bytes]),
  fc
    .tuple(
      fc.constantFrom(...integerCodes),
      fc.integer({ min: 0, max: 6 }),
      fc.integer({ min: 0, max: 4 }),
      slotArray(2, 9),
      fc.integer({ min: 1, max: 8 }),
      fc.boolean(),
    )
    .map(([dtype, op, count, slots, split, inPlace]) => {
      const targets = slots.slice(0, Math.min(split, slots.length - 1));
      const sources = slots.slice(targets.length);
      if (inPlace) sources.push(targets[0]);
      const tree = sources.flatMap((_, k) => (k === 0 ? [0] : [k, -1]));
      const locations = (list: typeof slots) => [list.length, ...list.flatMap(({ segment, offset }) => [segment, offset])];
      return [Reduce, dtype, op, count, NaN, ...locations(targets), ...locations(sources), tree.length, ...tree];
    }),
  fc
    .tuple(fc.constantFrom(Signal, Publish), slot, fc.integer({ min: -5, max: 2 ** 33 }), slot, fc.integer({ min: 0, max: 63 }))
    .map(([opcode, word, value, sleeper, peer]) => [opcode, word.segment, word.offset, value, sleeper.segment, sleeper.offset, peer]),
  fc
    .tuple(slotArray(3, 3), fc.integer({ min: 0, max: 32 }))
    .map(([[a, b, c], bytes]) => [Shift, a.segment, a.offset, b.segment, b.offset, c.segment, c.offset, bytes]),
  fc.tuple(slot, fc.integer({ min: 0, max: 2 ** 32 })).map(([word, value]) => [Wait, word.segment, word.offset, value]),
  fc.tuple(slot, slot, fc.integer({ min: 0, max: 32 })).map(([a, b, bytes]) => [Match, a.segment, a.offset, b.segment, b.offset, bytes, 3]),
  fc.integer().map((argument) => [Call, argument]),
);
const program = fc.array(instruction, { maxLength: 12 }).map((instructions) => [...instructions.flat(), End]);
const content = fc.uint8Array({ minLength: 768, maxLength: 768 });

describe.skipIf(native === undefined)(`addon and twin agree${skipped}`, () => {
  it('on every valid program, up to the first stop that does not go on', () => {
    const seen = new Set<MachineStatus>();
    fc.assert(
      fc.property(program, content, (code, bytes) => {
        const results = machines.map((machine) => {
          const { memory, state } = bench(machine, sizes);
          memory.forEach((view, k) => view.set(bytes.subarray(k * 256, k * 256 + 256)));
          const segments = machine.createSegments(3);
          memory.forEach((view, k) => segments.set(k, view));
          const trail: unknown[] = [];
          let status: MachineStatus;
          do {
            status = machine.run(Float64Array.from(code), segments, state, 0, false);
            trail.push(status, state.pc, state.argument);
            seen.add(status);
          } while (status === 'call');
          return { trail, memory, doorbells: [...state.doorbells] };
        });
        expect(results[1]).toEqual(results[0]);
        expect(results[1].trail).not.toContain('fault');
      }),
      { numRuns: 1500 },
    );
    expect([...seen].sort()).toEqual(['call', 'differs', 'done', 'waiting']);
  });
});

describe.each(machines)('StepMachine $name, given hostile code', (machine) => {
  const operand = fc.oneof(
    fc.integer({ min: -1, max: 12 }),
    fc.integer({ min: 0, max: 300 }),
    fc.constantFrom(NaN, Infinity, -Infinity, -0, 0.5, 2 ** 31, 2 ** 32, 2 ** 48, 2 ** 53, 1e300, -(2 ** 40)),
  );

  /** Runs over segments that lie inside larger buffers, and checks the bytes around them. */
  function survives(code: readonly number[]): void {
    const guard = 512;
    const buffers = sizes.map((bytes) => new Uint8Array(bytes + 2 * guard).fill(0xa5));
    const segments = machine.createSegments(3);
    buffers.forEach((buffer, k) => segments.set(k, buffer.subarray(guard, guard + sizes[k])));
    const state = machine.createState(64);
    const codeBefore = Float64Array.from(code);
    const codeRun = codeBefore.slice();
    for (let runs = 0; runs < 20; runs++) {
      const status = machine.run(codeRun, segments, state, 0, false);
      expect(machineStatuses).toContain(status);
      if (status !== 'call') break;
    }
    expect(Buffer.compare(Buffer.from(codeRun.buffer), Buffer.from(codeBefore.buffer))).toBe(0);
    for (const buffer of buffers) {
      for (let k = 0; k < guard; k++)
        if (buffer[k] !== 0xa5 || buffer[buffer.length - 1 - k] !== 0xa5) throw new Error('wrote outside its segment');
    }
  }

  it('survives random numbers', () => {
    fc.assert(fc.property(fc.array(operand, { maxLength: 60 }), survives), { numRuns: 3000 });
  });

  it('survives valid programs with some operands replaced', () => {
    const mutation = fc.record({ at: fc.nat(), operand });
    fc.assert(
      fc.property(program, fc.array(mutation, { minLength: 1, maxLength: 4 }), (code, mutations) => {
        const mutated = [...code];
        for (const { at, operand: value } of mutations) mutated[at % mutated.length] = value;
        survives(mutated);
      }),
      { numRuns: 3000 },
    );
  });
});

describe.skipIf(native === undefined)(`step machines of two processes${skipped}`, () => {
  it('hand data back and forth through shared memory', async () => {
    const rounds = 300;
    const region = createRegionAllocator({ native }).create(8192);
    const share = region.share as Extract<RegionShare, { kind: 'shared' }>;
    const [device, inode] = share.id.split(':').map(Number);
    // The child doubles int32 data at 64 into 4096: waits for word 0, adds the data to a copy of itself, raises word 1.
    const script = `
      const native = require(${JSON.stringify(nativeBinary)});
      const { buffer } = native.openRegion('/proc/${share.pid}/fd/${share.fd}', 8192, ${device}, ${inode});
      const own = new Uint8Array(1024);
      const segments = native.createSegments(2);
      native.setSegment(segments, 0, new Uint8Array(buffer));
      native.setSegment(segments, 1, own);
      const words = Float64Array.of(0, 0, 1e6, 1, 0);
      const registers = native.bindRegisters(words);
      let looks = 0;
      for (let round = 1; round <= ${rounds}; round++) {
        words[0] = 0;
        const code = Float64Array.of(${Wait}, 0, 0, round, ${Copy}, 1, 0, 0, 64, 1024,
          ${Reduce}, 5, 0, 256, NaN, 1, 0, 4096, 2, 0, 64, 1, 0, 3, 0, 1, -1, ${Publish}, 0, 4, round, 0, 8, 0, ${End});
        const program = native.createProgram(code, segments);
        let status = 1;
        while (status === 1 && looks++ < ${looksMax}) status = native.runSteps(program, registers);
        if (status !== 0) process.exit(10 + status);
      }`;
    const child = spawn(process.execPath, ['-e', script], { stdio: 'inherit' });
    const exited = once(child, 'exit');
    await once(child, 'spawn');

    const machine = createStepMachine({ native, clock: systemClock });
    const segments = machine.createSegments(1);
    segments.set(0, new Uint8Array(region.buffer));
    const state = machine.createState(1);
    const input = new Int32Array(region.buffer, 64, 256);
    const output = new Int32Array(region.buffer, 4096, 256);
    for (let round = 1; round <= rounds; round++) {
      input.fill(round);
      state.pc = 0;
      const code = Float64Array.of(Publish, 0, 0, round, 0, 8, 0, Wait, 0, 4, round, End);
      let status: MachineStatus = 'waiting';
      for (let looks = 0; status === 'waiting' && looks < looksMax; looks++) status = machine.run(code, segments, state, 1_000_000, true);
      expect(status).toBe('done');
      expect(output.every((value) => value === 2 * round)).toBe(true);
    }
    expect(await exited).toEqual([0, null]);
    region.close();
  });
});
