import { describe, expect, it } from 'vitest';
import { fabricsNamed } from './providers.ts';

describe('fabricsNamed', () => {
  it('gives providers in the order of their names', () => {
    expect(fabricsNamed(['tcp', 'shm']).map(({ name }) => name)).toEqual(['tcp', 'shm']);
    expect(fabricsNamed([])).toEqual([]);
  });

  it('refuses a name that no provider has, before any is used', () => {
    const message = "unknown fabric 'foo' in SHOAL_FABRICS; use shm, libfabric, tcp";
    expect(() => fabricsNamed(['tcp', 'foo'])).toThrow(expect.objectContaining({ code: 'config', message }));
  });
});
