/** Tensors of a WebGPU driver, written and read without Shoal. Whatever nothing refers to is collected before and during every mapping. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { DeviceTensor, openDevice, type OpenDevice } from 'shoal';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

const [copySource, copyTarget, storage, mapRead] = [0x4, 0x8, 0x80, 0x1];

/** A device as programs have it that keep nothing else of what opened it. */
export async function openOnly(): Promise<Pick<OpenDevice, 'device' | 'adapter'>> {
  const { device, adapter } = await openDevice();
  return { device, adapter };
}

export function onDevice(device: DeviceTensor['device'], values: Float32Array): DeviceTensor<'float32'> {
  const size = Math.max(4, values.byteLength);
  const buffer = device.createBuffer({ size, usage: copySource | copyTarget | storage, mappedAtCreation: true });
  new Float32Array(buffer.getMappedRange()).set(values);
  buffer.unmap();
  return new DeviceTensor({ device, buffer, dtype: 'float32', shape: [values.length] });
}

export async function dataOf({ device, buffer, bytes }: DeviceTensor): Promise<Buffer> {
  const staging = device.createBuffer({ size: bytes, usage: copyTarget | mapRead });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, bytes);
  device.queue.submit([encoder.finish()]);
  await new Promise(setImmediate);
  collectGarbage();
  const mapped = staging.mapAsync(1);
  collectGarbage();
  await mapped;
  const data = Buffer.from(staging.getMappedRange().slice(0));
  staging.destroy();
  return data;
}
