/** Finds SwiftShader's Vulkan driver, which computes on the CPU, where Debian's package chromium or a like one has installed it. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';

const folders = ['/usr/lib/chromium', '/usr/lib/chromium-browser', '/usr/lib64/chromium-browser', '/opt/google/chrome'];
const loaders = ['/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib64', '/usr/lib', '/lib'];

export interface DriverVariables {
  readonly VK_ICD_FILENAMES: string;
  /** Folder of a Vulkan loader, if only the driver's folder has one. Node reads the variable when a process starts. */
  readonly LD_LIBRARY_PATH?: string;
}

/** Environment variables with which a process has to be started to compute on SwiftShader; undefined where it is not installed. */
export function softwareDriver(exists: (path: string) => boolean = existsSync): DriverVariables | undefined {
  const folder = folders.find((each) => exists(join(each, 'vk_swiftshader_icd.json')));
  if (folder === undefined) return undefined;
  const driver = { VK_ICD_FILENAMES: join(folder, 'vk_swiftshader_icd.json') };
  const hasLoader = loaders.some((each) => exists(join(each, 'libvulkan.so.1')));
  return hasLoader || !exists(join(folder, 'libvulkan.so.1')) ? driver : { ...driver, LD_LIBRARY_PATH: folder };
}
