/** Tensors whose elements are in a WebGPU buffer. The buffer is the caller's: nothing here makes or destroys it. */
import { ShoalError } from '../../base/errors.ts';
import { anyList, anyNumber, anyText, anything, checkFields, describeValue, optionTable } from '../../base/schema.ts';
import { dtypeInfo, type DType } from '../dtype.ts';
import { countOf } from '../tensor.ts';
import { bufferUsage, copyAlignment, type GpuBuffer, type GpuDevice } from './gpu.ts';

/** The buffer that a device tensor views, and the place in it. */
export interface DeviceTensorOptions<D extends DType = DType> {
  /** The GPUDevice that made the buffer: of `openDevice`, of jax-js or of the package webgpu. */
  readonly device: GpuDevice;
  /** Made by `device`, with COPY_SRC and COPY_DST. */
  readonly buffer: GpuBuffer;
  /** Dtype of the elements in the buffer. */
  readonly dtype: D;
  /** Shape. Default: one dimension, the rest of the buffer. */
  readonly shape?: readonly number[];
  /** Offset of the first element; a multiple of 4. Default 0. */
  readonly byteOffset?: number;
}

const deviceTensorOptions = optionTable<DeviceTensorOptions>({
  device: anything,
  buffer: anything,
  dtype: anyText,
  shape: anyList,
  byteOffset: anyNumber,
});

/** A tensor whose elements are in a WebGPU buffer; collectives of a group accept it if all ranks give one. The buffer stays the
 *  caller's: it is neither made nor destroyed here. The caller must not write it until the call's work is done, which has to be
 *  awaited (`waitSync` throws `usage`).
 *
 *      const x = new DeviceTensor({ device, buffer, dtype: 'float32', shape: [1024] });
 *      await group.allReduce(x); */
export class DeviceTensor<D extends DType = DType> {
  /** The device that made the buffer. */
  readonly device: GpuDevice;
  /** The caller's GPUBuffer. */
  readonly buffer: GpuBuffer;
  /** Offset of the first element in the buffer; a multiple of 4 and of the element's size. */
  readonly byteOffset: number;
  /** Element type. */
  readonly dtype: D;
  /** Dimensions, the last one fastest. */
  readonly shape: readonly number[];
  /** Number of elements. */
  readonly count: number;
  /** Number of bytes. */
  readonly bytes: number;

  /** @throws ShoalError `usage` for anything but a device and a buffer, a buffer that cannot be copied from and to, a place
   *          outside it; `unsupported` for bytes that copies of devices cannot begin or end at. */
  constructor(options: DeviceTensorOptions<D>) {
    checkFields('DeviceTensor', options, deviceTensorOptions);
    const { device, buffer, dtype, byteOffset = 0 } = options;
    const { bytes: elementBytes } = dtypeInfo(dtype);
    checkGpu(device, buffer);
    if (!Number.isSafeInteger(byteOffset) || byteOffset < 0 || byteOffset > buffer.size)
      throw new ShoalError('usage', `DeviceTensor: byteOffset ${byteOffset} is not in the buffer of ${buffer.size} bytes`);
    const shape = options.shape ?? [Math.floor((buffer.size - byteOffset) / elementBytes)];
    this.device = device;
    this.buffer = buffer;
    this.byteOffset = byteOffset;
    this.dtype = dtype;
    this.count = countOf(shape);
    this.shape = [...shape];
    this.bytes = this.count * elementBytes;
    const what = `DeviceTensor ${dtype}[${shape.join(', ')}] at byte ${byteOffset}`;
    if (byteOffset % elementBytes !== 0)
      throw new ShoalError('usage', `${what}: elements of ${elementBytes} bytes begin at multiples of it`);
    if (byteOffset + this.bytes > buffer.size) throw new ShoalError('usage', `${what} does not fit the buffer of ${buffer.size} bytes`);
    if (byteOffset % copyAlignment !== 0 || this.bytes % copyAlignment !== 0) {
      const message = `${what} has ${this.bytes} bytes: copies of devices begin and end at multiples of ${copyAlignment} bytes; pad it to that`;
      throw new ShoalError('unsupported', message);
    }
  }
}

/** True for a tensor whose elements host code cannot reach. */
export function isOnDevice(value: unknown): value is DeviceTensor {
  return value instanceof DeviceTensor;
}

/** @throws ShoalError `usage` for anything but a device. */
export function checkDevice(where: string, device: unknown): asserts device is GpuDevice {
  if (!hasMethods(device, 'createBuffer', 'createCommandEncoder', 'pushErrorScope'))
    throw new ShoalError('usage', `${where}: device must be a GPUDevice, not ${describeValue(device)}`);
}

function checkGpu(device: unknown, buffer: unknown): void {
  checkDevice('DeviceTensor', device);
  if (!hasMethods(buffer, 'mapAsync', 'getMappedRange'))
    throw new ShoalError('usage', `DeviceTensor: buffer must be a GPUBuffer, not ${describeValue(buffer)}`);
  const { usage } = buffer as unknown as GpuBuffer;
  const missing = [
    ...((usage & bufferUsage.copySource) === 0 ? ['COPY_SRC'] : []),
    ...((usage & bufferUsage.copyTarget) === 0 ? ['COPY_DST'] : []),
  ];
  if (missing.length > 0) {
    const message = `DeviceTensor: the buffer lacks the usage ${missing.join(' and ')}; create it with both COPY_SRC and COPY_DST`;
    throw new ShoalError('usage', message);
  }
}

function hasMethods(value: unknown, ...names: string[]): value is Record<string, unknown> {
  return (
    typeof value === 'object' && value !== null && names.every((name) => typeof (value as Record<string, unknown>)[name] === 'function')
  );
}
