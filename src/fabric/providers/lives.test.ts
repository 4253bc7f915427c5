import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import { release } from 'node:os';
import { createInterface } from 'node:readline';
import { describe, expect, it, onTestFinished } from 'vitest';
import { loadNative, nativeBinary, nativeUnavailableReason } from '../../memory/native.ts';
import type { RegionShare } from '../../memory/region.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import { Lives } from './lives.ts';

const native = loadNative({ enabled: true });

/** A process that holds a lock in a region, and prints how to map that. */
async function startHolder(): Promise<{ share: RegionShare; kill: () => Promise<unknown>; release: () => Promise<unknown> }> {
  const script = `
    const native = require(${JSON.stringify(nativeBinary)});
    const mapping = native.createRegion(4);
    const timer = native.createTimer();
    const own = new Uint32Array(mapping.buffer, 0, 1);
    const lives = native.createLives(own, timer);
    while (Atomics.load(own, 0) === 0);
    console.log(JSON.stringify({ kind: 'shared', id: mapping.device + ':' + mapping.inode + ':x', pid: process.pid, fd: mapping.fd, bytes: 4 }));
    process.stdin.once('data', () => { native.closeLives(lives); process.exit(); });`;
  const child = spawn(process.execPath, ['-e', script], { stdio: ['pipe', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  onTestFinished(() => void child.kill('SIGKILL'));
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  const kill = (): Promise<unknown> => (child.kill('SIGKILL'), exited);
  return { share: JSON.parse(line) as RegionShare, kill, release: () => (child.stdin.write('.'), exited) };
}

/** Both ends of a connection within this process. */
async function connection(): Promise<{ here: net.Socket; there: net.Socket; descriptor: number }> {
  const server = net.createServer().listen(0);
  await once(server, 'listening');
  const here = net.connect((server.address() as net.AddressInfo).port);
  const [there] = (await once(server, 'connection')) as [net.Socket];
  server.close();
  onTestFinished(() => [here, there].forEach((end) => end.destroy()));
  const { fd } = (here as unknown as { _handle: { fd: number } })._handle;
  return { here, there, descriptor: fd };
}

describe.skipIf(native === undefined)(`lives${native ? '' : ` (skipped: ${nativeUnavailableReason()})`}`, () => {
  const lives = (): Lives => {
    const own = createRegionAllocator({ native }).create(4);
    onTestFinished(() => own.close());
    return new Lives(native!, new Uint32Array(own.buffer, 0, 1));
  };

  it('ends the stream of a process that is killed, after what has come', async (context) => {
    const [major, minor] = release().split('.').map(Number);
    if (major < 5 || (major === 5 && minor < 16)) context.skip('this kernel cannot wait for several locks (futex_waitv, Linux 5.16)');
    const [holder, { here, there, descriptor }] = await Promise.all([startHolder(), connection()]);
    const region = createRegionAllocator({ native }).open(holder.share);
    const lock = new Uint32Array(region.buffer, 0, 1);
    // Each of several that watch hears of it; the sockets are not the process's, and do not end with it.
    const [first, second] = [lives(), lives()];
    const other = await connection();
    first.add(lock, { descriptor });
    second.add(lock, other);
    there.write('last words');
    let heard = '';
    here.on('data', (data) => (heard += String(data)));
    other.here.resume();
    const ends = Promise.all([once(here, 'end'), once(other.here, 'end')]);
    await holder.kill();
    await ends;
    expect(heard).toBe('last words');
    for (const each of [first, second]) each.delete(lock);
    region.close();
  });

  it('ends nothing when the lock has been given back', async () => {
    const [holder, { here, there, descriptor }] = await Promise.all([startHolder(), connection()]);
    const region = createRegionAllocator({ native }).open(holder.share);
    const lock = new Uint32Array(region.buffer, 0, 1);
    const watching = lives();
    watching.add(lock, { descriptor });
    await holder.release();
    expect(lock[0]).toBe(0);
    const came = once(here, 'data');
    there.write('still here');
    expect(String((await came)[0])).toBe('still here');
    watching.delete(lock);
    region.close();
  });
});
