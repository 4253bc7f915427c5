/** Workers as programs use them, in one process over real fabrics; other processes: test/graph/rendezvous-processes.test.ts. */
import { afterEach, describe, expect, it } from 'vitest';
import { systemClock, VirtualClock } from '../base/clock.ts';
import { isShoalError, ShoalError } from '../base/errors.ts';
import { systemRandom } from '../base/random.ts';
import { libfabricUnavailable } from '../fabric/providers/libfabric/libfabric-devices.ts';
import { shmUnavailable } from '../fabric/providers/shm.ts';
import { TcpFabric } from '../fabric/providers/tcp.ts';
import { Tensor } from '../memory/tensor.ts';
import { threadRegion } from '../fabric/testing/regions.ts';
import { systemEnvironment } from './environment.ts';
import { RendezvousWorker, type RendezvousWorkerOptions } from './rendezvous-worker.ts';
import { parseWorkerAddress } from './worker-address.ts';

const workers: RendezvousWorker[] = [];
afterEach(async () => {
  for (const worker of workers.splice(0)) await worker.close();
});

async function start(rank: number, options: Partial<RendezvousWorkerOptions> = {}): Promise<RendezvousWorker> {
  const worker = await RendezvousWorker.start({ rank, secret: 's', ...options });
  workers.push(worker);
  return worker;
}

/** `b` has connected to `a`. */
async function pair(options: Partial<RendezvousWorkerOptions> = {}) {
  const [a, b] = [await start(0, options), await start(1, options)];
  const atB = await b.connect(a.address);
  const atA = await a.peer(1);
  return { a, b, atA, atB };
}

const shm = shmUnavailable();

it.each(['tcp;ofi_rxm', 'shm'])('the settings say which provider of libfabric carries tensors: %s', async (provider) => {
  const choice = { SHOAL_LIBFABRIC_PROVIDER: provider };
  const starting = RendezvousWorker.start({ rank: 0, secret: 's', carriers: ['libfabric'] }, systemEnvironment(choice));
  if (libfabricUnavailable({ provider }) !== undefined) return expect(starting).rejects.toMatchObject({ code: 'unsupported' });
  const worker = await starting;
  workers.push(worker);
  const [{ candidates }] = parseWorkerAddress(worker.address).fabrics;
  expect(new URLSearchParams(candidates[0].split('?')[1]).get('provider')).toBe(provider);
});

describe.each([
  ['tcp', undefined],
  ['shm', shm],
] as const)('rendezvous workers over %s', (carrier, reason) => {
  const title = reason === undefined ? '' : ` (skipped: ${reason})`;

  it.skipIf(reason !== undefined)(`send arrays, tensors and strings, and say when these may be changed${title}`, async () => {
    const { a, b, atA, atB } = await pair({ carriers: [carrier] });
    expect(atB).toEqual(a.self);
    for (let stepId = 1; stepId <= 3; stepId++) {
      const [here, there] = [a.beginStep(stepId), b.beginStep(stepId)];
      const matrix = new Tensor('float64', [2, 3], threadRegion(64), 8);
      matrix.data.set([1, 2, 3, 4, 5, stepId]);
      const sent = [
        here.send(atA, 'vector', Int32Array.of(1, 2, stepId)),
        here.send(atA, 'matrix', matrix),
        here.send(atA, 'text', `step ${stepId}`),
        here.send(atA, 'texts', ['a', '', 'ö']),
        here.send(atA, 'unasked', new Float32Array(3)),
      ];
      here.sendDead(atA, 'dead');
      const vector = await there.recv(atB, 'vector');
      const [received, text, texts, dead] = await there.recvFused(atB, ['matrix', 'text', 'texts', 'dead']);
      expect(vector).toMatchObject({ dtype: 'int32', shape: [3], data: Int32Array.of(1, 2, stepId) });
      expect(received).toMatchObject({ dtype: 'float64', shape: [2, 3], data: Float64Array.of(1, 2, 3, 4, 5, stepId) });
      expect(text).toMatchObject({ dtype: 'string', shape: [], data: [`step ${stepId}`] });
      expect(texts).toMatchObject({ dtype: 'string', shape: [3], data: ['a', '', 'ö'] });
      expect(dead).toBeUndefined();
      for (const each of [vector, received]) each!.release();
      here.end();
      there.end();
      await Promise.all(sent);
    }
    expect(a.counters).toMatchObject({ bytesCopied: 0, writes: 12 });
  });

  it.skipIf(reason !== undefined)(`push what stands ready to be pushed${title}`, async () => {
    const { a, b, atA, atB } = await pair({ carriers: [carrier] });
    const standing = b.stand(atB, 'x', { firstStep: 1, depth: 4 });
    for (let stepId = 1; stepId <= 20; stepId++) {
      const [here, there] = [a.beginStep(stepId), b.beginStep(stepId)];
      void here.send(atA, 'x', Float32Array.of(stepId));
      const x = await there.recv(atB, 'x');
      expect(x!.data[0]).toBe(stepId);
      x!.release();
      here.end();
      there.end();
    }
    standing.stop();
    expect(b.counters.requests).toBe(1);
  });

  it.skipIf(reason !== undefined)(`fail those who wait for a worker that is closed, and go on with the one after it${title}`, async () => {
    const { a, b, atB } = await pair({ carriers: [carrier] });
    const step = b.beginStep(1);
    const waiting = [step.recv(atB, 'x'), step.recvFused(atB, ['y', 'z'])].map((each) => each.catch((thrown: unknown) => thrown));
    await a.close();
    for (const each of waiting) expect(isShoalError(await each)).toBe(true);
    const again = await start(0, { carriers: [carrier] });
    const restarted = await b.connect(again.address);
    expect(restarted.incarnation).not.toBe(atB.incarnation);
    await expect(step.recv(atB, 'x')).rejects.toMatchObject({ code: 'mismatch' });
    void again.beginStep(1).send(await again.peer(1), 'x', 'back');
    expect(await step.recv(restarted, 'x')).toMatchObject({ data: ['back'] });
  });
});

describe('rendezvous workers', () => {
  it('fail a send that nobody asks for within the time limit, after which the name may be sent again', async () => {
    const clock = new VirtualClock();
    const a = await RendezvousWorker.start({ rank: 0, secret: 's', carriers: ['tcp'], timeoutMs: 5000 }, { ...systemEnvironment(), clock });
    const b = await start(1, { carriers: ['tcp'] });
    workers.push(a);
    const atB = await b.connect(a.address);
    const atA = await a.peer(1);
    const here = a.beginStep(1);
    const unasked = here.send(atA, 'x', Float32Array.of(1));
    clock.advance(4999);
    const later = here.send(atA, 'y', 'y');
    clock.advance(1);
    await expect(unasked).rejects.toMatchObject({
      code: 'timeout',
      message: expect.stringMatching(/^'x' was not asked for by \S+task:1\S+ within 5000 ms of step 1; /) as string,
    });
    const x = b.beginStep(1).recv(atB, 'x');
    await here.send(atA, 'x', Float32Array.of(2));
    expect((await x)!.data).toEqual(Float32Array.of(2));
    await expect(here.send(atA, 'x', Float32Array.of(3))).rejects.toMatchObject({ code: 'usage' });
    here.end();
    await later;
  });

  it('give each other tensors within one worker', async () => {
    const worker = await start(0, { carriers: ['tcp'] });
    const step = worker.beginStep(1);
    const sent = step.send(worker.self, 'x', Float32Array.of(5));
    const x = await step.recv(worker.self, 'x');
    x!.release();
    await sent;
    expect(x!.data).toEqual(Float32Array.of(5));
  });

  it('do not wait for ever for one that connects and says nothing', async () => {
    const worker = await start(0, { carriers: ['tcp'], timeoutMs: 50 });
    const { fabrics } = parseWorkerAddress(worker.address);
    const mute = new TcpFabric({
      identity: { world: 'rendezvous', rank: 1 },
      secret: Buffer.from('s'),
      clock: systemClock,
      random: systemRandom,
    });
    const connection = await mute.connect(fabrics[0], { peer: { world: 'rendezvous', rank: 0 }, timeoutMs: 60_000 });
    const ended = new Promise((resolve) => connection.setHandlers({ onMessage() {}, onImmediate() {}, onClose: resolve }));
    expect(await ended).toBeUndefined();
    await mute.close();
  });

  it('say what is wrong', async () => {
    const refusals: [Partial<RendezvousWorkerOptions>, RegExp][] = [
      [{ rank: -1 }, /a rank from 0/],
      [{ secret: '' }, /needs a secret/],
      [{ carriers: ['pigeon'] }, /there is no carrier 'pigeon'; there are .*tcp/],
      [{ worlds: 'x' } as never, /worlds/],
      [{ memoryBytesMax: 2 ** 20 }, /memoryBytesMax must be a whole number from 4194304, not 1048576/],
      [{ memoryBytesMax: NaN }, /memoryBytesMax/],
      [{ stepsMax: 0 }, /stepsMax must be a whole number from 1, not 0/],
      [{ parkedMax: -1 }, /parkedMax must be a whole number from 1, not -1/],
    ];
    for (const [options, message] of refusals)
      await expect(RendezvousWorker.start({ rank: 0, secret: 's', ...options })).rejects.toThrow(message);
    const worker = await start(0, { carriers: ['tcp'], timeoutMs: 50 });
    for (const address of [
      '',
      'tcp://1.2.3.4:5',
      'rendezvous:',
      'rendezvous:e30',
      `rendezvous:${Buffer.from('{"rank":0,"fabrics":[{}]}').toString('base64url')}`,
    ])
      await expect(worker.connect(address)).rejects.toThrow(/is not the address of a rendezvous worker/);
    await expect(worker.peer(7)).rejects.toThrow(/worker 7 has not connected to worker 0 within 50 ms/);
    const step = worker.beginStep(1);
    for (const name of ['', 'a;b', 5, 'x'.repeat(1001)])
      expect(() => step.sendDead(worker.self, name as string)).toThrow(/the name of a tensor/);
    expect(() => step.sendDead('worker 1' as never, 'x')).toThrow(/must go between workers/);
    for (const value of [5, null, new DataView(new ArrayBuffer(4)), [1, 2]])
      expect(() => void step.send(worker.self, 'x', value as never)).toThrow(ShoalError);
    const stranger = await start(1, { secret: 'other', carriers: ['tcp'], timeoutMs: 60_000 });
    await expect(stranger.connect(worker.address)).rejects.toMatchObject({ code: 'auth' });
    const other = await start(2, { carriers: [] });
    await expect(other.connect(worker.address)).rejects.toThrow(/no carrier in common .* it offers tcp/);
    expect(() => other.stand(worker.self, 'x', { firstStep: 2 })).toThrow(/has no connection to this worker/);
  });
});

it('who waits for a worker to connect hears that this one is closed', async () => {
  const worker = await start(0);
  const waiting = expect(worker.peer(7)).rejects.toMatchObject({ code: 'closed', peer: 7 });
  await worker.close();
  await waiting;
  await expect(worker.peer(7)).rejects.toMatchObject({ code: 'closed' });
});
