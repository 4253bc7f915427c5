/** Tensors of a WebGPU driver, written and read without Shoal. */
import { DeviceTensor } from 'shoal';

const [copySource, copyTarget, storage, mapRead] = [0x4, 0x8, 0x80, 0x1];

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
  await staging.mapAsync(1);
  const data = Buffer.from(staging.getMappedRange().slice(0));
  staging.destroy();
  return data;
}
