/** The comm thread's side of the host fast path: how long it waits for others before it sleeps. */
import { expect, it, vi } from 'vitest';
import { systemClock } from '../../../base/clock.ts';
import { ControlBlock, controlBlockBytes } from '../../../collectives/control-block.ts';
import { createRegionAllocator } from '../../../memory/regions/allocator.ts';
import { createStepMachine } from '../../../memory/step-machine/create-step-machine.ts';
import { oneHost } from '../../../plan/topology.ts';
import type { CollectiveCall } from '../../../call/contract.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';
import { plannerOf } from '../../../call/testing/planner-of.ts';
import type { GroupContext } from '../engine/group-context.ts';
import { blockShape } from '../../../call/host-path.ts';
import type { HandedOver } from '../engine/late-calls.ts';
import { HostPathQueue } from './host-path-queue.ts';

const count = 2 ** 18;
const call: CollectiveCall = { kind: 'all-reduce', dtype: 'float32', op: 'sum', count };
/** 0.05 ns per byte. */
const patienceNs = 4 * count * 0.05;

/** Two ranks of a host and the queue of each, with how long native code was let wait in every look of rank 0. */
function twoQueues({ patient, traced }: { readonly patient: boolean; readonly traced: boolean }): {
  queues: readonly HostPathQueue[];
  waits: () => number[];
} {
  const globalRanks = [0, 1];
  const specs = globalRanks.map((rank): GroupSpec => ({ id: 0, name: 'test', globalRanks, rank, topology: oneHost(2) }));
  const shape = blockShape(specs[0], { slotCount: 1, signalMax: 4 });
  const blocks = globalRanks.map(() => new ControlBlock(new ArrayBuffer(controlBlockBytes(shape)), 0, shape));
  for (const block of blocks) for (let slot = 0; slot < shape.slotCount; slot++) block.publish(slot, 0);
  const bytes = 4 * count;
  const regions = globalRanks.map(() => createRegionAllocator().create(bytes));
  const machines = globalRanks.map(() => createStepMachine({ clock: systemClock }));
  const runs = vi.spyOn(machines[0], 'run');
  const queues = globalRanks.map((rank) => {
    const machine = machines[rank];
    const { topology } = specs[rank];
    const group = {
      plans: plannerOf({ machine, rank, topology, loadStore: [true, true] }),
      world: {
        env: {
          settings: { inFlightMax: 1 },
          machine,
          wires: patient ? {} : undefined,
          recorder: { trace: { enabled: traced }, started: () => undefined },
        },
      },
      rank,
      size: 2,
      blocks,
      members: {
        firstLate: () => 1 - rank,
        wentElsewhere: () => false,
        memory: (peer: number) => new Uint8Array(regions[peer].buffer),
      },
      spinMs: 0,
      ring: (doorbells: Uint32Array) => doorbells.fill(0),
      disagree: () => expect.unreachable(),
      life: {
        suspect: (thrown: unknown) => {
          throw thrown;
        },
      },
    };
    const queue = new HostPathQueue(group as unknown as GroupContext, 'large');
    const request: HandedOver<'host'> = {
      way: { path: 'host', hostPath: 'large', ordinal: 0, position: { code: 'shared', pc: 0 }, announced: 'shared' },
      sequence: 0,
      call,
      buffers: { data: { key: 1, region: regions[rank], offset: 0, bytes } },
      timeoutMs: 1000,
      complete: () => undefined,
    };
    queue.add(request, 0);
    return queue;
  });
  return { queues, waits: () => runs.mock.calls.splice(0).map(([, , , spinNs]) => spinNs) };
}

it('waits about as long as the operation takes, then sleeps until it has moved', () => {
  const { queues, waits } = twoQueues({ patient: true, traced: false });
  for (let look = 0; look < 5; look++) queues[0].advance();
  // The first look announces, and moves by that; the second is in vain.
  expect(waits()).toEqual([patienceNs, patienceNs, 0, 0, 0]);
  for (let look = 0; queues[0].size + queues[1].size > 0; look++) {
    expect(look).toBeLessThan(10);
    for (const queue of queues) queue.advance();
  }
});

it.each([
  { who: 'whose waits do not give the CPU away', patient: false, traced: false },
  { who: 'that tells when work begins', patient: true, traced: true },
])('a thread $who only looks', (how) => {
  const { queues, waits } = twoQueues(how);
  for (let look = 0; look < 3; look++) queues[0].advance();
  expect(waits()).toEqual([0, 0, 0]);
});
