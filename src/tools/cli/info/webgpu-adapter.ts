/** The WebGPU adapter that ranks of this machine would have, or why there is none. */
import { messageOf } from '../../../base/errors.ts';
import { describeAdapter, findAdapter } from '../../../memory/device/webgpu-adapter.ts';

export interface WebGpuInfo {
  readonly adapter: string | null;
  /** Null where there is an adapter. */
  readonly reason: string | null;
}

export async function webGpuInfo(): Promise<WebGpuInfo> {
  try {
    return { adapter: describeAdapter((await findAdapter()).adapter), reason: null };
  } catch (thrown) {
    return { adapter: null, reason: messageOf(thrown) };
  }
}
