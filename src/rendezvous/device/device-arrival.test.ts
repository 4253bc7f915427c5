/** Tensors of devices between workers, on devices of this thread. Drivers are tested in test/group/device-processes.test.ts. */
import { afterEach, describe, expect, it } from 'vitest';
import { DeviceCopies } from '../../memory/device/device-copies.ts';
import { DeviceTensor } from '../../memory/device/device-tensor.ts';
import { bufferOf, FakeDevice } from '../../memory/device/testing/fake-device.ts';
import { shmUnavailable } from '../../fabric/providers/shm.ts';
import { RendezvousWorker, type RendezvousWorkerOptions } from '../rendezvous-worker.ts';
import type { ReceivedTensor } from '../worker-step.ts';
import { stagedPieceBytes } from '../value/staged-tensor.ts';

const workers: RendezvousWorker[] = [];
afterEach(async () => {
  for (const worker of workers.splice(0)) await worker.close();
});

async function pair(options: Partial<RendezvousWorkerOptions> = {}) {
  const [a, b] = await Promise.all([0, 1].map((rank) => RendezvousWorker.start({ rank, secret: 's', carriers: ['tcp'], ...options })));
  workers.push(a, b);
  const atB = await b.connect(a.address);
  return { a, b, atA: await a.peer(1), atB };
}

function onDevice(values: Float32Array, device = new FakeDevice(), byteOffset = 0): DeviceTensor<'float32'> {
  const bytes = new Uint8Array(byteOffset + values.byteLength + 8);
  bytes.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), byteOffset);
  return new DeviceTensor({ device, buffer: bufferOf(device, bytes), dtype: 'float32', shape: [values.length], byteOffset });
}

async function dataOf(tensor: DeviceTensor): Promise<Float32Array> {
  const bytes = new Uint8Array(tensor.bytes);
  await new DeviceCopies(tensor.device).read(tensor, bytes);
  return new Float32Array(bytes.buffer);
}

function isSame(actual: Float32Array, expected: Float32Array): boolean {
  return Buffer.compare(Buffer.from(actual.buffer), Buffer.from(expected.buffer)) === 0;
}

const shm = shmUnavailable();

describe.each([
  ['tcp', { carriers: ['tcp'] }, undefined],
  ['shm', { carriers: ['shm'] }, shm],
] as const)('tensors of devices over %s', (_, options, reason) => {
  const title = reason === undefined ? '' : ` (skipped: ${reason})`;

  it.skipIf(reason !== undefined)(`come from devices and go to them, whatever the other end has${title}`, async () => {
    const { a, b, atA, atB } = await pair(options);
    const device = new FakeDevice();
    // Less than a piece, nothing, and two pieces and a bit.
    for (const [index, count] of [5, 0, (2 * stagedPieceBytes) / 4 + 3].entries()) {
      const values = Float32Array.from({ length: count }, (_each, k) => k + index);
      for (let stepId = 10 * index; stepId < 10 * index + 2; stepId++) {
        const [here, there] = [a.beginStep(stepId), b.beginStep(stepId)];
        const into = onDevice(new Float32Array(count), device, 8);
        const results = [
          there.recv(atB, 'from device into', { into }),
          there.recv(atB, 'from device', { device }),
          there.recv(atB, 'from host', { device }),
        ];
        const host = there.recv(atB, 'to host');
        const fused = there.recvFused(atB, ['fused', 'beside']);
        const sent = ['from device into', 'from device', 'to host', 'fused'].map((name) => here.send(atA, name, onDevice(values)));
        sent.push(here.send(atA, 'from host', values), here.send(atA, 'beside', 'text'));
        const received = await Promise.all(results);
        for (const { dtype, shape } of received as DeviceTensor[]) expect({ dtype, shape }).toEqual({ dtype: 'float32', shape: [count] });
        expect(received[0]!.buffer).toBe(into.buffer);
        for (const each of received) expect(isSame(await dataOf(each!), values)).toBe(true);
        const [first, second] = [await host, ...(await fused)] as ReceivedTensor[];
        for (const each of [first, second]) {
          expect(isSame(new Float32Array(each.data as Float32Array), values)).toBe(true);
          each.release();
        }
        await Promise.all(sent);
        here.end();
        there.end();
      }
    }
    // The bytes around it are as they were.
    const guarded = onDevice(new Float32Array(3).fill(7), device, 8);
    const [here, there] = [a.beginStep(100), b.beginStep(100)];
    here.sendDead(atA, 'dead');
    void here.send(atA, 'live', Float32Array.of(1, 2, 3));
    expect(await there.recv(atB, 'dead', { into: guarded })).toBeUndefined();
    expect(
      await there.recv(atB, 'dead too', { into: guarded, signal: AbortSignal.timeout(5) }).catch((each: Error) => each.message),
    ).toMatch(/cancelled by its signal/);
    await there.recv(atB, 'live', { into: guarded });
    expect([...(await dataOf(new DeviceTensor({ device, buffer: guarded.buffer, dtype: 'float32' })))]).toEqual([0, 0, 1, 2, 3, 0, 0]);
  });
});

describe('tensors of devices', () => {
  it('are asked for ahead by standing requests', async () => {
    const { a, b, atA, atB } = await pair();
    b.stand(atB, 'x', { firstStep: 1, depth: 4 });
    const into = onDevice(new Float32Array(3));
    for (let stepId = 1; stepId <= 12; stepId++) {
      const [here, there] = [a.beginStep(stepId), b.beginStep(stepId)];
      const sent = here.send(atA, 'x', onDevice(Float32Array.of(stepId, 2, 3)));
      await there.recv(atB, 'x', { into });
      expect([...(await dataOf(into))]).toEqual([stepId, 2, 3]);
      await sent;
      here.end();
      there.end();
    }
    expect(b.counters.requests).toBe(1);
  });

  it('are given within one worker', async () => {
    const { a } = await pair();
    const step = a.beginStep(1);
    const into = onDevice(new Float32Array(2));
    const sent = ['x', 'y', 'z'].map((name) => step.send(a.self, name, onDevice(Float32Array.of(4, 5))));
    await step.recv(a.self, 'x', { into });
    expect([...(await dataOf(into))]).toEqual([4, 5]);
    expect((await step.recv(a.self, 'y'))!.data).toEqual(Float32Array.of(4, 5));
    expect((await step.recvFused(a.self, ['z']))[0]!.data).toEqual(Float32Array.of(4, 5));
    await Promise.all(sent);
  });

  it('fail for both ends when the device that has them is lost, and others go on', async () => {
    const { a, b, atA, atB } = await pair();
    const device = new FakeDevice();
    const [here, there] = [a.beginStep(1), b.beginStep(1)];
    const lost = Promise.allSettled([
      there.recv(atB, 'lost'),
      here.send(atA, 'lost', onDevice(new Float32Array(stagedPieceBytes), device)),
    ]);
    const unasked = here.send(atA, 'unasked', onDevice(Float32Array.of(1), device));
    device.lose('unknown', 'the GPU hung');
    const reason = { code: 'system', message: expect.stringContaining('the GPU hung') as string };
    expect(await lost).toMatchObject([{ reason }, { reason }]);
    void here.send(atA, 'host', Float32Array.of(3));
    expect((await there.recv(atB, 'host'))!.data).toEqual(Float32Array.of(3));
    here.end();
    await unasked;
  });

  it('fail, at once, when the device that they go to is lost, and others go on', async () => {
    const { a, b, atA, atB } = await pair();
    const device = new FakeDevice();
    const [here, there] = [a.beginStep(1), b.beginStep(1)];
    const waiting = Promise.allSettled([
      there.recv(atB, 'x', { into: onDevice(new Float32Array(4), device) }),
      there.recv(atB, 'y', { device }),
    ]);
    const [host, other] = [there.recv(atB, 'host'), there.recv(atB, 'other', { device: new FakeDevice() })];
    device.destroy();
    const reason = { code: 'closed', message: expect.stringContaining('destroyed') as string };
    expect(await waiting).toMatchObject([{ reason }, { reason }]);
    for (const name of ['host', 'other']) void here.send(atA, name, Float32Array.of(3));
    expect((await host)!.data).toEqual(Float32Array.of(3));
    expect([...(await dataOf((await other)!))]).toEqual([3]);
    await expect(there.recv(atB, 'z', { device })).rejects.toMatchObject({ code: 'closed' });
  });

  it('fail when a device has no room, for proxies or for the tensor, and go on when it has', async () => {
    const { a, b, atA, atB } = await pair();
    const [here, there] = [a.beginStep(1), b.beginStep(1)];
    const device = new FakeDevice();
    const tensors = [1, 2, 3].map((value) => onDevice(Float32Array.of(value), device));
    const error = { code: 'out-of-memory', message: expect.stringContaining('no room') as string };
    device.room = 0;
    const unread = await Promise.allSettled([there.recv(atB, 'unread'), here.send(atA, 'unread', tensors[0])]);
    expect(unread).toMatchObject([{ reason: error }, { reason: { ...error, resource: 'device memory' } }]);
    for (const name of ['into', 'made', 'again']) void here.send(atA, name, Float32Array.of(9));
    device.room = 0;
    await expect(there.recv(atB, 'into', { into: tensors[1] })).rejects.toMatchObject({ ...error, resource: 'device memory' });
    device.room = 0;
    await expect(there.recv(atB, 'made', { device })).rejects.toMatchObject({
      ...error,
      message: expect.stringContaining('a received tensor') as string,
    });
    device.room = Infinity;
    expect([...(await dataOf((await there.recv(atB, 'again', { into: tensors[2] }))!))]).toEqual([9]);
  });

  it('are refused where they do not fit, and where there is no device', async () => {
    const { a, b, atA, atB } = await pair();
    const [here, there] = [a.beginStep(1), b.beginStep(1)];
    const device = new FakeDevice();
    const into = onDevice(Float32Array.of(1, 2), device);
    for (const name of ['count', 'dtype', 'text', 'odd']) {
      const value = { count: Float32Array.of(1, 2, 3), dtype: Int32Array.of(1, 2), text: 'x', odd: Uint8Array.of(1, 2, 3) }[name]!;
      void here.send(atA, name, value);
    }
    await expect(there.recv(atB, 'count', { into })).rejects.toMatchObject({
      code: 'mismatch',
      message: expect.stringMatching(/float32\[3\], but `into` is float32\[2\]/) as string,
    });
    await expect(there.recv(atB, 'dtype', { into })).rejects.toMatchObject({ code: 'mismatch' });
    await expect(there.recv(atB, 'text', { device })).rejects.toMatchObject({ code: 'unsupported' });
    await expect(there.recv(atB, 'odd', { device })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('pad it') as string,
    });
    expect([...(await dataOf(into))]).toEqual([1, 2]);
    await expect(there.recv(atB, 'x', { into, device })).rejects.toMatchObject({ code: 'usage' });
    await expect(there.recv(atB, 'x', { into: Float32Array.of(1) as never })).rejects.toMatchObject({ code: 'usage' });
    await expect(there.recv(atB, 'x', { device: {} as never })).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringContaining('GPUDevice') as string,
    });
    await expect(there.recvFused(atB, ['x'], { device } as never)).rejects.toMatchObject({ code: 'usage' });
  });
});
