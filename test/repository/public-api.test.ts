/** Scripts run without a type check: every public function refuses wrong arguments, of whatever kind, before anything is done.
 *  Nothing is left out: the tables below must have every function of every subpath of the package, or they do not compile. */
import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { defaultDevice, init, numpy as np } from '@jax-js/jax';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import * as jaxJs from '../../src/ddp/adapters/jax-js.ts';
import * as ddp from '../../src/ddp/index.ts';
import { LocalWorld } from '../../src/ddp/testing/local-world.ts';
import * as shoal from '../../src/index.ts';
import * as kvstore from '../../src/kvstore/index.ts';
import * as messaging from '../../src/messaging/index.ts';
import { bufferOf, FakeDevice } from '../../src/memory/device/testing/fake-device.ts';
import { createRegionAllocator } from '../../src/memory/regions/allocator.ts';
import * as rendezvous from '../../src/rendezvous/index.ts';
import type { CommGroup } from '../../src/group/api/process-group.ts';
import { CompletedWork, PendingWork } from '../../src/comm/caller/work.ts';
import { startRanks } from '../../src/group/testing/in-process-world.ts';
import type { ProcessGroup, Work } from '../../src/index.ts';
import { argument, call, fields, fresh, options, hasAll, walk, type CallsOf, type Exports, type Table } from '../support/public-calls.ts';

const tensorLike = argument(new Float32Array(2));

describe('shoal', () => {
  const exported: Exports<typeof shoal> = {
    initProcessGroup: call(
      shoal.initProcessGroup,
      options('backend', 'initMethod', 'rank', 'worldSize', 'timeoutMs', 'joinTimeoutMs', 'scheduling', 'environment'),
    ),
    openStore: call(
      shoal.openStore,
      argument('hash://'),
      options('rank', 'worldSize', 'secret', 'timeoutMs', 'connectTimeoutMs', 'environment'),
    ),
    initDeviceMesh: call(
      shoal.initDeviceMesh,
      argument({ size: 1, rank: 0, newSubgroups: async () => null }),
      argument([1]),
      options('names', 'timeoutMs'),
    ),
    DeviceMesh: call(
      (...given: ConstructorParameters<typeof shoal.DeviceMesh>) => new shoal.DeviceMesh(...given),
      fields({ rank: 0, shape: [1], names: [], groups: [] }),
    ),
    DeviceTensor: call(
      (...given: ConstructorParameters<typeof shoal.DeviceTensor>) => new shoal.DeviceTensor(...given),
      fields({
        device: new FakeDevice(),
        buffer: bufferOf(new FakeDevice(), new Float32Array(2)),
        dtype: 'float32',
        shape: [2],
        byteOffset: 0,
      }),
    ),
    openDevice: 'takes nothing',
    isShoalError: 'takes anything',
    ShoalError: 'an error is made whatever it is told',
    Tensor: call(
      (...given: ConstructorParameters<typeof shoal.Tensor>) => new shoal.Tensor(...given),
      argument('float32'),
      argument([2]),
      argument(createRegionAllocator().create(8)),
      argument(0),
    ),
  };

  function callsOfGroup(group: CommGroup): CallsOf<ProcessGroup> {
    const [pair, part] = [argument(new Float32Array(4)), argument(new Float32Array(2))];
    const rest = ['timeoutMs', 'name', 'signal'];
    const cloneable = argument(1, 'undefined', 'null', 'boolean', 'number', 'NaN', 'string', 'bigint', 'list', 'object', 'map');
    return {
      tensor: call(group.tensor.bind(group), argument('float32'), argument([2])),
      release: call(group.release.bind(group), argument(undefined)),
      allReduce: call(group.allReduce.bind(group), tensorLike, options('op', 'factor', 'postscale', ...rest)),
      broadcast: call(group.broadcast.bind(group), tensorLike, options('root', ...rest)),
      reduce: call(group.reduce.bind(group), tensorLike, options('op', 'factor', 'postscale', 'root', ...rest)),
      scan: call(group.scan.bind(group), tensorLike, options('op', 'factor', 'postscale', ...rest)),
      exscan: call(group.exscan.bind(group), tensorLike, options('op', 'factor', 'postscale', ...rest)),
      maxLoc: call(group.maxLoc.bind(group), tensorLike, argument(new Int32Array(2)), options(...rest)),
      minLoc: call(group.minLoc.bind(group), tensorLike, argument(new Int32Array(2)), options(...rest)),
      allGather: call(group.allGather.bind(group), pair, part, options('counts', ...rest)),
      gather: call(group.gather.bind(group), pair, argument(new Float32Array(2), 'null'), options('counts', 'root', ...rest)),
      scatter: call(group.scatter.bind(group), argument(new Float32Array(2), 'null'), pair, options('counts', 'root', ...rest)),
      reduceScatter: call(group.reduceScatter.bind(group), part, pair, options('op', 'factor', 'postscale', 'counts', ...rest)),
      allToAll: call(group.allToAll.bind(group), part, part, options('inputSplits', 'outputSplits', ...rest)),
      allReduceInit: call(group.allReduceInit, tensorLike, options('op', 'factor', 'postscale', ...rest)),
      broadcastInit: call(group.broadcastInit, tensorLike, options('root', ...rest)),
      reduceInit: call(group.reduceInit, tensorLike, options('op', 'factor', 'postscale', 'root', ...rest)),
      allGatherInit: call(group.allGatherInit, pair, part, options('counts', ...rest)),
      gatherInit: call(group.gatherInit, pair, argument(new Float32Array(2), 'null'), options('counts', 'root', ...rest)),
      scatterInit: call(group.scatterInit, argument(new Float32Array(2), 'null'), pair, options('counts', 'root', ...rest)),
      reduceScatterInit: call(group.reduceScatterInit, part, pair, options('op', 'factor', 'postscale', 'counts', ...rest)),
      allToAllInit: call(group.allToAllInit, part, part, options('inputSplits', 'outputSplits', ...rest)),
      barrierInit: call(group.barrierInit, options(...rest)),
      allGatherObject: call(group.allGatherObject.bind(group), cloneable, options(...rest)),
      gatherObject: call(group.gatherObject.bind(group), cloneable, options('root', ...rest)),
      broadcastObject: call(group.broadcastObject.bind(group), cloneable, options('root', ...rest)),
      scatterObject: call(group.scatterObject.bind(group), argument([1, 2]), options('root', ...rest)),
      send: call(group.send.bind(group), tensorLike, argument(1), options('tag', ...rest)),
      recv: call(group.recv.bind(group), tensorLike, argument(1), options('tag', ...rest)),
      batch: call(group.batch.bind(group), argument([]), options(...rest)),
      barrier: call(group.barrier.bind(group), options(...rest)),
      monitoredBarrier: call(group.monitoredBarrier.bind(group), options(...rest)),
      split: call(group.split.bind(group), argument(0, 'null'), options('key', 'timeoutMs')),
      newGroup: call(group.newGroup.bind(group), argument([0]), options('timeoutMs', 'name', 'backend')),
      newSubgroups: call(group.newSubgroups.bind(group), options('groupSize', 'ranks', 'timeoutMs')),
      grow: call(group.grow.bind(group), options('timeoutMs')),
      reconfigure: call(group.reconfigure.bind(group), options('ranks', 'timeoutMs')),
      abort: 'takes any reason',
      shrink: call(group.shrink.bind(group), options('exclude', 'timeoutMs')),
      span: call(
        group.span.bind(group),
        argument('a span', 'string'),
        argument(() => 1, 'function'),
        argument({ layer: 1 }, 'undefined', 'object'),
      ),
      step: 'takes nothing',
      scheduled: call(group.scheduled.bind(group), options('creditBytes', 'partitionBytes', 'timeoutMs')),
      destroy: call(group.destroy.bind(group), options('timeoutMs')),
    };
  }

  it('scheduled groups', async () => {
    const scheduled = await shoal.initProcessGroup({ environment: {}, scheduling: true });
    await walk('scheduled', {
      allReduce: call(
        scheduled.allReduce.bind(scheduled),
        tensorLike,
        options('op', 'factor', 'postscale', 'priority', 'timeoutMs', 'name', 'signal'),
      ),
      setScheduling: call(scheduled.setScheduling.bind(scheduled), fields({ creditBytes: 8192, partitionBytes: 4096 })),
      destroy: call(scheduled.destroy.bind(scheduled), options('timeoutMs')),
    });
    const x = Float32Array.of(5);
    await scheduled.allReduce(x);
    expect(x).toEqual(Float32Array.of(5));
    await scheduled.destroy();
  });

  const callsOfWork = (work: Work): CallsOf<Work> => ({
    waitSync: call(work.waitSync.bind(work), argument(undefined, 'undefined', 'number')),
    then: 'takes what promises take',
    catch: 'takes what promises take',
    finally: 'takes what promises take',
  });

  const callsOfStore = (store: shoal.JobStore): CallsOf<shoal.JobStore> => {
    const [text, keys] = [argument('a', 'string'), argument(['a'], 'list')];
    const wait = options('timeoutMs', 'signal');
    return {
      set: call(store.set.bind(store), text, text),
      multiSet: call(store.multiSet.bind(store), keys, keys),
      append: call(store.append.bind(store), text, text),
      queuePush: call(store.queuePush.bind(store), text, text),
      queuePop: call(store.queuePop.bind(store), text, wait),
      queueLen: call(store.queueLen.bind(store), text),
      listKeys: 'takes nothing',
      get: call(store.get.bind(store), text, wait),
      multiGet: call(store.multiGet.bind(store), keys, wait),
      add: call(store.add.bind(store), text, argument(1)),
      wait: call(store.wait.bind(store), keys, wait),
      compareSet: call(store.compareSet.bind(store), text, text, text),
      deleteKey: call(store.deleteKey.bind(store), text),
      numKeys: 'takes nothing',
      check: call(store.check.bind(store), keys),
      prefix: call(store.prefix.bind(store), text),
      close: 'takes nothing',
    };
  };

  it('stores and meshes', async () => {
    await using store = await shoal.openStore('hash://');
    await walk('store', callsOfStore(store));
    await using world = await startRanks(1);
    const mesh = await shoal.initDeviceMesh(world.groups[0], [1], { names: ['dp'] });
    const callsOfMesh: CallsOf<shoal.DeviceMesh> = {
      group: call(mesh.group.bind(mesh), argument(0)),
      localRank: call(mesh.localRank.bind(mesh), argument('dp')),
      size: call(mesh.size.bind(mesh), argument(undefined, 'undefined')),
      destroy: 'takes nothing',
    };
    await walk('mesh', callsOfMesh);
  });

  it('its functions and classes', async () => {
    hasAll(shoal, exported);
    await walk('shoal', exported);
  });

  it('groups, which are as good as before', async () => {
    await using world = await startRanks(2);
    await walk('group', callsOfGroup(world.groups[0]));
    const sums = await world.each(async (group) => {
      const x = Int32Array.of(group.rank + 1);
      await group.allReduce(x);
      return x[0];
    });
    expect(sums).toEqual([3, 3]);
  });

  it('all-reduces that are repeated', async () => {
    const group = await shoal.initProcessGroup({ environment: {} });
    for (const x of [group.tensor('float32', [2]), new Float32Array(2)]) {
      for (let k = 0; k < 3; k++) await group.allReduce(x, { op: shoal.ReduceOp.Max });
      for (let k = 0; k < 3; k++) await group.allReduce(x);
      await walk('group', {
        allReduce: call(group.allReduce.bind(group), argument(x), options('op', 'factor', 'postscale', 'timeoutMs', 'name', 'signal')),
      });
    }
    await group.destroy();
  });

  it('works', async () => {
    await walk('work', callsOfWork(new CompletedWork()));
    await walk('work', callsOfWork(new PendingWork({ now: () => 0, drain: () => undefined, pump: () => false }, 'a work')));
  });
});

describe('shoal/messaging', () => {
  const world = { world: 'public-api', secret: Uint8Array.of(1) };
  const address = messaging.makeAddress({ group: 0, id: 1, role: 2 });
  const anAddress = argument(address, 'bigint');
  const limits = Object.keys(messaging.defaultLimits);
  const context = new messaging.MessagingContext(world);
  const router = new messaging.Router(context);
  const dealer = new messaging.Dealer(context, { address });
  const msg = new messaging.Msg();
  const limitsOfContext = (given: Partial<messaging.MessagingLimits>): unknown =>
    new messaging.MessagingContext({ ...world, limits: given });

  const exported: Exports<typeof messaging> = {
    makeAddress: call(messaging.makeAddress, fields({ group: 0, id: 1, role: 2 })),
    parseAddress: call(messaging.parseAddress, anAddress),
    groupOf: call(messaging.groupOf, anAddress),
    idOf: call(messaging.idOf, anAddress),
    roleOf: call(messaging.roleOf, anAddress),
    formatAddress: call(messaging.formatAddress, anAddress),
    MessagingContext: call(
      (given: messaging.MessagingOptions) => new messaging.MessagingContext(given),
      fields(world, 'clock', 'random', 'limits', 'encryption', 'fabric', 'gate'),
    ),
    Dealer: call(
      (...given: ConstructorParameters<typeof messaging.Dealer>) => new messaging.Dealer(...given),
      argument(context),
      fields({ address }, 'limits'),
    ),
    Router: call(
      (...given: ConstructorParameters<typeof messaging.Router>) => new messaging.Router(...given),
      argument(context),
      options('addresses', 'limits', 'onPeer', 'onUndeliverable'),
    ),
    Poller: call(
      (...given: ConstructorParameters<typeof messaging.Poller>) => new messaging.Poller(...given),
      argument([], 'undefined'),
      options('signal', 'interruptOn', 'clock'),
    ),
    Msg: call(
      (...given: ConstructorParameters<typeof messaging.Msg>) => new messaging.Msg(...given),
      argument(address, 'bigint', 'undefined'),
      argument(address, 'bigint', 'undefined'),
    ),
    MessageSocket: 'is abstract',
    ThreadGate: call((memory: SharedArrayBuffer) => new messaging.ThreadGate(memory), argument(undefined, 'undefined')),
  };

  const callsOfSocket: CallsOf<messaging.MessageSocket> = {
    send: call(dealer.send.bind(dealer), argument(msg)),
    receive: call(dealer.receive.bind(dealer), options('signal')),
    watch: call(
      dealer.watch.bind(dealer),
      argument(() => undefined, 'function'),
    ),
    close: call(dealer.close.bind(dealer), options('timeoutMs')),
    flushed: 'takes nothing',
    tryReceive: 'takes nothing',
  };
  const callsOfDealer: CallsOf<messaging.Dealer> = {
    ...callsOfSocket,
    connect: call(dealer.connect.bind(dealer), argument('inproc://nobody'), options('timeoutMs')),
    writable: 'takes nothing',
  };
  const callsOfRouter: CallsOf<messaging.Router> = {
    send: call(router.send.bind(router), argument(msg)),
    receive: call(router.receive.bind(router), options('signal')),
    watch: call(
      router.watch.bind(router),
      argument(() => undefined, 'function'),
    ),
    close: call(router.close.bind(router), options('timeoutMs')),
    flushed: 'takes nothing',
    tryReceive: 'takes nothing',
    bind: call(router.bind.bind(router), argument('inproc://here')),
    writable: call(router.writable.bind(router), anAddress),
    forget: call(router.forget.bind(router), anAddress),
  };
  const poller = new messaging.Poller();
  const callsOfPoller: CallsOf<messaging.Poller> = {
    add: call(poller.add.bind(poller), argument(dealer)),
    remove: call(poller.remove.bind(poller), argument(dealer)),
    wait: call(poller.wait.bind(poller), argument(0, 'number')),
    interrupt: 'takes nothing',
    close: 'takes nothing',
  };
  const gate = new messaging.ThreadGate();
  const callsOfGate: CallsOf<messaging.ThreadGate> = {
    pass: call(
      gate.pass.bind(gate),
      argument(() => undefined, 'function'),
    ),
    enter: 'takes nothing',
    leave: 'takes nothing',
    close: 'takes nothing',
  };
  const callsOfContext: CallsOf<messaging.MessagingContext> = {
    backendOf: call(context.backendOf.bind(context), argument('inproc://here')),
    newSession: 'takes nothing',
    close: 'takes nothing',
  };
  const callsOfMsg: CallsOf<messaging.Msg> = {
    setTarget: call(msg.setTarget.bind(msg), argument(1), argument(1)),
    addFrame: call(msg.addFrame.bind(msg), argument('frame', 'string')),
    addPlacedFrame: 'is for sockets',
    placeOf: 'is for sockets',
    onDelivered: 'is for sockets',
    markDelivered: 'is for sockets',
    own: 'takes nothing',
    addFormatFrame: call(msg.addFormatFrame.bind(msg), argument('s'), argument('text', 'string')),
    parseFormatFrame: call(msg.parseFormatFrame.bind(msg), argument('s')),
    frameSize: 'takes nothing',
    frameData: 'takes nothing',
    frameStr: 'takes nothing',
    firstFrame: 'takes nothing',
    lastFrame: 'takes nothing',
    nextFrame: 'takes nothing',
    swapAddress: 'takes nothing',
    copy: 'takes nothing',
    release: 'takes nothing',
    markSent: 'is for sockets',
    markRefused: 'is for sockets',
    onRelease: 'is for sockets',
  };

  it('its functions and classes', async () => {
    hasAll(messaging, exported);
    await walk('messaging', exported);
    await walk('limits of', { MessagingContext: call(limitsOfContext, options(...limits)) });
    for (const name of ['source', 'destination', 'type'] as const) {
      const set = (value: never): void => void (msg[name] = value);
      await walk('Msg', { [name]: call(set, argument(name === 'type' ? 1 : address, name === 'type' ? 'promise' : 'bigint')) });
    }
  });

  it.each<[string, Table]>([
    ['dealer', callsOfDealer],
    ['router', callsOfRouter],
    ['poller', callsOfPoller],
    ['context', callsOfContext],
    ['msg', callsOfMsg],
    ['gate', callsOfGate],
  ])('what a %s does', async (name, table) => {
    await walk(name, table);
  });
});

describe('shoal/kvstore', async () => {
  const local = await kvstore.create('local');
  const exported: Exports<typeof kvstore> = {
    create: call(kvstore.create, argument('local', 'undefined'), options('ticket', 'environment')),
    ScheduledKVStore: call(
      (...given: ConstructorParameters<typeof kvstore.ScheduledKVStore>) => new kvstore.ScheduledKVStore(...given),
      argument(local),
      options('creditBytes', 'partitionBytes', 'timeoutMs', 'engine', 'observer', 'clock', 'environment'),
    ),
    createShared: call(kvstore.createShared, argument('dist_sync'), fields({ workers: 2 }, 'environment')),
  };

  const callsOfStore = (kv: kvstore.KVStore): CallsOf<kvstore.KVStore> => {
    const [key, values] = [argument('w', 'string', 'number', 'list'), argument(new Float32Array(4))];
    const row = argument('w', 'string', 'number');
    const transfer = options('priority', 'timeoutMs');
    return {
      tensor: call(kv.tensor.bind(kv), argument('float32'), argument([2])),
      init: call(kv.init.bind(kv), argument('fresh', 'string', 'number', 'list'), values, options('shape')),
      push: call(kv.push.bind(kv), key, values, transfer),
      pull: call(kv.pull.bind(kv), key, values, transfer),
      pushPull: call(kv.pushPull.bind(kv), key, values, argument(new Float32Array(4), 'undefined'), transfer),
      broadcast: call(kv.broadcast.bind(kv), argument('fresh', 'string', 'number', 'list'), values, values, transfer),
      rowSparsePush: call(kv.rowSparsePush.bind(kv), row, fields({ indices: Uint32Array.of(0), values: new Float32Array(2) }), transfer),
      rowSparsePull: call(kv.rowSparsePull.bind(kv), row, values, fields({ rowIds: Uint32Array.of(0) }, 'priority', 'timeoutMs')),
      barrier: call(kv.barrier.bind(kv), argument(undefined, 'undefined')),
      setOptimizer: call(kv.setOptimizer.bind(kv), fields({ name: 'sgd', learningRate: 1 }, 'rescale', 'weightDecay', 'clip', 'nonFinite')),
      setUpdater: call(
        kv.setUpdater.bind(kv),
        argument(() => undefined, 'function'),
      ),
      setGradientCompression: call(kv.setGradientCompression.bind(kv), fields({ type: '2bit' }, 'threshold')),
      saveState: call(kv.saveState.bind(kv), argument('/nowhere', 'string')),
      loadState: call(kv.loadState.bind(kv), argument('/nowhere', 'string')),
      info: call(kv.info.bind(kv), argument('w')),
      sendBlob: call(kv.sendBlob.bind(kv), argument(0), fields({ kind: 'feature', name: 'x', values: new Float32Array(1) })),
      receiveBlob: call(kv.receiveBlob.bind(kv), argument(0), argument('x', 'string'), options('timeoutMs')),
      served: call(kv.served.bind(kv), argument(undefined, 'undefined')),
      close: call(kv.close.bind(kv), argument(undefined, 'undefined')),
    };
  };

  it('its functions', async () => {
    hasAll(kvstore, exported);
    await walk('kvstore', exported);
  });

  it('a scheduled store', async () => {
    await using kv = new kvstore.ScheduledKVStore(await kvstore.create('local'));
    await kv.init('w', new Float32Array(4));
    const own = {
      close: call(kv.close.bind(kv), options('mode')),
      variableOf: call(kv.variableOf.bind(kv), argument(new Float32Array(2))),
    };
    await walk('scheduled store', { ...callsOfStore(kv), ...own });
  });

  it.each(['local', 'collective'] as const)('a %s store, which is as good as before', async (type) => {
    const kv = await kvstore.create(type, { environment: {} });
    await kv.init('w', new Float32Array(4), { shape: [2, 2] });
    await walk(`${type} store`, callsOfStore(kv));
    const w = Float32Array.of(1, 2, 3, 4);
    await kv.pushPull('w', w);
    expect([...w]).toEqual([1, 2, 3, 4]);
    await kv.close();
  });
});

describe('shoal/rendezvous', () => {
  const known = ['world', 'device', 'carriers', 'listenHosts', 'timeoutMs', 'memoryBytesMax', 'stepsMax', 'parkedMax'];
  const start = (given: rendezvous.RendezvousWorkerOptions): Promise<rendezvous.RendezvousWorker> =>
    rendezvous.RendezvousWorker.start(given);

  const callsOfWorker = (worker: rendezvous.RendezvousWorker): CallsOf<rendezvous.RendezvousWorker> => ({
    connect: call(worker.connect.bind(worker), argument(worker.address)),
    peer: call(worker.peer.bind(worker), argument(0)),
    beginStep: call(worker.beginStep.bind(worker), argument(1)),
    stand: call(worker.stand.bind(worker), argument(worker.self), argument('w', 'string'), fields({ firstStep: 1 }, 'depth')),
    close: 'takes nothing',
  });
  const callsOfStep = (worker: rendezvous.RendezvousWorker, step: rendezvous.WorkerStep): CallsOf<rendezvous.WorkerStep> => {
    const [peer, name] = [argument(worker.self), argument('w', 'string')];
    return {
      send: call(step.send.bind(step), peer, name, argument(Float32Array.of(1), 'string', 'list')),
      sendDead: call(step.sendDead.bind(step), peer, name),
      recv: call(step.recv.bind(step), peer, name, options('signal', 'into', 'device')),
      recvFused: call(step.recvFused.bind(step), peer, argument(['w'], 'list'), options('signal')),
      end: 'takes nothing',
      abort: call(step.abort.bind(step), argument(new Error('enough'))),
    };
  };

  it('workers and their steps, which are as good as before', async () => {
    // The class's constructor is private: types do not count it.
    hasAll(rendezvous, { RendezvousWorker: 'is made by its own start' });
    await walk('RendezvousWorker', { start: call(start, fields({ rank: 0, secret: 'public-api' }, ...known)) });
    const worker = await start({ rank: 0, secret: 'public-api', carriers: ['tcp'] });
    const step = worker.beginStep(2);
    await walk('worker', callsOfWorker(worker));
    await walk('step', callsOfStep(worker, step));
    void step.send(worker.self, 'w', Float32Array.of(3));
    expect(await step.recv(worker.self, 'w')).toMatchObject({ data: Float32Array.of(3) });
    await worker.close();
  });
});

describe('shoal/ddp', () => {
  const parameters = [{ name: 'w', shape: [2], dtype: 'float32' as const }];
  const [group] = new LocalWorld(2).groups;
  const limits = { firstBucketBytes: 64, bucketBytes: 64 };
  const weights = [{ name: 'w', data: new Float32Array(2) }];
  const objects = { gatherObject: async () => null, allGatherObject: async (value: unknown) => [value], allToAll: async () => undefined };
  const zeroGroup = Object.assign(group, objects) as unknown as ddp.ZeroGroup;
  const alone: ddp.CheckpointGroup = {
    rank: 0,
    size: 1,
    allGatherObject: async (value) => [value],
    broadcastObject: async <T>(value: T | undefined) => value as T,
  };

  const exported: Exports<typeof ddp> = {
    assignBuckets: call(ddp.assignBuckets, argument(parameters), fields(limits)),
    checksum: call(ddp.checksum, argument([], 'map')),
    Reducer: call(
      (...given: ConstructorParameters<typeof ddp.Reducer>) => new ddp.Reducer(...given),
      argument(group),
      argument(parameters),
      options('bucketBytes', 'firstBucketBytes', 'findUnused', 'weighting', 'timeoutMs', 'clock', 'environment'),
    ),
    SummaryWriter: call(
      (...given: ConstructorParameters<typeof ddp.SummaryWriter>) => new ddp.SummaryWriter(...given),
      argument(mkdtempSync(join(tmpdir(), 'shoal-public-')), 'string'),
    ),
    join: call(
      ddp.join,
      argument(group),
      argument([]),
      argument([], 'list', 'map'),
      argument(() => undefined, 'function'),
      options('throwOnEarlyTermination', 'parameters', 'timeoutMs'),
    ),
    SGD: call(
      (...given: ConstructorParameters<typeof ddp.SGD>) => new ddp.SGD(...given),
      argument(weights),
      options('lr', 'momentum', 'weightDecay', 'nesterov'),
    ),
    Adam: call(
      (...given: ConstructorParameters<typeof ddp.Adam>) => new ddp.Adam(...given),
      argument(weights),
      options('lr', 'betas', 'eps', 'weightDecay', 'decoupled'),
    ),
    ZeroRedundancyOptimizer: call(
      (...given: ConstructorParameters<typeof ddp.ZeroRedundancyOptimizer<ddp.AdamOptions>>) => new ddp.ZeroRedundancyOptimizer(...given),
      argument(zeroGroup),
      argument(weights),
      argument(ddp.Adam),
      options('lr', 'betas', 'eps', 'weightDecay', 'decoupled'),
      options('redundancy'),
    ),
    Checkpoints: call(
      (...given: ConstructorParameters<typeof ddp.Checkpoints>) => new ddp.Checkpoints(...given),
      argument(alone),
      argument(mkdtempSync(join(tmpdir(), 'shoal-public-')), 'string'),
      options('keep'),
    ),
    DistributedSampler: call(
      (...given: ConstructorParameters<typeof ddp.DistributedSampler>) => new ddp.DistributedSampler(...given),
      argument(8),
      options('group', 'seed', 'shuffle', 'dropLast'),
    ),
    seededRandom: call(ddp.seededRandom, argument(1)),
    PowerSGDState: call(
      (...given: ConstructorParameters<typeof ddp.PowerSGDState>) => new ddp.PowerSGDState(...given),
      options('matrixApproximationRank', 'startIteration', 'minCompressionRate', 'useErrorFeedback', 'warmStart', 'randomSeed'),
    ),
    HalfPrecisionState: 'takes nothing',
    allReduceHook: 'is called by reducers',
    bf16CompressHook: 'is called by reducers',
    fp16CompressHook: 'is called by reducers',
    powerSGDHook: 'is called by reducers',
  };

  it('its functions and classes', async () => {
    hasAll(ddp, exported);
    await walk('ddp', exported);
    expect(() => new ddp.DistributedSampler(8, group as ddp.SamplerOptions)).toThrow(/has no option/);
  });

  it('samplers and random numbers', async () => {
    const sampler = new ddp.DistributedSampler(8);
    const calls: CallsOf<ddp.DistributedSampler> = {
      setEpoch: call(sampler.setEpoch.bind(sampler), argument(0)),
      at: call(sampler.at.bind(sampler), argument(0)),
      batches: call(sampler.batches.bind(sampler), argument(1)),
      stateDict: 'takes nothing',
      loadStateDict: call(sampler.loadStateDict.bind(sampler), fields({ ...sampler.stateDict() })),
    };
    const random = ddp.seededRandom(1);
    const callsOfRandom: CallsOf<ddp.Random> = {
      integer: call(random.integer, argument(1)),
      bytes: call(random.bytes, argument(1)),
      next: 'takes nothing',
    };
    await walk('sampler', calls);
    await walk('random', callsOfRandom);
  });

  it('optimisers', async () => {
    const gradients = argument([new Float32Array(2)]);
    for (const optimizer of [new ddp.SGD(weights), new ddp.Adam(weights)])
      await walk('optimiser', { step: call(optimizer.step.bind(optimizer), gradients) } satisfies CallsOf<ddp.Optimizer>);
    const zero = new ddp.ZeroRedundancyOptimizer(zeroGroup, weights, ddp.SGD);
    const calls: CallsOf<ddp.ZeroRedundancyOptimizer> = {
      step: call(zero.step.bind(zero), gradients),
      consolidateStateDict: call(zero.consolidateStateDict.bind(zero), options('to')),
      joinable: call(zero.joinable.bind(zero), argument({ gradient: () => new Float32Array(2) })),
      settle: call(zero.settle.bind(zero), argument(-1)),
      regroup: call(zero.regroup.bind(zero), argument(zeroGroup)),
      close: 'takes nothing',
    };
    await walk('zero', calls);
  });

  it('checkpoints', async () => {
    const folder = temporaryFolder('public');
    const checkpoints = new ddp.Checkpoints(alone, folder);
    const calls: CallsOf<ddp.Checkpoints> = {
      save: call(checkpoints.save.bind(checkpoints), fields({}, 'tensors', 'owned', 'state')),
      latest: 'takes nothing',
    };
    await walk('checkpoints', calls);
    await checkpoints.save({ tensors: { w: Float32Array.of(1) } });
    const checkpoint = (await checkpoints.latest()) as ddp.Checkpoint;
    await walk('checkpoint', {
      load: call(checkpoint.load.bind(checkpoint), argument({ w: new Float32Array(1) })),
    } satisfies CallsOf<ddp.Checkpoint>);
  });

  it('reducers', async () => {
    const reducer = new ddp.Reducer(group, parameters, { weighting: 'samples' });
    const arrays = argument([new Float32Array(2)]);
    const calls: CallsOf<ddp.Reducer> = {
      joinHook: 'takes nothing',
      broadcastParameters: call(reducer.broadcastParameters.bind(reducer), arrays),
      begin: call(reducer.begin.bind(reducer), fields({ samples: 1 })),
      gradientReady: call(reducer.gradientReady.bind(reducer), argument(0), argument(new Float32Array(2))),
      noSync: call(
        reducer.noSync.bind(reducer),
        argument(() => undefined, 'function'),
      ),
      registerCommHook: call(
        (hook: ddp.CommHook<undefined>) => reducer.registerCommHook(undefined, hook),
        argument(ddp.allReduceHook, 'function'),
      ),
      finish: 'takes nothing',
      finishSync: 'takes nothing',
      gradient: call(reducer.gradient.bind(reducer), argument(0)),
      average: call(reducer.average.bind(reducer), arrays),
      verifyReplicas: call(reducer.verifyReplicas.bind(reducer), arrays),
      close: 'takes nothing',
    };
    await walk('reducer', calls);
  });

  it('jax-js', async () => {
    await init('wasm');
    defaultDevice('wasm');
    const [alone] = new LocalWorld(1).groups;
    const multihost = Object.assign(alone, { batch: async () => undefined }) as unknown as jaxJs.MultihostGroup;
    const tree = (): { w: np.Array } => ({ w: np.array(Float32Array.of(1, 2)) });
    const given = fresh(tree);
    const stages = (): jaxJs.Stage[] => [
      { name: 'only', parameters: tree(), forward: (own, x) => (own as { w: np.Array }).w.mul(x).sum() },
    ];
    const optimizer: jaxJs.StagesOptions['optimizer'] = () => ({ update: (own) => own });
    const stagesOptions = fields({ optimizer }, 'bucketBytes', 'firstBucketBytes', 'timeoutMs');
    const exportedHere: Exports<typeof jaxJs> = {
      distribute: call(
        jaxJs.distribute,
        argument(alone),
        given,
        options('bucketBytes', 'firstBucketBytes', 'findUnused', 'weighting', 'timeoutMs', 'clock', 'environment'),
      ),
      DistributedModel: 'is made by distribute',
      distributeStages: call(jaxJs.distributeStages, argument(alone), fresh(stages), stagesOptions),
      StagedModel: 'is made by distributeStages',
      initWebGpu: 'takes nothing',
      processIndex: call(jaxJs.processIndex, argument(multihost)),
      processCount: call(jaxJs.processCount, argument(multihost)),
      psum: call(jaxJs.psum, argument(multihost), given),
      pmean: call(jaxJs.pmean, argument(multihost), given),
      pmax: call(jaxJs.pmax, argument(multihost), given),
      pmin: call(jaxJs.pmin, argument(multihost), given),
      broadcastOneToAll: call(jaxJs.broadcastOneToAll, argument(multihost), given),
      processAllgather: call(jaxJs.processAllgather, argument(multihost), given, options('tiled')),
      syncGlobalDevices: call(jaxJs.syncGlobalDevices, argument(multihost), argument('name', 'string')),
    };
    hasAll(jaxJs, exportedHere);
    await walk('jax-js', exportedHere);
    const model = await jaxJs.distribute(alone, tree(), { weighting: 'samples' });
    const calls: CallsOf<typeof model> = {
      average: call(model.average.bind(model), given, options('samples')),
      averageSync: call(model.averageSync.bind(model), given, options('samples')),
      accumulate: call(model.accumulate.bind(model), given, options('samples')),
      averageWithout: 'takes nothing',
      registerCommHook: 'as of a reducer',
      mean: call(model.mean.bind(model), argument(1, 'number', 'NaN')),
      verifyReplicas: call(model.verifyReplicas.bind(model), given),
      checksum: call(model.checksum.bind(model), given),
      close: 'takes nothing',
    };
    await walk('model', calls);
    const staged = await jaxJs.distributeStages(alone, stages(), { optimizer });
    const input = fresh(() => np.ones([2]));
    const callsOfStages: CallsOf<typeof staged> = {
      step: call(staged.step.bind(staged), input),
      loss: call(staged.loss.bind(staged), input),
      registerCommHook: 'as of a reducer',
      drain: 'takes nothing',
      verifyReplicas: 'takes nothing',
      close: 'takes nothing',
    };
    await walk('staged model', callsOfStages);
  });
});

it('every subpath of the package is walked over', () => {
  const { exports: subpaths } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { exports: object };
  // These subpaths are covered by public-api-graph.test.ts, public-api-scheduler.test.ts and public-api-tfjs.test.ts.
  const elsewhere = ['./ddp/tfjs', './graph', './graph/tfjs', './scheduler', './engine'];
  const walked = ['.', './ddp', './ddp/jax-js', './messaging', './rendezvous', './kvstore', './package.json', ...elsewhere];
  expect(Object.keys(subpaths).toSorted()).toEqual(walked.toSorted());
});
