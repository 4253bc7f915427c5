/** 64 strangers at every listener at once, with large frames, garbage, or nothing: memory is bounded, they are ended within a
 *  deadline, and good peers still get in. A listener is a line of the table. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import type { FabricAddress } from '../../src/fabric/fabric.ts';
import { fabricProviders } from '../../src/fabric/providers.ts';
import { shmUnavailable } from '../../src/fabric/providers/shm.ts';
import { plannedChecks } from '../../src/group/conformance.ts';
import { StoreClient } from '../../src/store/store-client.ts';
import { Dealer, MessagingContext, Msg } from '../../src/messaging/index.ts';
import { shoal, storeScript } from '../fixtures/launch-harness.ts';
import { nodeFabric } from '../fixtures/messaging-fabric.ts';
import { fixtureCommand } from '../support/fixtures.ts';
import { freePort } from '../../src/base/testing/free-port.ts';
import { KVJob } from '../support/kv-job.ts';
import { startRanks } from '../support/ranks.ts';
import { listenersOf, peakBytes, Strangers } from '../support/strangers.ts';

const strangersEach = 64;
const mib = 2 ** 20;
/** Most growth beside the strangers' 64 MiB, for the process's own work. */
const growthMost = 256 * mib;
const secret = Buffer.from('of the listeners');
const world = 'listeners';
const surroundings = { clock: systemClock, random: systemRandom, secret };

interface Listening extends AsyncDisposable {
  readonly pids: readonly number[];
  /** Connects a peer that knows the secret, and waits until it is served. */
  check(): Promise<void>;
}

/** Starts a fixture and returns the first line that it prints. */
async function startFixture(
  name: string,
  ...args: string[]
): Promise<{ pid: number; line: Record<string, unknown>; end: () => Promise<void> }> {
  const [program, ...rest] = fixtureCommand(name);
  const child: ChildProcess = spawn(program, [...rest, ...args], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [text] = (await once(createInterface({ input: child.stdout! }), 'line')) as [string];
  const end = async (): Promise<void> => {
    child.kill('SIGKILL');
    await once(child, 'exit');
  };
  return { pid: child.pid!, line: JSON.parse(text) as Record<string, unknown>, end };
}

async function store(): Promise<Listening> {
  const { pid, line, end } = await startFixture('listener', 'store');
  return {
    pids: [pid],
    check: async () => {
      const options = { ...surroundings, world, host: '127.0.0.1', port: line.store as number, rank: 5, who: 'rank 5' };
      const client = await StoreClient.connect({ ...options, connectTimeoutMs: 100_000 });
      await client.set('key', Buffer.from('value'));
      expect(Buffer.from(await client.get('key')).toString()).toBe('value');
      await client.close();
    },
    [Symbol.asyncDispose]: end,
  };
}

async function fabric(name: string): Promise<Listening> {
  const { pid, line, end } = await startFixture('listener', name);
  return {
    pids: [pid],
    check: async () => {
      const own = fabricProviders.find((each) => each.name === name)!.create({ ...surroundings, identity: { world, rank: 1 } });
      const connection = await own.connect(line.fabric as FabricAddress, { peer: { world, rank: 0 }, timeoutMs: 100_000 });
      connection.setHandlers({ onMessage: () => undefined, onImmediate: () => undefined, onClose: () => undefined });
      await connection.send(Buffer.from('hello'));
      await own.close();
    },
    [Symbol.asyncDispose]: end,
  };
}

async function router(url: string): Promise<Listening> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-hostile-'));
  const { pid, line, end } = await startFixture('messaging-end', 'router', url.replace('FOLDER', folder));
  return {
    pids: [pid],
    check: async () => {
      await using ownFabric = nodeFabric(url, 0);
      await using context = new MessagingContext({ world: 'nodes', secret: Buffer.from('of the nodes'), ...ownFabric.options });
      await using dealer = new Dealer(context, { address: 3n });
      await dealer.connect(line.url as string, { timeoutMs: 100_000 });
      const msg = new Msg(3n, 0n);
      msg.addFrame(new Uint8Array(3 * mib));
      dealer.send(msg);
      await dealer.flushed();
    },
    [Symbol.asyncDispose]: async () => {
      await end();
      await rm(folder, { recursive: true });
    },
  };
}

async function kvServer(): Promise<Listening> {
  const job = await KVJob.start({ workers: 1, servers: 1 });
  const pid = job.pidOf(0);
  await expect.poll(() => listenersOf(pid).length).toBeGreaterThan(0);
  return {
    pids: [pid],
    check: async () => {
      const [kv] = await job.stores('dist_sync');
      await kv.init('weights', new Float32Array(100).fill(2));
      const out = new Float32Array(100);
      await kv.pull('weights', out);
      expect(new Set(out)).toEqual(new Set([2]));
    },
    [Symbol.asyncDispose]: () => job[Symbol.asyncDispose](),
  };
}

async function launcher(): Promise<Listening> {
  const port = await freePort();
  const node = (index: number) => {
    const place = ['--nnodes', '2', '--node-rank', String(index), '--master-addr', '127.0.0.1', '--master-port', String(port)];
    return shoal(['run', ...place, '-n', '1', storeScript], { env: { SHOAL_SECRET: 'a secret' } });
  };
  const first = node(0);
  await expect.poll(() => listenersOf(first.pid).length).toBeGreaterThan(0);
  return {
    pids: [first.pid],
    check: async () => {
      await using second = node(1);
      const ended = await Promise.all([first.ended, second.ended]);
      expect(ended.map(({ code }) => code)).toEqual([0, 0]);
      expect(ended.map(({ stdout }) => /met \d of 2/.test(stdout))).toEqual([true, true]);
    },
    [Symbol.asyncDispose]: () => first[Symbol.asyncDispose](),
  };
}

/** Ranks on two hosts: network path links are dialled at their fabrics' acceptor as well, for every group anew. */
async function ranks(): Promise<Listening> {
  const ranks = await startRanks({
    fixture: 'conformance',
    n: 2,
    env: { CHECKS: 'planned' },
    envOf: (rank) => ({ SHOAL_HOST_ID: String(rank), LOCAL_RANK: '0', LOCAL_WORLD_SIZE: '1' }),
  });
  const pids = ranks.ranks.map(({ child }) => child.pid!);
  await expect.poll(() => pids.every((pid) => listenersOf(pid).length > 0), { interval: 5 }).toBe(true);
  return {
    pids,
    check: async () => {
      for (const { lines, stderr } of await ranks.outcomes()) {
        expect(stderr).toBe('');
        expect(lines).toEqual([{ world: 'of the environment', passed: plannedChecks.map(({ name }) => name) }]);
      }
    },
    [Symbol.asyncDispose]: () => ranks[Symbol.asyncDispose](),
  };
}

const listeners: readonly { readonly name: string; readonly start: () => Promise<Listening>; readonly missing?: string | undefined }[] = [
  { name: 'bootstrap store', start: store },
  { name: 'fabric acceptor over tcp', start: () => fabric('tcp') },
  { name: 'fabric acceptor over shm', start: () => fabric('shm'), missing: shmUnavailable() },
  { name: 'messaging over tcp', start: () => router('tcp://127.0.0.1:*') },
  { name: 'messaging over ipc', start: () => router('ipc://FOLDER/router') },
  { name: 'messaging over a fabric', start: () => router('fabric://tcp') },
  { name: 'key-value server', start: kvServer },
  { name: 'ranks of two hosts, and their network path links', start: ranks },
  { name: "launcher's node agreement", start: launcher },
];

// The tests mostly wait for deadlines, so they run at the same time.
describe.concurrent(`${strangersEach} strangers`, () => {
  for (const { name, start, missing } of listeners) {
    it(name, async (context) => {
      if (missing !== undefined) context.skip(missing);
      await using listening = await start();
      const { pids } = listening;
      const before = pids.map(peakBytes);
      const peaks = [...before];
      const look = (): void => pids.forEach((pid, k) => (peaks[k] = Math.max(peaks[k], peakBytes(pid))));
      using strangers = new Strangers(pids.flatMap(listenersOf), strangersEach);
      const watch = setInterval(look, 50);
      context.onTestFinished(() => clearInterval(watch));
      await listening.check();
      await strangers.ended;
      look();
      for (const [k, peak] of peaks.entries()) context.expect(peak - before[k]).toBeLessThan(growthMost);
    });
  }
});
