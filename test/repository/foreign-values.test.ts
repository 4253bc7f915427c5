/** Values of frameworks, lists and the like, wherever a value is taken: the error names what they are, and the way to an array. */
import { defaultDevice, init, numpy as np } from '@jax-js/jax';
import * as tf from '@tensorflow/tfjs';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import * as ddp from '../../src/ddp/index.ts';
import * as graph from '../../src/graph/index.ts';
import { startRanks } from '../../src/group/testing/in-process-world.ts';
import * as kvstore from '../../src/kvstore/index.ts';
import * as messaging from '../../src/messaging/index.ts';
import * as rendezvous from '../../src/rendezvous/index.ts';

it('wherever a value is taken, what is no array is named, with the way to one', async () => {
  await init('wasm');
  defaultDevice('wasm');
  const foreign: readonly [unknown, RegExp][] = [
    [tf.tensor1d([1, 2]), /a TensorFlow\.js tensor: take its values with 'await x\.data\(\)', .* shoal\/ddp\/tfjs/],
    [tf.variable(tf.tensor1d([1, 2])), /a TensorFlow\.js tensor/],
    [np.array([1, 2]), /a jax-js array: take its values with 'await x\.data\(\)', .* shoal\/ddp\/jax-js/],
    [[1, 2, 3], /a list: make an array of it with Float32Array\.from\(list\)/],
    [[[1], [2]], /Float32Array\.from\(list\.flat\(Infinity\)\)/],
    [3, /the number 3: put it into an array, Float32Array\.of\(3\)/],
    [Promise.resolve(new Float32Array(2)), /a Promise: await it first/],
    [new ArrayBuffer(8), /an ArrayBuffer: make a view of it/],
    [new DataView(new ArrayBuffer(8)), /a DataView: make an array of its memory/],
    [null, /null/],
  ];
  await using world = await startRanks(2);
  const [group] = world.groups;
  const [scheduled] = await world.each((each) => each.scheduled());
  await using kv = await kvstore.create('local');
  await kv.init('w', new Float32Array(2));
  const worker = await rendezvous.RendezvousWorker.start({ rank: 0, secret: 'foreign', carriers: ['tcp'] });
  const step = worker.beginStep(1);
  const msg = new messaging.Msg();
  const builder = new graph.GraphBuilder();
  const fed = graph.identity(builder, graph.placeholder(builder, 'float32', [2], { name: 'x' }));
  const devices = ['/job:w/task:0/device:CPU:0'];
  const session = new graph.Session(builder.finish(), { devices, kernels: graph.localKernels() });
  const float = new Float32Array(2);
  const checkpoints = new ddp.Checkpoints(
    { rank: 0, size: 1, allGatherObject: async (value) => [value], broadcastObject: async <T>(value: T | undefined) => value as T },
    temporaryFolder('foreign'),
  );
  const takers: Readonly<Record<string, (value: never) => unknown>> = {
    allReduce: (value) => group.allReduce(value),
    allGather: (value) => group.allGather(new Float32Array(4), value),
    'allGather into': (value) => group.allGather(value, float),
    send: (value) => group.send(value, 1),
    batch: (value) => group.batch([{ call: 'allReduce', data: value }]),
    scheduled: (value) => scheduled.allReduce(value),
    init: (value) => kv.init('v', value),
    push: (value) => kv.push('w', value),
    pull: (value) => kv.pull('w', value),
    'rendezvous send': (value) => step.send(worker.self, 'w', value),
    feed: (value) => session.run([['x', value]], [fed]),
    SGD: (value) => new ddp.SGD([{ name: 'w', data: value }]),
    constant: (value) => graph.constant(new graph.GraphBuilder(), value),
    checkpoint: (value) => checkpoints.save({ tensors: { w: value } }),
  };
  // A list is several values there.
  const lists = new Set(['push', 'pull', 'init']);
  // Values of frameworks are values of graphs as they are.
  const frameworks = new Set(['feed', 'constant']);
  for (const [name, take] of Object.entries(takers)) {
    for (const [value, expected] of foreign) {
      if (Array.isArray(value) && lists.has(name)) continue;
      if (frameworks.has(name) && typeof value === 'object' && value !== null && 'dataSync' in value) {
        await take(value as never);
        continue;
      }
      await expect(
        Promise.resolve().then(() => take(value as never)),
        `${name}, ${String(expected)}`,
      ).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(expected) as string });
    }
  }
  // Any memory is bytes.
  for (const [value, expected] of foreign.filter(([each]) => !ArrayBuffer.isView(each)))
    for (const take of [() => msg.addFrame(value as never), () => ddp.checksum([value as never])]) expect(take).toThrow(expected);
  await worker.close();
});
