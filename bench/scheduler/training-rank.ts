/** One rank of bench/scheduler/training.ts. Prints the times of its steps, as JSON.
 *
 *  EXCHANGE: `none`, `all-reduce`, `parameter-server`. ORDER: `buckets` (averages are waited for at the end of the pass), `fifo` (whole
 *  tensors, one after the other as they become ready; each layer of the next pass waits for its own), `concurrent` (whole tensors, all at
 *  the same time), `scheduled` (in parts, by priority, within a credit). */
import * as tf from '@tensorflow/tfjs';
import { setThreadsCount } from '@tensorflow/tfjs-backend-wasm';
import { systemClock } from '../../src/base/clock.ts';
import { initProcessGroup, type ProcessGroup, type ScheduledReduceOptions } from 'shoal';
import { distribute } from 'shoal/ddp/tfjs';
import { create, ScheduledKVStore, type KVStore, type KVWork } from 'shoal/kvstore';
import { addTransposedProducts } from '../../src/ddp/adapters/tfjs/matrix-products.ts';
import { addMissingKernels } from '../../src/ddp/adapters/tfjs/polyfill.ts';
import { denseModel } from '../tfjs/dense-model.ts';
import { VariableHooks } from '../../src/ddp/adapters/tfjs/variable-hooks.ts';

const {
  EXCHANGE: exchange = 'none',
  STEPS = '12',
  BATCH = '8',
  POSITIONS = '4096',
  UNITS = '256',
  PARTITION = '524288',
  CREDIT = '2097152',
} = process.env;
const [steps, batch, positions, units, partitionBytes, creditBytes] = [STEPS, BATCH, POSITIONS, UNITS, PARTITION, CREDIT].map(Number);
const order = (process.env.ORDER ?? 'scheduled') as 'buckets' | 'fifo' | 'concurrent' | 'scheduled';
const whole = 2 ** 30;

setThreadsCount(1);
await tf.setBackend('wasm');
addMissingKernels();
addTransposedProducts();

const { variables, loss } = denseModel({ batch, positions, units });

interface Training {
  step(): void;
  end(): Promise<void>;
}

/** A group that serves in the order of arrival. */
function withoutPriorities(group: ProcessGroup): ProcessGroup {
  const allReduce: ProcessGroup['allReduce'] = (data, options) =>
    group.allReduce(data, { ...options, priority: 0 } as ScheduledReduceOptions);
  return new Proxy(group, {
    get: (target, name) => {
      if (name === 'allReduce') return allReduce;
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

/** A training alone, or with averages over a group. */
async function averaged(): Promise<Training> {
  if (exchange === 'none') {
    const optimizer = tf.train.sgd(0.01);
    return { step: () => void optimizer.minimize(loss, false, variables), end: async () => undefined };
  }
  const bytes = {
    buckets: {},
    // A credit of one byte admits one tensor, alone.
    fifo: { creditBytes: 1, partitionBytes: whole },
    concurrent: { creditBytes: whole, partitionBytes: whole },
    scheduled: { creditBytes, partitionBytes },
  }[order];
  const group = await initProcessGroup(order === 'buckets' ? {} : { scheduling: bytes });
  const optimizer = distribute(order === 'fifo' ? withoutPriorities(group) : group, tf.train.sgd(0.01));
  return {
    step: () => void optimizer.minimize(loss, false, variables),
    end: async () => {
      optimizer.dispose();
      await group.destroy();
    },
  };
}

/** A training through a parameter server, which updates. */
async function served(): Promise<Training> {
  const store = await create('dist_sync');
  const kv: KVStore = order === 'scheduled' ? new ScheduledKVStore(store, { partitionBytes }) : store;
  const keys = variables.map((_, index) => `layer ${index}`);
  const outs = variables.map((variable) => kv.tensor('float32', [variable.size]));
  await kv.init(
    keys,
    variables.map((variable) => variable.dataSync<'float32'>()),
  );
  if (kv.rank === 0) await kv.setOptimizer({ name: 'sgd', learningRate: 0.01 });
  await kv.barrier();
  const works: (KVWork | undefined)[] = variables.map(() => undefined);
  const take = (index: number): void => {
    const work = works[index];
    if (work === undefined) return;
    works[index] = undefined;
    work.waitSync();
    tf.tidy(() => variables[index].assign(tf.tensor(outs[index].data.slice(), variables[index].shape)));
  };
  const drain = (): void => variables.forEach((_, index) => take(index));
  const hooks = new VariableHooks({
    tf,
    variables,
    onUse: take,
    onGradient: (index, gradient) => {
      const priority = order === 'scheduled' ? -index : 0;
      kv.push(keys[index], gradient.dataSync<'float32'>(), { priority });
      works[index] = kv.pull(keys[index], outs[index], { priority });
    },
  });
  return {
    step: () => {
      const { value, grads } = hooks.record(() => tf.variableGrads(loss, variables));
      tf.dispose([value, grads]);
      if (order === 'buckets') drain();
    },
    end: async () => {
      drain();
      await kv.close();
    },
  };
}

const training = exchange === 'parameter-server' ? await served() : await averaged();
const stepMs: number[] = [];
const before = process.cpuUsage();
for (let step = 0; step < steps; step++) {
  const from = systemClock.now();
  tf.tidy(() => training.step());
  stepMs.push(systemClock.now() - from);
  await new Promise(setImmediate);
}
const { user, system } = process.cpuUsage(before);
await training.end();
const bytes = variables.reduce((sum, { size }) => sum + 4 * size, 0);
// CPU time of all threads of the rank: a step cannot be shorter where each rank has one processor.
const cpuMs = (user + system) / 1000 / steps;
console.log(JSON.stringify({ stepMs, bytes, cpuMs }));
