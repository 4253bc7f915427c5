/** Two workers on a fake connection: turns end, messages arrive and time passes when the test says so. */
import { VirtualClock } from '../../base/clock.ts';
import type { ShoalError } from '../../base/errors.ts';
import { threadRegion } from '../../fabric/testing/regions.ts';
import { plain } from '../carriers/conformance.ts';
import { TensorConnection, type TensorConnectionOptions } from '../carriers/tensor-connection.ts';
import { WorkerCore } from '../carriers/worker-core.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import { CountedMemory } from './counted-memory.ts';
import { fakeConnections, type FakeConnection } from './fake-connection.ts';

export interface FakeSide {
  readonly core: WorkerCore;
  readonly tensors: TensorConnection;
  readonly connection: FakeConnection;
  readonly memory: CountedMemory;
  /** The running turn ends: what was posted in it leaves. */
  endTurn(): void;
}

export interface FakePair {
  readonly a: FakeSide;
  readonly b: FakeSide;
  readonly clock: VirtualClock;
  /** Delivers until nothing is under way. */
  settle(): void;
  /** The key of a tensor from `a` to `b`. */
  key(name: string): string;
}

type Options = Partial<Pick<TensorConnectionOptions, 'timeoutMs' | 'limits' | 'firstRequest' | 'announcesApart'>> & {
  readonly bytesMax?: number;
  readonly slabBytes?: number;
};

export function fakePair(options: Options = {}): FakePair {
  const { bytesMax = 2 ** 26, slabBytes } = options;
  const clock = new VirtualClock();
  const connections = fakeConnections();
  const [a, b] = connections.map((connection, rank): FakeSide => {
    const self = { rank, device: `/job:worker/task:${rank}/device:CPU:0`, incarnation: BigInt(rank + 1) };
    const core = new WorkerCore(self);
    const due: (() => void)[] = [];
    const memory = new CountedMemory({
      create: threadRegion,
      register: (region) => connection.register(region),
      budget: { bytesMax, bytes: 0 },
      ...(slabBytes !== undefined && { slabBytes }),
    });
    const tensors: TensorConnection = new TensorConnection({
      timeoutMs: 1000,
      announcesApart: false,
      ...options,
      connection,
      self,
      memory,
      clock,
      take: (stepId, key, waiter) => core.take(stepId, key, waiter),
      atEndOfTurn: (callback) => due.push(callback),
      onHello: (peer) => core.attach(peer, tensors),
      onClose: (error) => {
        if (error !== undefined) core.detach(`/job:worker/task:${1 - rank}/device:CPU:0`, error);
      },
    });
    return {
      core,
      tensors,
      connection,
      memory,
      endTurn() {
        for (const callback of due.splice(0)) callback();
      },
    };
  });
  const settle = (): void => {
    for (let moved = true; moved;) {
      moved = false;
      for (const side of [a, b]) {
        side.endTurn();
        while (side.connection.deliver()) moved = true;
        side.endTurn();
      }
    }
  };
  settle();
  return { a, b, clock, settle, key: (name) => a.core.key(name, a.core.self, b.core.self) };
}

/** The result that a waiter gets. */
export function inbox() {
  const told: unknown[] = [];
  const values: (TensorValue | undefined)[] = [];
  return {
    told,
    values,
    receive(value: TensorValue | undefined) {
      values.push(value);
      told.push(plain(value));
    },
    fail: ({ code }: ShoalError) => void told.push(code),
  };
}

export function recv({ b, key }: FakePair, stepId: number, name: string) {
  const box = inbox();
  const cancel = b.tensors.recv(stepId, key(name), box);
  return { ...box, cancel };
}

/** Messages, writes and immediates that leave both sides while `run` runs and until all is quiet. */
export function costOf(pair: FakePair, run: () => void): { messages: number; writes: number; immediates: number } {
  const before = [pair.a, pair.b].map(({ connection }) => ({ ...connection.sent }));
  run();
  pair.settle();
  const sum = (what: 'messages' | 'writes' | 'immediates'): number =>
    [pair.a, pair.b].reduce((all, { connection }, side) => all + connection.sent[what] - before[side][what], 0);
  return { messages: sum('messages'), writes: sum('writes'), immediates: sum('immediates') };
}

/** One step in which `a` sends what `b` asks for first. */
export function exchange(pair: FakePair, stepId: number, values: Record<string, TensorValue | undefined>): unknown[] {
  const step = pair.a.core.beginStep(stepId);
  const boxes = Object.keys(values).map((name) => recv(pair, stepId, name));
  for (const [name, value] of Object.entries(values)) step.send(pair.key(name), value);
  pair.settle();
  pair.a.core.endStep(stepId);
  return boxes.flatMap(({ told, values: received }) => {
    for (const value of received) value?.release?.();
    return told;
  });
}
