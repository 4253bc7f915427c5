import { chmod, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { connect, createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { sleep } from '../base/clock.ts';
import { systemRandom } from '../base/random.ts';
import { reservePort } from '../base/testing/reserved-port.ts';
import { UnhurriedClock } from '../base/testing/unhurried-clock.ts';
import { openStore, parseStoreUrl, type OpenedStore, type OpenStoreOptions } from './open-store.ts';
import { StoreServer } from './store-server.ts';

const base = { clock: new UnhurriedClock(), random: systemRandom, lingerMs: 0 };
const one = Uint8Array.of(1);

let directory: string;
let opened: OpenedStore[] = [];

beforeEach(() => {
  directory = temporaryFolder('open-store');
});

afterEach(async () => {
  for (const { store } of opened.reverse()) await store.close();
  opened = [];
});

async function open(url: string, options: Partial<OpenStoreOptions>): Promise<OpenedStore> {
  const result = await openStore(url, { ...base, ...options });
  opened.push(result);
  return result;
}

const fromEnvironment = (environment: Record<string, string>, options: Partial<OpenStoreOptions> = {}): Promise<OpenedStore> =>
  open('env://', { environment: { XDG_RUNTIME_DIR: directory, ...environment }, ...options });

describe('openStore', () => {
  it('understands URLs and refuses others by name', () => {
    expect(parseStoreUrl('tcp://10.0.0.1:29500')).toEqual({ kind: 'tcp', host: '10.0.0.1', port: 29500 });
    expect(parseStoreUrl('tcp://[::1]:1')).toEqual({ kind: 'tcp', host: '::1', port: 1 });
    expect(parseStoreUrl('file:///a/b%20c')).toEqual({ kind: 'file', directory: '/a/b c' });
    for (const url of ['', 'tcp://', 'tcp://host', 'tcp://host:1/x', 'file://', 'file:///', 'http://host:1', 'file://host/x']) {
      expect(() => parseStoreUrl(url), url).toThrow(/is not the URL of a store; expected env:\/\/, tcp/);
    }
  });

  it('a world of one needs nobody', async () => {
    const { store, url, spec } = await fromEnvironment({});
    await store.set('k', one);
    expect(url).toBeUndefined();
    expect(spec?.worldSize).toBe(1);
  });

  it('rank 0 serves tcp, whoever comes first', async () => {
    const url = `tcp://127.0.0.1:${await reservePort()}`;
    const [other, zero] = await Promise.all([
      open(url, { rank: 1, worldSize: 2, secret: 's' }),
      open(url, { rank: 0, worldSize: 2, secret: 's' }),
    ]);
    await zero.store.set('k', one);
    expect(await other.store.get('k')).toEqual(one);
    await expect(open(url, { rank: 1, worldSize: 3, secret: 's' })).rejects.toMatchObject({ code: 'config' });
    await expect(open(url, { rank: 1, worldSize: 2, secret: 't' })).rejects.toMatchObject({ code: 'auth' });
  });

  it('ranks meet through a directory', async () => {
    const url = `file://${directory}/store`;
    const [a, b] = await Promise.all([open(url, {}), open(url, {})]);
    await a.store.set('k', one);
    expect(await b.store.get('k')).toEqual(one);
  });

  it('ranks of one host meet through the private file, with a fresh secret, and leave nothing', async () => {
    const job = (rank: number): Record<string, string> => ({
      OMPI_COMM_WORLD_RANK: `${rank}`,
      OMPI_COMM_WORLD_SIZE: '2',
      OMPI_COMM_WORLD_LOCAL_SIZE: '2',
      OMPI_COMM_WORLD_LOCAL_RANK: `${rank}`,
      PMIX_NAMESPACE: 'job',
    });
    const [other, zero] = await Promise.all([fromEnvironment(job(1)), fromEnvironment(job(0))]);
    expect(other.secret.length).toBe(32);
    expect(Buffer.compare(other.secret, zero.secret)).toBe(0);
    await other.store.set('k', one);
    expect(await zero.store.get('k')).toEqual(one);
    await expect(fromEnvironment(job(0))).rejects.toMatchObject({ code: 'config', message: expect.stringContaining('another rank 0') });
    // A further client, of another thread say, needs only what was returned.
    const { url, world, secret } = other;
    const third = await open(url!, { rank: 1, worldSize: 2, world, secret, server: 'elsewhere' });
    await third.store.set('k', Uint8Array.of(3));
    await expect(open(url!, { rank: 1, worldSize: 2, world, secret: '', server: 'elsewhere' })).rejects.toMatchObject({ code: 'auth' });
    await third.store.close();
    await other.store.close();
    await zero.store.close();
    opened = [];
    expect(await readdir(join(directory, `shoal-${process.getuid!()}`))).toEqual([]);
  });

  it('a rank 0 that is alive and busy is not taken for a leftover', async () => {
    const env = { RANK: '0', WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: `${await reservePort()}` };
    await fromEnvironment(env);
    const path = join(directory, `shoal-${process.getuid!()}`, `port-${env.MASTER_PORT}`);
    const record = JSON.parse(await readFile(path, 'utf8')) as { port: number };
    const busy = createServer((socket) => {
      void sleep(base.clock, 1000).then(() => socket.pipe(connect(record.port, '127.0.0.1')).pipe(socket));
    });
    await new Promise<void>((resolve) => busy.listen(0, '127.0.0.1', resolve));
    await writeFile(path, JSON.stringify({ ...record, port: (busy.address() as AddressInfo).port }), { mode: 0o600 });
    await expect(fromEnvironment(env)).rejects.toMatchObject({ code: 'config', message: expect.stringContaining('another rank 0') });
    busy.close();
  });

  it('the port that was asked for is the one that is bound', async () => {
    const port = await reservePort();
    const env = { WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: `${port}` };
    const [zero] = await Promise.all([fromEnvironment({ ...env, RANK: '0' }), fromEnvironment({ ...env, RANK: '1' })]);
    expect(zero.url).toBe(`tcp://127.0.0.1:${port}`);
  });

  it('a leftover of a killed rank 0 does not mislead anybody', async () => {
    const port = await reservePort();
    const gone = await reservePort();
    const env = { WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: `${port}` };
    const first = await fromEnvironment({ ...env, RANK: '0' });
    const path = join(directory, `shoal-${process.getuid!()}`, `port-${port}`);
    await first.store.close();
    await writeFile(path, JSON.stringify({ version: 1, host: '127.0.0.1', port: gone, secret: '0'.repeat(64), pid: 1 }), { mode: 0o600 });
    const other = fromEnvironment({ ...env, RANK: '1' });
    await fromEnvironment({ ...env, RANK: '0' });
    await (await other).store.set('k', one);
  });

  it('refuses a private directory that is not private', async () => {
    const env = { RANK: '0', WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: '1' };
    await writeFile(join(directory, `shoal-${process.getuid!()}`), '');
    await expect(fromEnvironment(env)).rejects.toMatchObject({ code: 'config', message: expect.stringContaining('cannot be used') });
    await rm(join(directory, `shoal-${process.getuid!()}`));
    await fromEnvironment({ ...env, MASTER_PORT: `${await reservePort()}` });
    await chmod(join(directory, `shoal-${process.getuid!()}`), 0o755);
    await expect(fromEnvironment(env)).rejects.toMatchObject({ code: 'config', message: expect.stringContaining('mode 0700') });
  });

  it('reports that rank 0 does not come', async () => {
    const env = { RANK: '1', WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: '1' };
    await expect(fromEnvironment(env, { connectTimeoutMs: 60 })).rejects.toMatchObject({
      code: 'timeout',
      rank: 1,
      message: expect.stringMatching(/did not find rank 0 .*port-1 in \d+ ms/),
    });
  });

  it('refuses a job over several hosts without a secret', async () => {
    const env = { RANK: '0', WORLD_SIZE: '2', MASTER_ADDR: 'node0.example', MASTER_PORT: '29500' };
    await expect(fromEnvironment(env)).rejects.toMatchObject({ code: 'auth', message: expect.stringContaining('SHOAL_SECRET') });
  });

  it("keeps generations apart in a launcher's store", async () => {
    const server = await StoreServer.listen({ ...base, secret: new TextEncoder().encode('s'), world: 'j' });
    const env = { RANK: '0', WORLD_SIZE: '1', MASTER_ADDR: '127.0.0.1', MASTER_PORT: `${server.port}`, SHOAL_JOB: 'j', SHOAL_SECRET: 's' };
    const first = await fromEnvironment(env);
    const second = await fromEnvironment({ ...env, TORCHELASTIC_RESTART_COUNT: '1' });
    await first.store.set('k', one);
    expect(await second.store.check(['k'])).toBe(false);
    expect(server.table.get('generation-0/k')).toEqual(one);
    await first.store.close();
    await second.store.close();
    await server.drained(10_000);
    await server.close();
  });
});
