import { expect, it } from 'vitest';
import { createRegionAllocator } from '../../../memory/regions/allocator.ts';
import { SharedRegions } from './shared-regions.ts';

it('knows how much memory others may reach', () => {
  const allocator = createRegionAllocator();
  const regions = new SharedRegions(allocator, [], () => []);
  expect(regions.bytes).toBe(0);
  const { key } = regions.create(1000);
  const tensor = allocator.create(300);
  regions.adopt(2, tensor.share);
  expect(regions.bytes).toBe(1300);
  regions.remove(key);
  regions.remove(key);
  expect(regions.bytes).toBe(300);
  regions.abandon(tensor.id);
  expect(regions.bytes).toBe(0);
  regions.create(50);
  regions.close();
  expect(regions.bytes).toBe(0);
});
