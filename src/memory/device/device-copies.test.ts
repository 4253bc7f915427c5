/** Copies with a device in this thread. Drivers are tested in test/group/device-processes.test.ts. */
import { beforeEach, describe, expect, it } from 'vitest';
import { DeviceCopies } from './device-copies.ts';
import { DeviceTensor } from './device-tensor.ts';
import { bufferUsage } from './gpu.ts';
import { bufferOf, FakeDevice } from './testing/fake-device.ts';

let device: FakeDevice;
beforeEach(() => {
  device = new FakeDevice();
});

function bytesOf(length: number): Uint8Array {
  return Uint8Array.from({ length }, (_, at) => (at * 31 + (at >> 8)) & 255);
}

describe('DeviceCopies', () => {
  it.each([4, 60, 64, 68, 1000])('reads and writes %d bytes in pieces of 64', async (length) => {
    const copies = new DeviceCopies(device, { pieceBytes: 64, pieces: 2 });
    const data = bytesOf(length);
    const from = bufferOf(device, data, length + 12);
    const to = bufferOf(device, new Uint8Array(length + 12));
    const host = new Uint8Array(length);
    await copies.read({ buffer: from, byteOffset: 0 }, host);
    expect(host).toEqual(data);
    await copies.write({ buffer: to, byteOffset: 8 }, host);
    const back = new Uint8Array(length + 12);
    await copies.read({ buffer: to, byteOffset: 0 }, back);
    expect(back.subarray(8, 8 + length)).toEqual(data);
    expect([...back.subarray(0, 8), ...back.subarray(8 + length)]).toEqual(new Array(12).fill(0));
    copies.close();
  });

  it('moves nothing for no bytes', async () => {
    const copies = new DeviceCopies(device);
    await copies.read({ buffer: bufferOf(device, new Uint8Array(4)), byteOffset: 4 }, new Uint8Array(0));
  });

  it('makes no more proxies than allowed, however many copies are under way', async () => {
    const buffer = bufferOf(device, bytesOf(4096));
    const copies = new DeviceCopies(device, { pieceBytes: 64, pieces: 3 });
    const hosts = Array.from({ length: 8 }, () => new Uint8Array(4096));
    await Promise.all(hosts.map((host) => copies.read({ buffer, byteOffset: 0 }, host)));
    for (const host of hosts) expect(host).toEqual(bytesOf(4096));
    expect(device.made).toBe(1 + 3);
  });

  it('says when a buffer is gone, and goes on with others', async () => {
    const copies = new DeviceCopies(device, { pieceBytes: 64, pieces: 1 });
    const gone = bufferOf(device, bytesOf(64));
    gone.destroy();
    await expect(copies.read({ buffer: gone, byteOffset: 0 }, new Uint8Array(64))).rejects.toMatchObject({
      code: 'usage',
      message: expect.stringMatching(/the device refused a copy of 64 bytes: .*destroyed/s),
    });
    const host = new Uint8Array(64);
    await copies.read({ buffer: bufferOf(device, bytesOf(64)), byteOffset: 0 }, host);
    expect(host).toEqual(bytesOf(64));
  });

  it('fails copies under way, waiting ones and later ones when the device is lost', async () => {
    const copies = new DeviceCopies(device, { pieceBytes: 64, pieces: 1 });
    const buffer = bufferOf(device, bytesOf(256));
    const reads = [1, 2, 3].map(() => copies.read({ buffer, byteOffset: 0 }, new Uint8Array(256)));
    await Promise.resolve();
    device.destroy();
    const outcomes = await Promise.allSettled(reads);
    const error = expect.objectContaining({ code: 'closed', message: expect.stringContaining('the device was destroyed') });
    expect(outcomes).toEqual(reads.map(() => ({ status: 'rejected', reason: error })));
    await expect(copies.write({ buffer, byteOffset: 0 }, new Uint8Array(4))).rejects.toMatchObject({ code: 'closed' });
  });

  it('says that the driver took the device away', async () => {
    const copies = new DeviceCopies(device, { pieceBytes: 64 });
    const buffer = bufferOf(device, bytesOf(64));
    const read = copies.read({ buffer, byteOffset: 0 }, new Uint8Array(64));
    device.lose('unknown', 'the GPU hung');
    const error = { code: 'system', message: 'the device was lost: the GPU hung; make another, and its buffers again' };
    await expect(read).rejects.toMatchObject(error);
    await expect(copies.read({ buffer, byteOffset: 0 }, new Uint8Array(64))).rejects.toMatchObject(error);
  });

  it('says that there is no memory for proxies, and tries again', async () => {
    const copies = new DeviceCopies(device, { pieceBytes: 64, pieces: 1 });
    const buffer = bufferOf(device, bytesOf(64));
    device.room = 0;
    await expect(copies.read({ buffer, byteOffset: 0 }, new Uint8Array(64))).rejects.toMatchObject({
      code: 'out-of-memory',
      resource: 'device memory',
      bytes: 64,
    });
    device.room = 64;
    await copies.read({ buffer, byteOffset: 0 }, new Uint8Array(64));
  });

  it('refuses copies after close', async () => {
    const copies = new DeviceCopies(device);
    copies.close();
    copies.close();
    await expect(copies.read({ buffer: bufferOf(device, bytesOf(4)), byteOffset: 0 }, new Uint8Array(4))).rejects.toMatchObject({
      code: 'closed',
    });
  });
});

describe('DeviceTensor', () => {
  it('covers the rest of its buffer when it has no shape', () => {
    const buffer = bufferOf(device, new Float32Array(6));
    expect(new DeviceTensor({ device, buffer, dtype: 'float32' })).toMatchObject({ shape: [6], count: 6, bytes: 24, byteOffset: 0 });
    expect(new DeviceTensor({ device, buffer, dtype: 'float64', byteOffset: 8 })).toMatchObject({ shape: [2], bytes: 16 });
    expect(new DeviceTensor({ device, buffer, dtype: 'int32', shape: [2, 2] })).toMatchObject({ count: 4, bytes: 16 });
  });

  it.each([
    ['usage', 'not in the buffer', { byteOffset: 32 }],
    ['usage', 'not in the buffer', { byteOffset: -4 }],
    ['usage', 'does not fit', { shape: [7] }],
    ['usage', 'multiples of it', { dtype: 'float64', byteOffset: 4 }],
    ['usage', 'not valid', { shape: [-1] }],
    ['unsupported', 'multiples of 4 bytes', { dtype: 'uint8', shape: [3] }],
    ['unsupported', 'multiples of 4 bytes', { dtype: 'float16', byteOffset: 2, shape: [2] }],
    ['unsupported', 'dtype', { dtype: 'float8' }],
    ['usage', 'device must be', { device: {} }],
    ['usage', 'buffer must be', { buffer: new Float32Array(2) }],
    ['usage', 'no option', { offset: 0 }],
  ])('is refused with %s: %s', (code, message, wrong) => {
    const buffer = bufferOf(device, new Float32Array(6));
    const options = { device, buffer, dtype: 'float32', ...wrong } as never;
    expect(() => new DeviceTensor(options)).toThrow(expect.objectContaining({ code, message: expect.stringContaining(message) }));
  });

  it('needs a buffer that can be copied from and to', () => {
    const buffer = device.createBuffer({ size: 8, usage: bufferUsage.copyTarget });
    expect(() => new DeviceTensor({ device, buffer, dtype: 'float32' })).toThrow(/lacks the usage COPY_SRC; create it/);
  });
});
