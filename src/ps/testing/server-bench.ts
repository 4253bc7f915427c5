/** A simulated cluster of the parameter server, and what its tests say most. */
import { expect } from 'vitest';
import type { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { dtypeInfo, viewOf, type DType, type TypedArray } from '../../memory/dtype.ts';
import { elementsOf } from '../protocol/placement.ts';
import type { KeylessInfo, TransferEntry, TransferRequest } from '../client/client-options.ts';
import { SimulatedCluster, type ClusterOptions } from './simulated-cluster.ts';
import type { KVTopology } from '../protocol/topology.ts';
import type { ValueBlock } from '../protocol/value-space.ts';

export const sandblaster: KVTopology = { workerGroups: 1, workersPerGroup: 2, serverGroups: 1, serversPerGroup: 2, replicas: 1 };
export const downpour: KVTopology = { workerGroups: 2, workersPerGroup: 1, serverGroups: 1, serversPerGroup: 2, replicas: 1 };
export const hogwild: KVTopology = { workerGroups: 2, workersPerGroup: 1, serverGroups: 2, serversPerGroup: 2, replicas: 1 };
export const adding = { name: 'sgd', learningRate: 1 } as const;

export interface Parameter {
  readonly key: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
}

/** A cluster, and what tests say most. */
export class Bench {
  readonly cluster: SimulatedCluster;

  private constructor(cluster: SimulatedCluster) {
    this.cluster = cluster;
  }

  static async of(options: Omit<ClusterOptions, 'random'> & { seed?: number }): Promise<Bench> {
    return new Bench(await SimulatedCluster.start({ random: seededRandom(options.seed ?? 1), ...options }));
  }

  block(worker: number, values: TypedArray): ValueBlock {
    const block = this.cluster.clientOf(worker).values.allocate(values.byteLength);
    block.view.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    return block;
  }

  /** Every worker initialises; worker 0's values are `first`, the others' are zeros. */
  async init(parameters: readonly Parameter[], first: (k: number) => number = () => 0, ofWorkers?: readonly number[]): Promise<void> {
    let open = 0;
    const errors: ShoalError[] = [];
    for (const worker of ofWorkers ?? this.cluster.clients.keys()) {
      open++;
      const entries = parameters.map(({ key, dtype, shape }) => {
        const values = viewOf(dtype, new ArrayBuffer(elementsOf(shape) * dtypeInfo(dtype).bytes), 0, elementsOf(shape)) as Float32Array;
        if (worker === 0 && dtype === 'float32') for (let k = 0; k < values.length; k++) values[k] = first(k);
        return { key, dtype, shape, value: this.block(worker, values).ref };
      });
      this.cluster.clientOf(worker).core.init(worker, entries, (error) => {
        open--;
        if (error) errors.push(error);
      });
    }
    await this.cluster.settle();
    if (errors.length > 0) throw errors[0];
    expect(open).toBe(0);
  }

  begin(worker: number, entries: readonly TransferEntry[], options: Partial<Omit<TransferRequest, 'entries'>> = {}): Outcome {
    const outcome: Outcome = { done: false, error: undefined };
    this.cluster.clientOf(worker).core.transfer(worker, { entries, priority: 0, ...options }, (error) => {
      outcome.done = true;
      outcome.error = error;
    });
    return outcome;
  }

  push(worker: number, key: string, values: TypedArray): Outcome {
    return this.begin(worker, [{ key, push: this.block(worker, values).ref }]);
  }

  pull(worker: number, key: string, bytes: number): { outcome: Outcome; floats: Float32Array } {
    const out = this.cluster.clientOf(worker).values.allocate(bytes);
    const outcome = this.begin(worker, [{ key, out: out.ref }]);
    return { outcome, floats: new Float32Array(out.view.buffer, 0, bytes / 4) };
  }

  async pulled(worker: number, key: string, count: number): Promise<number[]> {
    const { outcome, floats } = this.pull(worker, key, 4 * count);
    await this.cluster.settle();
    expect(outcome).toEqual({ done: true, error: undefined });
    return [...floats];
  }

  async setOptimizer(spec: Parameters<SimulatedCluster['clients'][number]['core']['setOptimizer']>[1] = adding): Promise<void> {
    await this.cluster.run<void>((done) => this.cluster.clients[0].core.setOptimizer(0, spec, done));
  }

  /** Server groups have told each other what they have: twice the time after which they do. */
  async exchanged(): Promise<void> {
    for (let k = 0; k < 3; k++) {
      await this.cluster.settle();
      this.cluster.clock.advance(500);
    }
    await this.cluster.settle();
  }

  info(worker: number, key: string): Promise<KeylessInfo | undefined> {
    return this.cluster.run<KeylessInfo>((done) => this.cluster.clientOf(worker).core.info(worker, key, done));
  }
}

export interface Outcome {
  done: boolean;
  error: ShoalError | undefined;
}

export const small: Parameter = { key: 'w', dtype: 'float32', shape: [4] };
