/** Rendezvous' protocol between tasks: how its channels are made here. */
import type { Clock } from '../../base/clock.ts';
import type { Connection, Fabric } from '../../fabric/fabric.ts';
import { TensorChannel, type TensorChannelOptions } from '../../rendezvous/carriers/tensor-channel.ts';
import { ArenaMemory } from '../../rendezvous/protocol/arena-memory.ts';
import type { TensorCounters } from '../../rendezvous/protocol/counters.ts';
import type { MemoryBudget } from '../../rendezvous/protocol/tensor-memory.ts';
import type { Arbiter } from '../../scheduler/arbiter.ts';
import type { Cancel } from '../../rendezvous/table/rendezvous.ts';

export const nothingToCancel: Cancel = () => {};

export interface ChannelSurroundings {
  readonly fabric: Fabric;
  readonly clock: Clock;
  /** Of all channels together. */
  readonly counters: TensorCounters;
  readonly budget: MemoryBudget;
  readonly arbiter: Arbiter;
}

/** Steps have time limits, which end their receives. */
const foreverMs = 2 ** 31 - 1;
/** Tensors of one connection that are asked for. All of them may be written at once, and a connection has so many operations pending. */
const requestsMax = 100_000;
/** A place of its own for each, and those that are not forgotten yet. */
const regionsMax = 2 * requestsMax;

export function openChannel(
  connection: Connection,
  { fabric, clock, counters, budget, arbiter }: ChannelSurroundings,
  end: Pick<TensorChannelOptions, 'self' | 'take' | 'onAnswered' | 'onHello' | 'onClose'>,
): TensorChannel {
  return new TensorChannel({
    ...end,
    connection,
    memory: new ArenaMemory({ register: (region) => fabric.register(region), budget }),
    clock,
    counters,
    arbiter,
    resource: fabric.capabilities.loadStore ? 'memory' : 'network',
    timeoutMs: foreverMs,
    // Kernels that run one after the other give one write together, and receives that follow each other one message.
    atEndOfTurn: (callback) => void setImmediate(callback),
    // Places are in arenas, one behind the other: small tensors that are ready together are one write, announced by one record.
    announcesApart: fabric.capabilities.loadStore || connection.gather !== undefined,
    limits: { requestsMax, regionsMax },
  });
}
