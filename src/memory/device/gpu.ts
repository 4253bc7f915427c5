/** The parts of WebGPU that are used here: a `GPUDevice` of the package `webgpu`, of a browser or of jax-js fits them. The
 *  package's own types are not needed to use or to compile Shoal. */

export interface GpuBuffer {
  readonly size: number;
  readonly usage: number;
  mapAsync(mode: number, offset?: number, size?: number): Promise<unknown>;
  getMappedRange(offset?: number, size?: number): ArrayBuffer;
  unmap(): unknown;
  destroy(): unknown;
}

export interface GpuCommandEncoder {
  copyBufferToBuffer(source: GpuBuffer, sourceOffset: number, target: GpuBuffer, targetOffset: number, bytes: number): unknown;
  finish(): object;
}

/** An error of a command, as error scopes report it. */
export interface GpuError {
  readonly message: string;
}

export interface GpuLostInfo {
  /** `destroyed` when the program has destroyed the device. */
  readonly reason: string;
  readonly message: string;
}

export interface GpuDevice {
  readonly lost: Promise<GpuLostInfo>;
  readonly limits: { readonly maxBufferSize: number };
  readonly queue: { submit(commands: object[]): unknown };
  createBuffer(descriptor: { size: number; usage: number; mappedAtCreation?: boolean; label?: string }): GpuBuffer;
  createCommandEncoder(): GpuCommandEncoder;
  pushErrorScope(filter: 'out-of-memory' | 'validation'): unknown;
  popErrorScope(): Promise<GpuError | null>;
  destroy(): unknown;
}

export interface GpuAdapter {
  readonly info: { readonly vendor: string; readonly architecture: string; readonly device: string; readonly description: string };
  readonly limits: { readonly maxBufferSize: number; readonly maxStorageBufferBindingSize: number };
  requestDevice(descriptor?: { requiredLimits?: Record<string, number> }): Promise<GpuDevice>;
}

export interface Gpu {
  requestAdapter(options?: { powerPreference?: 'low-power' | 'high-performance' }): Promise<GpuAdapter | null>;
}

/** Flags of `GPUBufferUsage`, by the specification's values. */
export const bufferUsage = { mapRead: 0x1, mapWrite: 0x2, copySource: 0x4, copyTarget: 0x8, storage: 0x80 } as const;

/** Flags of `GPUMapMode`, by the specification's values. */
export const mapMode = { read: 1, write: 2 } as const;

/** Copies between buffers begin and end at multiples of this many bytes. */
export const copyAlignment = 4;
