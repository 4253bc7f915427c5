/** Five real processes under load, one of them killed: the others lose nothing, and it is reachable again when it comes
 *  back under its address. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, describe, expect, it } from 'vitest';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { shmUnavailable } from '../../src/fabric/providers/shm.ts';
import { makeAddress, MessagingContext, Msg, Router } from '../../src/messaging/index.ts';
import { nodeFabric } from '../fixtures/messaging-fabric.ts';
import { fixtureCommand } from '../support/fixtures.ts';

const nodes = 5;
const victim = 3;
const count = 1200;

class Node {
  readonly child: ChildProcess;
  readonly lines: Record<string, unknown>[] = [];
  /** True when its process has ended and all its lines are here. */
  #closed = false;
  #wake: (() => void) | undefined;

  constructor(url: string, id: number, messages: number) {
    const [program, ...args] = fixtureCommand('messaging-node');
    this.child = spawn(program, [...args, url, String(id), String(nodes), String(messages)], { stdio: ['ignore', 'pipe', 'inherit'] });
    createInterface({ input: this.child.stdout! }).on('line', (line) => {
      this.lines.push(JSON.parse(line) as Record<string, unknown>);
      this.#wake?.();
    });
    this.child.once('close', () => {
      this.#closed = true;
      this.#wake?.();
    });
  }

  async line(key: string): Promise<Record<string, unknown>> {
    for (;;) {
      const found = this.lines.find((line) => key in line);
      if (found !== undefined) return found;
      if (this.#closed)
        throw new Error(`ended (${this.child.exitCode ?? this.child.signalCode}) without {${key}}: ${JSON.stringify(this.lines.at(-1))}`);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  received(id: number): number {
    const last = this.lines.findLast((line) => 'from' in line);
    return (last?.from as Record<string, number> | undefined)?.[id] ?? 0;
  }
}

const started: Node[] = [];
const folders: string[] = [];
afterEach(async () => {
  for (const { child } of started.splice(0)) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true });
});

function start(url: string, id: number, messages: number): Node {
  const node = new Node(url, id, messages);
  started.push(node);
  return node;
}

const addressOf = (id: number): bigint => makeAddress({ group: 0, id, role: 2 });
const stub = makeAddress({ group: 0, id: 0, role: 3 });

interface Endpoint {
  readonly name: string;
  url(): Promise<string>;
  readonly missing?: string | undefined;
}

const endpoints: readonly Endpoint[] = [
  { name: 'tcp', url: async () => 'tcp://127.0.0.1:*' },
  {
    name: 'ipc',
    url: async () => {
      const folder = await mkdtemp(join(tmpdir(), 'shoal-nodes-'));
      folders.push(folder);
      return `ipc://${join(folder, 'router')}`;
    },
  },
  { name: 'fabric over tcp', url: async () => 'fabric://tcp' },
  { name: 'fabric over shm', url: async () => 'fabric://shm', missing: shmUnavailable() },
  { name: 'fabric over libfabric', url: async () => 'fabric://libfabric', missing: libfabricUnavailable() },
];

describe.each(endpoints)('$name', ({ url: urlOf, missing }) => {
  it('kill -9 of one of five processes under load', async (context) => {
    if (missing !== undefined) context.skip(missing);
    const wanted = await urlOf();
    await using fabric = nodeFabric(wanted, 0);
    await using surroundings = new MessagingContext({ world: 'nodes', secret: Buffer.from('of the nodes'), ...fabric.options });
    // The queue for the dead node is bounded, so messages to it may be refused; no others may.
    const undeliverable = new Set<bigint>();
    await using router = new Router(surroundings, {
      addresses: [stub],
      limits: { queueMessages: 100_000 },
      onUndeliverable: ({ destination }) => undeliverable.add(destination),
    });
    const url = await router.bind(wanted);
    const all = Array.from({ length: nodes }, (_, id) => start(url, id, count));
    const survivors = all.filter((_, id) => id !== victim);
    await all[victim].line('half');
    all[victim].child.kill('SIGKILL');
    await once(all[victim].child, 'exit');

    for (const node of survivors) {
      await node.line('half');
      for (const [id, other] of all.entries()) {
        if (id === victim || other === node) continue;
        await expect.poll(() => node.child.exitCode ?? node.received(id), { timeout: 60_000, interval: 20 }).toBeGreaterThanOrEqual(count);
      }
    }

    // The node comes back under its address, and is asked for its identity.
    const again = start(url, victim, 0);
    await again.line('connected');
    const question = new Msg(stub, addressOf(victim));
    question.type = 1;
    question.addFrame('alive?');
    router.send(question);
    const answer = await router.receive();
    expect([answer.source, answer.frameStr()]).toEqual([addressOf(victim), 'alive?']);

    for (const id of all.keys()) {
      const stop = new Msg(stub, addressOf(id));
      stop.type = 2;
      router.send(stop);
    }
    for (const [id, node] of all.entries()) {
      if (id === victim) continue;
      const { from } = (await node.line('done')) as { from: Record<string, number> };
      for (let other = 0; other < nodes; other++) {
        if (other !== id && other !== victim) expect([id, other, from[other]]).toEqual([id, other, count]);
      }
    }
    expect([...undeliverable].filter((address) => address !== addressOf(victim))).toEqual([]);
    await again.line('done');
  });
});
