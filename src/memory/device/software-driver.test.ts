import { describe, expect, it } from 'vitest';
import { softwareDriver } from './software-driver.ts';

function on(...files: string[]): (path: string) => boolean {
  return (path) => files.includes(path);
}

describe('softwareDriver', () => {
  const driver = '/usr/lib/chromium/vk_swiftshader_icd.json';

  it("is found where chromium has it, with chromium's loader if the system has none", () => {
    expect(softwareDriver(on())).toBeUndefined();
    expect(softwareDriver(on(driver))).toEqual({ VK_ICD_FILENAMES: driver });
    expect(softwareDriver(on(driver, '/usr/lib/chromium/libvulkan.so.1'))).toEqual({
      VK_ICD_FILENAMES: driver,
      LD_LIBRARY_PATH: '/usr/lib/chromium',
    });
    expect(softwareDriver(on(driver, '/usr/lib/chromium/libvulkan.so.1', '/usr/lib/x86_64-linux-gnu/libvulkan.so.1'))).toEqual({
      VK_ICD_FILENAMES: driver,
    });
  });
});
