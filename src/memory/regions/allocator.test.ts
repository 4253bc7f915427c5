/** The contract of RegionAllocator, on both kinds, and the abilities of shared memory alone: other threads, other processes, limits. */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { constants } from 'node:buffer';
import { release } from 'node:os';
import { createInterface } from 'node:readline';
import { Worker } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import { isShoalError, type ErrorCode } from '../../base/errors.ts';
import { loadNative, nativeBinary, nativeUnavailableReason } from '../native.ts';
import type { RegionShare } from '../region.ts';
import { createRegionAllocator, type RegionAllocatorOptions } from './allocator.ts';

const native = loadNative({ enabled: true });
const skipped = native === undefined ? ` (skipped: ${nativeUnavailableReason()})` : '';
const plenty = () => ({ bytes: Infinity, limitedBy: 'nothing' });

function thrownBy(call: () => unknown): { code: ErrorCode; message: string; bytes: number | undefined } {
  try {
    call();
  } catch (error) {
    if (isShoalError(error)) return { code: error.code, message: error.message, bytes: error.bytes };
    throw error;
  }
  throw new Error('nothing was thrown');
}

/** Number of mappings that this process has of a region. Other mappings come and go: garbage collection unmaps those that nobody
 *  has closed. */
async function mappingsOf({ id }: RegionShare): Promise<number> {
  const { readFile } = await import('node:fs/promises');
  const [, inode] = id.split(':');
  return (await readFile('/proc/self/maps', 'utf8')).match(new RegExp(` ${inode} +/memfd:shoal`, 'g'))?.length ?? 0;
}

for (const kind of ['shared', 'thread'] as const) {
  const skip = kind === 'shared' && native === undefined;
  describe.skipIf(skip)(`RegionAllocator of kind ${kind}${skip ? skipped : ''}`, () => {
    const allocator = (options: Omit<RegionAllocatorOptions, 'native'> = {}) =>
      createRegionAllocator({ native: kind === 'shared' ? native : undefined, ...options });

    it('creates zero-filled regions of exactly the requested size, which can be mapped again', () => {
      const regions = allocator();
      expect(regions.kind).toBe(kind);
      const region = regions.create(10_001);
      expect(region.bytes).toBe(10_001);
      expect(region.buffer.byteLength).toBeGreaterThanOrEqual(10_001);
      expect(new Uint8Array(region.buffer).every((byte) => byte === 0)).toBe(true);

      const again = createRegionAllocator({ native: kind === 'shared' ? native : undefined }).open(region.share);
      expect([again.id, again.bytes]).toEqual([region.id, 10_001]);
      new Uint8Array(again.buffer)[10_000] = 7;
      expect(new Uint8Array(region.buffer)[10_000]).toBe(7);

      region.close();
      expect(new Uint8Array(again.buffer)[10_000]).toBe(7);
      again.close();
      region.close();
      again.close();
    });

    it('gives every region its own id', () => {
      const regions = allocator();
      const made = Array.from({ length: 20 }, () => regions.create(1));
      expect(new Set(made.map((region) => region.id)).size).toBe(20);
      for (const region of made) region.close();
    });

    it('allows the empty region', () => {
      const region = allocator().create(0);
      expect(region.bytes).toBe(0);
      region.close();
    });

    it('refuses invalid sizes', () => {
      for (const bytes of [-1, 1.5, NaN, 2 ** 60]) expect(thrownBy(() => allocator().create(bytes)).code).toBe('usage');
    });

    it('says the limit when one ArrayBuffer cannot be that large', () => {
      const bytes = constants.MAX_LENGTH + 1;
      if (!Number.isSafeInteger(bytes)) return;
      const error = thrownBy(() => allocator({ available: plenty }).create(bytes));
      expect(error).toMatchObject({ code: 'unsupported', bytes });
      expect(error.message).toContain(String(constants.MAX_LENGTH));
      expect(error.message).toContain(process.version);
    });

    it('says how much is in use when the budget is spent, and reuses the bytes of closed regions', () => {
      const regions = allocator({ budget: 100_000 });
      const first = regions.create(60_000);
      const error = thrownBy(() => regions.create(60_000));
      expect(error).toMatchObject({ code: 'out-of-memory', bytes: 60_000 });
      expect(error.message).toContain('60000 of 100000');
      first.close();
      first.close();
      regions.create(100_000).close();
    });

    it('asks what the host has left before it allocates', () => {
      const regions = allocator({ available: () => ({ bytes: 4096, limitedBy: 'control group /x (memory.max)' }) });
      const error = thrownBy(() => regions.create(4097));
      expect(error).toMatchObject({ code: 'out-of-memory', bytes: 4097 });
      expect(error.message).toContain('control group /x (memory.max) leaves 4096 bytes');
      regions.create(4096).close();
    });

    it('asks again after a while, and after a share of what there was', () => {
      let [now, looks, bytes] = [0, 0, 6400];
      const available = () => ({ bytes, limitedBy: `look ${++looks}` });
      const regions = allocator({ available, clock: { now: () => now } });
      const create = (size: number): void => regions.create(size).close();
      for (const size of [60, 40]) create(size);
      expect(looks).toBe(1);
      create(1);
      expect(looks).toBe(2);
      [now, bytes] = [1000, 10];
      create(90);
      expect(looks).toBe(2);
      now = 1000.5;
      expect(thrownBy(() => create(11)).message).toContain('look 3 leaves 10 bytes');
      expect(thrownBy(() => create(11)).message).toContain('look 4');
    });

    it('refuses the other kind where it cannot map it', () => {
      const region = allocator().create(8);
      const other: RegionShare = { kind: 'shared', id: '1:2:x', pid: process.pid, fd: 0, bytes: 8 };
      expect(thrownBy(() => allocator().open(other)).code).toBe('unsupported');
      region.close();
    });
  });
}

/** Targets of the descriptors of a process. */
function openFilesOf(pid: number): string[] {
  const folder = `/proc/${pid}/fd`;
  return readdirSync(folder).flatMap((fd) => {
    try {
      return [readlinkSync(`${folder}/${fd}`)];
    } catch {
      return []; // closed meanwhile
    }
  });
}

/** Starts a process that creates a region, prints its share, and answers each line with the byte it then sees at 5. */
function startCreator(): ChildProcess {
  const script = `
    const native = require(${JSON.stringify(nativeBinary)});
    const mapping = native.createRegion(100000);
    const bytes = new Uint8Array(mapping.buffer);
    bytes[4] = 42;
    console.log(JSON.stringify({ kind: 'shared', id: mapping.device + ':' + mapping.inode + ':x', pid: process.pid, fd: mapping.fd, bytes: 100000 }));
    require('node:readline').createInterface({ input: process.stdin }).on('line', () => console.log(bytes[5]));`;
  return spawn(process.execPath, ['-e', script], { stdio: ['pipe', 'pipe', 'inherit'] });
}

describe.skipIf(native === undefined)(`shared memory between processes and threads${skipped}`, () => {
  const regions = createRegionAllocator({ native });

  it('is seen by both processes, outlives the SIGKILL of its creator, and leaves nothing', async () => {
    const child = startCreator();
    const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]();
    const share = JSON.parse((await lines.next()).value as string) as RegionShare;
    const region = regions.open(share);
    const bytes = new Uint8Array(region.buffer);
    expect(bytes[4]).toBe(42);
    bytes[5] = 99;
    child.stdin!.write('look\n');
    expect((await lines.next()).value).toBe('99');
    // The region has no name anywhere, so nothing can be left.
    const files = openFilesOf(child.pid!);
    expect(files.filter((file) => file.startsWith('/memfd:shoal'))).toHaveLength(1);
    expect(files.filter((file) => file.startsWith('/dev/shm'))).toEqual([]);

    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
    expect([bytes[4], bytes[5]]).toEqual([42, 99]);
    bytes.fill(1);
    expect(bytes.length).toBe(100_000);

    expect(thrownBy(() => regions.open(share))).toMatchObject({ code: 'unsupported', bytes: 100_000 });
    expect(await mappingsOf(share)).toBe(1);
    region.close();
    expect(await mappingsOf(share)).toBe(0);
  });

  it('is the same memory in another thread', async () => {
    const region = regions.create(64);
    const share = region.share as Extract<RegionShare, { kind: 'shared' }>;
    const [device, inode] = share.id.split(':').map(Number);
    const worker = new Worker(
      `const { workerData: w, parentPort } = require('node:worker_threads');
       const mapping = require(w.binary).openRegion('/proc/self/fd/' + w.fd, 64, w.device, w.inode);
       const words = new Int32Array(mapping.buffer);
       while (Atomics.load(words, 0) !== 1);
       Atomics.store(words, 1, 2);
       parentPort.postMessage('stored');`,
      { eval: true, workerData: { binary: nativeBinary, fd: share.fd, device, inode } },
    );
    const words = new Int32Array(region.buffer);
    Atomics.store(words, 0, 1);
    await once(worker, 'message');
    expect(Atomics.load(words, 1)).toBe(2);
    await once(worker, 'exit');
    expect(Atomics.load(words, 1)).toBe(2);
    region.close();
  });

  it('refuses a share whose descriptor leads elsewhere', () => {
    const region = regions.create(64);
    const share = region.share as Extract<RegionShare, { kind: 'shared' }>;
    const other = regions.create(64);
    const otherShare = other.share as typeof share;
    const cases: Partial<typeof share>[] = [
      { fd: otherShare.fd }, // a recycled descriptor
      { fd: 0 },
      { fd: 99_999 },
      { bytes: 65_536 }, // beyond the file: would be SIGBUS
      { id: 'nonsense' },
      { pid: 2 ** 30 },
    ];
    for (const wrong of cases) {
      expect(['unsupported', 'usage']).toContain(thrownBy(() => regions.open({ ...share, ...wrong })).code);
    }
    region.close();
    other.close();
  });

  it('unmaps once and empties the views on close', async () => {
    const region = regions.create(4096);
    const view = new Uint8Array(region.buffer);
    expect(await mappingsOf(region.share)).toBe(1);
    region.close();
    expect([view.length, region.buffer.byteLength]).toEqual([0, 0]);
    expect(await mappingsOf(region.share)).toBe(0);
  });

  it('lies in huge pages as far as they reach, where the kernel makes them', (context) => {
    const fails = (): string | undefined => /^thp_collapse_alloc_failed .*$/m.exec(readFileSync('/proc/vmstat', 'utf8'))?.[0];
    const [major, minor] = release().split('.').map(Number);
    const setting = '/sys/kernel/mm/transparent_hugepage/shmem_enabled';
    const can = (major > 6 || (major === 6 && minor >= 1)) && existsSync(setting) && !readFileSync(setting, 'utf8').includes('[deny]');
    const failsBefore = fails();
    const region = regions.create(5 * 2 ** 20);
    expect(new Uint8Array(region.buffer).every((byte) => byte === 0)).toBe(true);
    const [, inode] = region.share.id.split(':');
    const map = new RegExp(`^([0-9a-f]+)-.* ${inode} +/memfd:shoal[^]*?^ShmemPmdMapped: +(\\d+) kB`, 'm');
    const [, address, hugeKiB] = map.exec(readFileSync('/proc/self/smaps', 'utf8')) ?? [];
    region.close();
    expect(Number.parseInt(address, 16) % 2 ** 21).toBe(0);
    if (!can) return context.skip('this kernel makes no huge pages of shared memory');
    if (fails() !== failsBefore) return context.skip('the kernel found no huge page');
    expect(Number(hugeKiB)).toBe(4096);
  });

  it('cannot be shrunk under its mappings, and is private to the user', async () => {
    const { openSync, closeSync, ftruncateSync, fstatSync } = await import('node:fs');
    const region = regions.create(8192);
    const { fd } = region.share as Extract<RegionShare, { kind: 'shared' }>;
    const file = openSync(`/proc/self/fd/${fd}`, 'r+');
    expect(() => ftruncateSync(file, 0)).toThrow(/EPERM/);
    expect(() => ftruncateSync(file, 1 << 20)).toThrow(/EPERM/);
    expect(fstatSync(file).mode & 0o777).toBe(0o600);
    closeSync(file);
    region.close();
  });

  const inShell = (limits: string, script: string) => {
    const code = `const native = require(${JSON.stringify(nativeBinary)});${script}`;
    return spawnSync('/bin/sh', ['-c', `${limits}; exec "$0" -e "$1"`, process.execPath, code], { encoding: 'utf8' });
  };

  it('does not count against a soft limit on file sizes', () => {
    const run = inShell(
      'ulimit -S -f 8',
      `const m = native.createRegion(1 << 20); new Uint8Array(m.buffer).fill(1); console.log('filled')`,
    );
    expect(run.stdout.trim()).toBe('filled');
    expect(run.status).toBe(0);
  });

  it('reports a hard limit on file sizes or descriptors as an error, not as a signal', () => {
    // The superuser may lift a hard limit; then creation succeeds.
    const big = inShell(
      'ulimit -f 8',
      `try { native.createRegion(1 << 20); console.log('created') } catch (error) { console.log(error.code) }`,
    );
    expect(['EFBIG', 'created']).toContain(big.stdout.trim());
    expect(big.status).toBe(0);
    const many = inShell(
      'ulimit -n 40',
      `const all = []; try { for (let k = 0; k < 100; k++) all.push(native.createRegion(1)) } catch (error) { console.log(error.code) }`,
    );
    expect(many.stdout.trim()).toBe('EMFILE');
    expect(many.status).toBe(0);
  });

  it('turns a refusal of the system into out-of-memory', () => {
    for (const code of ['ENOSPC', 'ENOMEM', 'EFBIG', 'EMFILE']) {
      const createRegion = () => {
        throw Object.assign(new Error('fallocate: refused'), { code });
      };
      const refusing = { ...native!, createRegion };
      const small = createRegionAllocator({ native: refusing, budget: 1000 });
      expect(thrownBy(() => small.create(1000))).toMatchObject({ code: 'out-of-memory', bytes: 1000 });
      expect(thrownBy(() => small.create(1000)).message).not.toContain('budget'); // what failed is not counted as used
    }
  });
});
