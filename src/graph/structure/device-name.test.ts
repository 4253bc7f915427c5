/** Names of devices: every spelling, what is refused, what a partial name means. */
import { describe, expect, it } from 'vitest';
import { formatDeviceName, isFullDeviceName, matchesDevice, parseDeviceName } from './device-name.ts';

describe('device names', () => {
  it.each([
    ['/job:ps/task:1/device:CPU:0', '/job:ps/task:1/device:CPU:0'],
    ['/job:ps/replica:0/task:1/cpu:0', '/job:ps/task:1/device:CPU:0'],
    ['/task:12/job:worker/device:gpu:3', '/job:worker/task:12/device:GPU:3'],
    ['/job:ps/replica:2/task:0/device:CPU:0', '/job:ps/replica:2/task:0/device:CPU:0'],
    ['/job:ps', '/job:ps'],
    ['/device:GPU:*', '/device:GPU:*'],
    ['/job:ps/task:*', '/job:ps'],
    ['', ''],
  ])('%s is %s', (text, canonical) => {
    expect(formatDeviceName(parseDeviceName(text))).toBe(canonical);
    expect(formatDeviceName(parseDeviceName(canonical))).toBe(canonical);
  });

  it.each([
    ['job:ps', /not understood from 'job:ps'/],
    ['/job:ps/', /not understood from '\/' on/],
    ['/job:ps/job:ps', /names its job twice/],
    ['/cpu:0/device:CPU:0', /names its device twice/],
    ['/task:-1', /not understood/],
    ['/task:99999999999', /not understood/],
    ['/job:', /not understood/],
    ['/job:ps;1', /not understood from ';1'/],
  ])('%s is refused', (text, message) => {
    expect(() => parseDeviceName(text)).toThrow(message);
  });

  it('mean every device that has what they say', () => {
    const device = parseDeviceName('/job:ps/task:1/device:CPU:0');
    const means = (pattern: string): boolean => matchesDevice(parseDeviceName(pattern), device);
    expect(isFullDeviceName(device)).toBe(true);
    expect(isFullDeviceName(parseDeviceName('/job:ps/task:1'))).toBe(false);
    expect(['', '/job:ps', '/task:1', '/cpu:0', '/job:ps/replica:0', '/device:CPU:*'].map(means)).not.toContain(false);
    expect(['/job:worker', '/task:0', '/gpu:0', '/job:ps/replica:1', '/cpu:1'].map(means)).not.toContain(true);
  });
});
