import { describe, expect, it } from 'vitest';
import { availableMemory } from './available-memory.ts';

const files = (texts: Record<string, string>) => (path: string) => texts[path];
const meminfo = 'MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:   8000000 kB\n';

describe('availableMemory', () => {
  it('is the machine’s when no control group limits', () => {
    const read = files({ '/proc/meminfo': meminfo, '/proc/self/cgroup': '0::/\n' });
    expect(availableMemory(read)).toEqual({ bytes: 8_000_000 * 1024, limitedBy: "the machine's free memory" });
  });

  it('is unknown, so unlimited, where there is no proc', () => {
    expect(availableMemory(files({})).bytes).toBe(Infinity);
  });

  it('counts a version 2 group and those above it; cached files can be taken back', () => {
    const read = files({
      '/proc/meminfo': meminfo,
      '/proc/self/cgroup': '0::/job/step\n',
      '/sys/fs/cgroup/job/step/memory.max': 'max\n',
      '/sys/fs/cgroup/job/step/memory.current': '500\n',
      '/sys/fs/cgroup/job/memory.max': '1000000\n',
      '/sys/fs/cgroup/job/memory.current': '900000\n',
      '/sys/fs/cgroup/job/memory.stat': 'anon 7\ninactive_file 50000\nactive_file 9\n',
    });
    expect(availableMemory(read)).toEqual({ bytes: 150_000, limitedBy: 'control group /job (memory.max)' });
  });

  it('counts a version 1 group, also when the container shows it as the root', () => {
    const read = files({
      '/proc/meminfo': meminfo,
      '/proc/self/cgroup': '5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n',
      '/sys/fs/cgroup/memory/memory.limit_in_bytes': '2000000\n',
      '/sys/fs/cgroup/memory/memory.usage_in_bytes': '2500000\n',
    });
    expect(availableMemory(read)).toEqual({ bytes: 0, limitedBy: 'control group / (memory.limit_in_bytes)' });
  });

  it('reads this machine without failing', () => {
    expect(availableMemory().bytes).toBeGreaterThan(0);
  });
});
