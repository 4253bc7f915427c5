import { describe, expect, it } from 'vitest';
import { loadNative, nativeUnavailableReason } from './native.ts';

describe('loadNative', () => {
  it('loads or gives the reason, never both', () => {
    const options = { enabled: true };
    expect(loadNative(options) === undefined).toBe(nativeUnavailableReason(options) !== undefined);
  });

  it('is disabled by its option', () => {
    expect(loadNative({ enabled: false })).toBeUndefined();
    expect(nativeUnavailableReason({ enabled: false })).toMatch(/disabled by the settings/);
  });

  it('is disabled by SHOAL_NATIVE=0 whatever the caller asks', () => {
    const before = process.env.SHOAL_NATIVE;
    process.env.SHOAL_NATIVE = '0';
    try {
      expect(loadNative({ enabled: true })).toBeUndefined();
      expect(nativeUnavailableReason()).toMatch(/SHOAL_NATIVE=0/);
    } finally {
      if (before === undefined) delete process.env.SHOAL_NATIVE;
      else process.env.SHOAL_NATIVE = before;
    }
  });
});
