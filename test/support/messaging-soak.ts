/** Random faults under messages between real processes: nodes are killed and started again, stopped and continued, and their
 *  connections cut. Nodes check that each message arrives once and in order (fixtures/messaging-soak-node.ts). */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { seededRandom } from '../../src/base/random.ts';
import { MessagingContext, Router } from '../../src/messaging/index.ts';
import { nodeFabric } from '../fixtures/messaging-fabric.ts';
import { fixtureCommand } from './fixtures.ts';

const nodes = 3;
/** Limit that catches hangs. */
const patienceMs = 120_000;
type Lives = Record<string, Record<string, number>>;

export interface SoakOptions {
  /** Address to bind. */
  readonly url: string;
  readonly seed: number;
  /** Number of faults, unless `seconds` is given. */
  readonly faults: number;
  readonly seconds?: number;
}

export interface SoakResult {
  readonly faults: Record<string, number>;
  /** Number of messages that the nodes alive at the end have received. */
  readonly received: number;
}

/** @throws Error when a node has seen a message twice, late or never, or nothing moves any more. */
export async function soak({ url: wanted, seed, faults, seconds }: SoakOptions): Promise<SoakResult> {
  const random = seededRandom(seed);
  await using fabric = nodeFabric(wanted, 0);
  await using context = new MessagingContext({ world: 'nodes', secret: Buffer.from('of the nodes'), ...fabric.options });
  const lost: string[] = [];
  const onUndeliverable = (_: unknown, { message }: Error): void => void lost.push(message);
  await using router = new Router(context, { addresses: [], limits: { queueMessages: 1_000_000, queueBytes: 2 ** 31 }, onUndeliverable });
  await using proxy = await Proxy.to(await router.bind(wanted));
  const living = Array.from({ length: nodes }, (_, id) => new SoakNode(proxy.url, id, 0));
  const done: Record<string, number> = {};
  const endMs = seconds === undefined ? Infinity : systemClock.now() + seconds * 1000;
  try {
    await Promise.all(living.map((node) => node.connected()));
    for (let k = 0; k < faults && systemClock.now() < endMs; k++) {
      const victim = random.integer(nodes);
      const fault = (['kill', 'stop', 'cut', 'cut'] as const)[random.integer(proxy.cuts ? 4 : 2)];
      done[fault] = (done[fault] ?? 0) + 1;
      await sleep(systemClock, random.integer(150));
      if (fault === 'kill') {
        await living[victim].kill();
        living[victim] = new SoakNode(proxy.url, victim, living[victim].life + 1);
      } else if (fault === 'stop') {
        living[victim].child.kill('SIGSTOP');
        await sleep(systemClock, random.integer(400));
        living[victim].child.kill('SIGCONT');
      } else proxy.cut(random.integer(4) === 0);
      // Sometimes the next fault comes before this one is over.
      if (random.integer(3) > 0) await progress(living);
    }
    await progress(living);
    for (const { child } of living) child.stdin?.write('enough\n');
    const received = await settled(living);
    if (lost.length > 0) throw new Error(`undeliverable: ${lost[0]}`);
    return { faults: done, received };
  } finally {
    await Promise.all(living.map((node) => node.kill()));
  }
}

/** Resolves when every node has received from every other. */
async function progress(living: readonly SoakNode[]): Promise<void> {
  const before = living.map((node) => living.map((other) => node.next(other)));
  await until(living, 'nothing moves', () =>
    living.every((node, k) => living.every((other, m) => node === other || node.next(other) > before[k][m])),
  );
}

/** Resolves when all messages to living nodes have arrived. @returns their number. */
async function settled(living: readonly SoakNode[]): Promise<number> {
  await until(living, 'messages are missing', () =>
    living.every((node) => living.every((other) => node === other || node.next(other) === other.sentTo(node))),
  );
  return living.reduce((sum, node) => sum + living.reduce((all, other) => all + (node === other ? 0 : node.next(other)), 0), 0);
}

async function until(living: readonly SoakNode[], failure: string, done: () => boolean): Promise<void> {
  const deadlineMs = systemClock.now() + patienceMs;
  while (!done()) {
    for (const node of living) node.check();
    if (systemClock.now() > deadlineMs) throw new Error(`${failure}: ${JSON.stringify(living.map(({ last }) => last))}`);
    await sleep(systemClock, 20);
  }
}

interface Line {
  readonly connected?: number;
  readonly got?: Lives;
  readonly sent?: Record<string, number>;
}

class SoakNode {
  readonly child: ChildProcess;
  readonly id: number;
  readonly life: number;
  last: Line = {};
  #connected = false;
  #stderr = '';
  #killed = false;

  constructor(url: string, id: number, life: number) {
    this.id = id;
    this.life = life;
    const [program, ...args] = fixtureCommand('messaging-soak-node');
    this.child = spawn(program, [...args, url, ...[id, nodes, life].map(String)], { stdio: ['pipe', 'pipe', 'pipe'] });
    this.child.stdin?.on('error', () => undefined);
    this.child.stderr?.setEncoding('utf8').on('data', (text: string) => (this.#stderr += text));
    createInterface({ input: this.child.stdout! }).on('line', (text) => {
      const line = JSON.parse(text) as Line;
      if (line.connected === undefined) this.last = line;
      else this.#connected = true;
    });
  }

  /** Resolves when the router has answered the node. */
  async connected(): Promise<void> {
    while (!this.#connected) {
      this.check();
      await sleep(systemClock, 10);
    }
  }

  /** The number that is due of the other's present life. */
  next(other: SoakNode): number {
    return this.last.got?.[other.id]?.[other.life] ?? 0;
  }

  sentTo(other: SoakNode): number {
    return this.last.sent?.[other.id] ?? -1;
  }

  check(): void {
    if (this.#killed || (this.child.exitCode === null && this.child.signalCode === null)) return;
    throw new Error(`node ${this.id} has ended (${this.child.exitCode ?? this.child.signalCode}): ${this.#stderr}`);
  }

  async kill(): Promise<void> {
    this.#killed = true;
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    this.child.kill('SIGKILL');
    await once(this.child, 'exit');
  }
}

/** A proxy between nodes and the router, which cuts connections without a word. */
class Proxy implements AsyncDisposable {
  readonly url: string;
  /** True if it is really in between. */
  readonly cuts: boolean;
  readonly #server: net.Server;
  readonly #sockets = new Set<net.Socket>();

  private constructor(url: string, cuts: boolean, server: net.Server) {
    this.url = url;
    this.cuts = cuts;
    this.#server = server;
  }

  /** Makes a proxy in front of a TCP endpoint, of ZeroMQ or a fabric; other endpoints are reached directly. */
  static async to(url: string): Promise<Proxy> {
    const found = /tcp(?:%3A|:)(?:%2F|\/){2}127\.0\.0\.1(?:%3A|:)(\d+)/.exec(url);
    const server = net.createServer({ noDelay: true }, (near) => {
      const far = net.connect({ port: Number(found?.[1]), host: '127.0.0.1', noDelay: true });
      near.pipe(far).pipe(near);
      for (const [one, other] of [
        [near, far],
        [far, near],
      ]) {
        one.on('error', () => undefined).on('close', () => other.destroy());
      }
    });
    if (found === null) return new Proxy(url, false, server);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as net.AddressInfo;
    const proxy = new Proxy(url.replace(found[0], found[0].replace(found[1], String(port))), true, server);
    server.on('connection', (near) => {
      proxy.#sockets.add(near);
      near.once('close', () => proxy.#sockets.delete(near));
    });
    return proxy;
  }

  cut(all: boolean): void {
    const sockets = [...this.#sockets];
    // Node.js 20 loses the handle of a socket that is reset while its end is on its way, and then the process does not exit.
    for (const socket of all ? sockets : sockets.slice(0, 1)) void (socket.writableEnded ? socket.destroy() : socket.resetAndDestroy());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut(true);
    if (this.#server.listening) await new Promise((resolve) => this.#server.close(resolve));
  }
}
