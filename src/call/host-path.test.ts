/** Host paths of several ranks in one thread, advanced in random order, with operations that change between private and shared
 *  buffers and are left to another host path object (the comm thread's) wherever they happen to wait. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { must } from '../base/assert.ts';
import { systemClock } from '../base/clock.ts';
import { seededRandom, type Random } from '../base/random.ts';
import { ControlBlock, controlBlockBytes } from '../collectives/control-block.ts';
import { createStepMachine } from '../memory/step-machine/create-step-machine.ts';
import { oneHost } from '../plan/topology.ts';
import type { CollectiveCall } from './contract.ts';
import type { GroupSpec } from './group-spec.ts';
import { privateKey, type LocalBuffer } from './local-buffers.ts';
import {
  blockShape,
  HostPath,
  hostPathNames,
  hostPathOf,
  type HostPathName,
  type HostPathOperation,
  type HostPathStatus,
} from './host-path.ts';
import type { Planner, HostPathPlans } from './planner.ts';
import { plannerOf } from './testing/planner-of.ts';

const slotCount = 1;
const counts = [1, 5000, 70_000];

const nothing = new Uint8Array(0);

/** Memory of all ranks by rank and key; a rank comes to know a peer's only after it has asked in vain, and finds nothing where
 *  the peer has left. */
class Host {
  readonly blocks: readonly ControlBlock[];
  readonly #spec: (rank: number) => GroupSpec;
  readonly #regions = new Map<string, Uint8Array>();

  constructor(ranks: number, { before } = { before: 0 }) {
    const globalRanks = Array.from({ length: ranks }, (_, rank) => rank);
    this.#spec = (rank) => ({ id: 0, name: 'test', globalRanks, rank, topology: oneHost(ranks) });
    const shape = blockShape(this.#spec(0), { slotCount, signalMax: 2 * ranks });
    this.blocks = globalRanks.map(() => new ControlBlock(new ArrayBuffer(controlBlockBytes(shape)), 0, shape));
    for (const block of this.blocks) for (let slot = 0; slot < shape.slotCount; slot++) block.publish(slot, before);
  }

  add(rank: number, key: number, view: Uint8Array): void {
    this.#regions.set(`${rank}:${key}`, view);
  }

  /** Whoever looks for the rank's memory from now on does not find it. */
  leave(rank: number): void {
    for (const place of this.#regions.keys()) if (place.startsWith(`${rank}:`)) this.#regions.set(place, nothing);
  }

  hostPath(rank: number, name: HostPathName, random: Random): HostPath {
    const known = new Set<string>();
    return new HostPath({
      name,
      rank,
      size: this.blocks.length,
      blocks: this.blocks,
      slotCount,
      machine: createStepMachine({ clock: systemClock }),
      yields: false,
      peerRegion: (peer, key) => {
        const place = `${peer}:${key}`;
        if (!known.has(place) && random.integer(2) === 0) return void known.add(place);
        return must(this.#regions.get(place), () => `rank ${peer} announced memory ${key}`);
      },
    });
  }

  plans(rank: number): Planner {
    const { globalRanks, topology } = this.#spec(rank);
    const machine = createStepMachine({ clock: systemClock });
    return plannerOf({ machine, rank, topology, loadStore: globalRanks.map(() => true) });
  }
}

function startOn(hostPath: HostPath, operation: HostPathOperation, sequence: number, ordinal: number): HostPathStatus {
  return hostPath.resume(operation, sequence, ordinal, { code: operation.bound.name, pc: 0 }, 0);
}

interface Step {
  readonly count: number;
  readonly isPrivate: readonly boolean[];
}

interface Scenario {
  readonly name: HostPathName;
  readonly steps: readonly Step[];
  /** Operations that count as made. */
  readonly before: number;
}

/** One rank's part, pausing wherever it waits. Returns how often the other host path took over. */
function* runRank(host: Host, rank: number, { name, steps, before }: Scenario, random: Random): Generator<void, number> {
  const [main, comm] = [host.hostPath(rank, name, random), host.hostPath(rank, name, random)];
  const plans = host.plans(rank);
  const bound = new Map<string, HostPathOperation>();
  const shared = new Map<number, Float32Array>();
  let takenOver = 0;
  for (const [step, { count, isPrivate }] of steps.entries()) {
    const ordinal = before + step;
    const call: CollectiveCall = { kind: 'all-reduce', dtype: 'float32', op: 'sum', count };
    const hostPathPlans = must(plans.prepare(call).hostPath, () => 'an all-reduce of one host runs whole');
    const key = isPrivate[rank] ? privateKey : 2 * (1 + counts.indexOf(count));
    // The memory that a key names never changes; a private array is another one each time.
    const data = (key === privateKey ? undefined : shared.get(count)) ?? new Float32Array(count);
    data.forEach((_, index) => (data[index] = (index + rank + ordinal) % 100));
    let view: Uint8Array = new Uint8Array(data.buffer);
    if (key !== privateKey && !shared.has(count)) {
      shared.set(count, data);
      host.add(rank, key, view);
    }
    const buffer = (memory: Uint8Array): LocalBuffer => ({ key, offset: 0, view: memory });
    const id = `${count} ${key}`;
    let operation = bound.get(id);
    if (!operation) operation = main.bind(call, hostPathPlans, { data: buffer(view) });
    else if (key === privateKey) main.rebindOwn(operation, { data: buffer(view) });
    bound.set(id, operation);
    let hostPath = main;
    let status = startOn(hostPath, operation, ordinal, ordinal);
    let position = hostPath.positionOf(operation);
    while (status !== 'done') {
      expect(['waiting', 'unmapped']).toContain(status);
      yield;
      if (hostPath === main && random.integer(4) === 0) {
        takenOver += 1;
        hostPath = comm;
        // Private arrays are copied for the other thread; shared memory it maps itself.
        if (key === privateKey) view = view.slice();
        operation = comm.bind(call, hostPathPlans, { data: buffer(view) }, position.code);
        let adopted = comm.adopt(operation, ordinal, position);
        while (!adopted) {
          yield;
          adopted = comm.adopt(operation, ordinal, position);
        }
        position = adopted;
      }
      status = hostPath.resume(operation, ordinal, ordinal, position, 0);
      position = hostPath.positionOf(operation);
    }
    const ranks = host.blocks.length;
    const sums = new Float32Array(view.buffer, view.byteOffset, count);
    const wrong = sums.findIndex((sum, index) => {
      let expected = 0;
      for (let each = 0; each < ranks; each++) expected += (index + each + ordinal) % 100;
      return sum !== expected;
    });
    expect(wrong, `element of ${count} in operation ${ordinal} of rank ${rank}`).toBe(-1);
    yield;
  }
  return takenOver;
}

describe('Host path', () => {
  it('sums private and shared buffers, mixed anyhow, whichever host path object goes on, without the memory of ranks that have left', () => {
    let takenOver = 0;
    const scenario = fc.record({
      ranks: fc.integer({ min: 2, max: 4 }),
      seed: fc.integer({ min: 1, max: 2 ** 31 - 1 }),
      name: fc.constantFrom(...hostPathNames),
      // Counters that reach, and have passed, what 32 bits hold.
      before: fc.constantFrom(0, 2 ** 31 - 4, 2 ** 32 - 4, 3 * 2 ** 32 - 3),
      steps: fc.array(fc.record({ count: fc.constantFrom(...counts), isPrivate: fc.array(fc.boolean(), { minLength: 4, maxLength: 4 }) }), {
        minLength: 1,
        maxLength: 12,
      }),
    });
    fc.assert(
      fc.property(scenario, ({ ranks, seed, ...rest }) => {
        const random = seededRandom(seed);
        const host = new Host(ranks, rest);
        const running = host.blocks.map((_, rank) => runRank(host, rank, rest, random));
        const ranksOf = running.map((_, rank) => rank);
        for (let turns = 0; running.length > 0; turns++) {
          expect(turns, 'turns without an end').toBeLessThan(100_000);
          const at = random.integer(running.length);
          const { done, value } = running[at].next();
          if (!done) continue;
          takenOver += value;
          host.leave(ranksOf[at]);
          running.splice(at, 1);
          ranksOf.splice(at, 1);
        }
      }),
      { numRuns: 120 },
    );
    expect(takenOver).toBeGreaterThan(100);
  });

  it('tells in which host path a rank made a call', () => {
    const host = new Host(2);
    const random = seededRandom(3);
    const [first, second] = [host.plans(0), host.plans(1)];
    const call: CollectiveCall = { kind: 'barrier', dtype: 'uint8', count: 0 };
    const [small, large] = [host.hostPath(0, 'small', random), host.hostPath(1, 'large', random)];
    const plansOf = (planner: Planner): HostPathPlans => must(planner.prepare(call).hostPath, () => 'a barrier');
    expect(startOn(small, small.bind(call, plansOf(first), {}), 7, 0)).toBe('waiting');
    expect(startOn(large, large.bind(call, plansOf(second), {}), 7, 0)).toBe('waiting');
    expect(host.blocks.map((block) => hostPathOf(block, slotCount, 7))).toEqual(['small', 'large']);
    expect(host.blocks.map((block) => hostPathOf(block, slotCount, 6))).toEqual([undefined, undefined]);
  });
});
