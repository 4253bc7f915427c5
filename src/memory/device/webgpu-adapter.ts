/** Opens devices of this process through the package `webgpu` (Dawn for Node.js, optional), which needs a Vulkan driver. The only
 *  file that loads the package. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import { softwareDriver } from './software-driver.ts';
import type { Gpu, GpuAdapter } from './gpu.ts';

/** The package's counterpart of `navigator.gpu` and of the browser's global names. */
export interface WebGpu {
  readonly gpu: Gpu;
  readonly globals: Readonly<Record<string, unknown>>;
  readonly adapter: GpuAdapter;
}

interface DawnPackage {
  create(options: string[]): Gpu;
  readonly globals: Readonly<Record<string, unknown>>;
}

/** Dawn's instance, which devices, buffers and pending mappings use without holding it: if it were collected before them, the process would
 *  end with SIGABRT or SIGSEGV. So there is one, and it stays. */
const ofThisProcess: { gpu: Gpu | undefined } = { gpu: undefined };

/** @throws ShoalError like `openDevice`. */
export async function findAdapter(): Promise<WebGpu> {
  const { create, globals } = await loadDawn();
  const gpu = (ofThisProcess.gpu ??= create([]));
  const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' }).catch((cause: unknown) => noAdapter(cause));
  return { gpu, globals, adapter: adapter ?? noAdapter() };
}

/** Text for people: `SwiftShader driver 5.0.0 (google swiftshader)`. */
export function describeAdapter({ info: { vendor, architecture, device, description } }: GpuAdapter): string {
  const made = [vendor, architecture].filter((word) => word !== '').join(' ');
  return `${description || device || 'an adapter without a name'}${made === '' ? '' : ` (${made})`}`;
}

async function loadDawn(): Promise<DawnPackage> {
  try {
    return (await import('webgpu')) as unknown as DawnPackage;
  } catch (cause) {
    throw new ShoalError('unsupported', `devices need the package webgpu (Dawn for Node.js): ${messageOf(cause)}; npm install webgpu`, {
      cause,
    });
  }
}

function noAdapter(cause?: unknown): never {
  const { VK_ICD_FILENAMES: set } = process.env;
  const why = cause === undefined ? '' : ` (${messageOf(cause)})`;
  const found = softwareDriver();
  const next =
    found === undefined
      ? "without a GPU, SwiftShader of Debian's package chromium will do: VK_ICD_FILENAMES=/usr/lib/chromium/vk_swiftshader_icd.json"
      : `SwiftShader is installed: start with ${Object.entries(found)
          .map(([name, value]) => `${name}=${value}`)
          .join(' ')}`;
  throw new ShoalError(
    'unsupported',
    `no WebGPU adapter${why}: it needs a Vulkan driver and the loader libvulkan1 ` +
      `(${set === undefined ? 'VK_ICD_FILENAMES is not set' : `VK_ICD_FILENAMES is ${set}`}); ${next}`,
    { cause },
  );
}
