import { describe, expect, it } from 'vitest';
import { allowedCpus, countCpuList } from './allowed-cpus.ts';

const files = (entries: Record<string, string>) => (path: string) => entries[path];
const status = { '/proc/self/status': 'Name:\tnode\nCpus_allowed:\tf\nCpus_allowed_list:\t0-7\n' };

describe('allowedCpus', () => {
  it('counts the affinity mask', () => {
    expect(['0', '0-3', '0-3,8', '1,3,5-6', 'x', ''].map(countCpuList)).toEqual([1, 4, 5, 4, 0, 0]);
    expect(allowedCpus(files(status))).toEqual({ count: 8, affinity: 8, quota: undefined });
  });

  it('takes the tightest quota of cgroup v2 on the way to the root', () => {
    const cgroup = { ...status, '/proc/self/cgroup': '0::/kube/pod1\n', '/sys/fs/cgroup/kube/pod1/cpu.max': 'max 100000' };
    expect(allowedCpus(files(cgroup)).count).toBe(8);
    expect(allowedCpus(files({ ...cgroup, '/sys/fs/cgroup/kube/cpu.max': '250000 100000\n' }))).toEqual({
      count: 3,
      affinity: 8,
      quota: 2.5,
    });
    expect(allowedCpus(files({ ...cgroup, '/sys/fs/cgroup/cpu.max': '10000 100000\n' })).count).toBe(1);
  });

  it('reads cgroup v1', () => {
    const cgroup = { ...status, '/proc/self/cgroup': '4:memory:/a\n1:cpu,cpuacct:/docker/x\n' };
    const v1 = {
      ...cgroup,
      '/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us': '400000',
      '/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us': '100000',
    };
    expect(allowedCpus(files(v1)).count).toBe(4);
    expect(allowedCpus(files({ ...v1, '/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us': '-1' })).count).toBe(8);
  });

  it('is at least one on this machine', () => {
    expect(allowedCpus().count).toBeGreaterThanOrEqual(1);
  });
});
