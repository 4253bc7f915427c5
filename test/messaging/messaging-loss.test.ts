/** An end whose process is killed is gone at the other end at once, over every backend that outlives a death. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, describe, expect, it } from 'vitest';
import { shmUnavailable } from '../../src/fabric/providers/shm.ts';
import { Dealer, MessagingContext, Router, type PeerEvent } from '../../src/messaging/index.ts';
import { nodeFabric } from '../fixtures/messaging-fabric.ts';
import { fixtureCommand } from '../support/fixtures.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** Starts a process that is one end, and returns the first line that it prints. */
async function end(role: string, url: string): Promise<{ line: Record<string, string>; kill: () => Promise<void> }> {
  const [program, ...args] = fixtureCommand('messaging-end');
  const child: ChildProcess = spawn(program, [...args, role, url], { stdio: ['pipe', 'pipe', 'inherit'] });
  const kill = async (): Promise<void> => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  };
  cleanups.push(kill);
  const [text] = (await once(createInterface({ input: child.stdout! }), 'line')) as [string];
  return { line: JSON.parse(text) as Record<string, string>, kill };
}

async function surroundings(url: string): Promise<MessagingContext> {
  const fabric = nodeFabric(url, 0);
  cleanups.push(() => fabric[Symbol.asyncDispose]());
  const context = new MessagingContext({ world: 'nodes', secret: Buffer.from('of the nodes'), ...fabric.options });
  cleanups.push(() => context.close());
  return context;
}

async function ipcUrl(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-loss-'));
  cleanups.push(() => rm(folder, { recursive: true }));
  return `ipc://${join(folder, 'router')}`;
}

const endpoints = [
  { name: 'tcp', urlOf: async () => 'tcp://127.0.0.1:*' },
  { name: 'ipc', urlOf: ipcUrl },
  { name: 'fabric over tcp', urlOf: async () => 'fabric://tcp' },
  { name: 'fabric over shm', urlOf: async () => 'fabric://shm', missing: shmUnavailable() },
];

describe.each(endpoints)('over $name', ({ urlOf, missing }) => {
  it('a dealer whose router is killed is not connected, tries for reconnectMs, and then says so', async (test) => {
    if (missing !== undefined) test.skip(missing);
    const url = await urlOf();
    const router = await end('router', url);
    const dealer = new Dealer(await surroundings(url), { address: 7n, limits: { reconnectMs: 500 } });
    cleanups.push(() => dealer.close({ timeoutMs: 0 }));
    await dealer.connect(router.line.url);
    expect(dealer.connected).toBe(true);
    await router.kill();
    await expect.poll(() => dealer.connected).toBe(false);
    await expect(dealer.receive()).rejects.toMatchObject({
      code: 'peer-lost',
      message: expect.stringMatching(/could not reconnect within 500 ms/),
    });
  });

  it('a router does not list a dealer that was killed, and nobody had to send to it', async (test) => {
    if (missing !== undefined) test.skip(missing);
    const url = await urlOf();
    const events: PeerEvent['state'][] = [];
    const router = new Router(await surroundings(url), { onPeer: ({ state }) => events.push(state) });
    cleanups.push(() => router.close({ timeoutMs: 0 }));
    const dealer = await end('dealer', await router.bind(url));
    expect(router.peers).toEqual([7n]);
    await dealer.kill();
    await expect.poll(() => router.peers).toEqual([]);
    expect(events).toEqual(['connected', 'lost']);
  });
});
