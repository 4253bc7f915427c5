/** A kind of task of one's own: ByteScheduler over HTTP, for a parameter server that Shoal does not know.
 *
 *      backward: layer 5 … 0 ready ─▶ Core: parts, by priority, within the credit ─▶ PUT /layer?offset ─▶ sum ─▶ weights
 *
 *      npx tsx examples/bring-your-own/transport.ts
 *
 *  Layer 0, which the next step needs first, is ready last. Its parts overtake the others': it arrives early. Takes about 1 s. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Core, Task, type Part, type TaskOptions } from 'shoal/scheduler';

const layers = 6;
const elements = 32 * 1024;

/** The server: adds what it gets to what it has, and answers with the sum. It takes time, like a network. */
const parameters = Array.from({ length: layers }, () => new Float32Array(elements));
const server = createServer((request, response) => void add(request, response));

async function add(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body = await bodyOf(request);
  const { pathname, searchParams } = new URL(request.url ?? '/', 'http://localhost');
  const offset = Number(searchParams.get('offset')) / 4;
  const sum = parameters[Number(pathname.slice(1))].subarray(offset, offset + body.length);
  body.forEach((value, i) => (sum[i] += value));
  setTimeout(() => response.end(Buffer.from(sum.buffer, sum.byteOffset, sum.byteLength)), 5);
}

server.listen(0, '127.0.0.1');
await new Promise((resolve) => server.once('listening', resolve));
const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

async function bodyOf(request: IncomingMessage): Promise<Float32Array> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return new Float32Array(Uint8Array.from(Buffer.concat(chunks)).buffer);
}

interface PushPullOptions extends TaskOptions {
  readonly gradient: Float32Array;
  readonly weights: Float32Array;
  /** Position in the layer, in bytes. */
  readonly offset: number;
}

/** Sends a gradient and receives the sum into the weights: the whole kind of task. */
class PushPull extends Task {
  readonly #options: PushPullOptions;
  readonly #given = new AbortController();

  constructor(options: PushPullOptions) {
    super(options);
    this.#options = options;
  }

  /** The same for a range of the layer. */
  protected part({ offset, bytes }: Part): PushPull {
    const { onEnd: _, gradient, weights, ...rest } = this.#options;
    const [from, to] = [offset / 4, (offset + bytes) / 4];
    return new PushPull({ ...rest, bytes, offset, gradient: gradient.subarray(from, to), weights: weights.subarray(from, to) });
  }

  /** The core has given it credit: it must lead to `notifyFinish`. */
  protected onDo(): void {
    this.#transfer().then(() => this.notifyFinish(), (error: unknown) => this.notifyFinish(error)); // prettier-ignore
  }

  /** It has failed, timed out or been given up. */
  protected override onAbandon(): void {
    this.#given.abort();
  }

  async #transfer(): Promise<void> {
    const { name, offset, gradient, weights } = this.#options;
    starts.push(name);
    const body = Buffer.from(gradient.buffer, gradient.byteOffset, gradient.byteLength);
    const response = await fetch(`${origin}/${name}?offset=${offset}`, { method: 'PUT', body, signal: this.#given.signal });
    weights.set(new Float32Array(await response.arrayBuffer()));
  }
}

/** Layers of the parts, in the order in which they started; and of layers, as they have arrived. */
const starts: string[] = [];
const arrived: number[] = [];
const core = new Core({ creditBytes: 64 * 1024, partitionBytes: 16 * 1024 });
core.start();

/** One step: gradients become ready from the last layer to the first. */
async function step(): Promise<Float32Array[]> {
  const weights = Array.from({ length: layers }, () => new Float32Array(elements));
  const ends = weights.map(async (own, layer) => {
    await new Promise((resolve) => setTimeout(resolve, 4 * (layers - layer))); // the backward pass
    const gradient = new Float32Array(elements).fill(layer + 1);
    const bytes = gradient.byteLength;
    const whole = { name: String(layer), operation: 'push_pull', bytes, unitBytes: 4, priority: layer, link: 'server', offset: 0 };
    await new Promise<void>((resolve, reject) => {
      core.post(new PushPull({ ...whole, gradient, weights: own, onEnd: (error) => (error ? reject(error) : resolve()) }));
    });
    arrived.push(layer);
  });
  await Promise.all(ends);
  return weights;
}

const weights = await step();
await core.shutdown('drain');
server.close();
server.closeAllConnections();
const right = weights.every((values, layer) => values.every((value) => value === layer + 1));
console.log(`parts started: ${starts.join(' ')}`);
console.log(`layers arrived: ${arrived.join(' ')}; layer 0, ready last, was number ${arrived.indexOf(0) + 1} of ${layers}`);
console.log(right ? 'every weight is the sum' : 'wrong sums');
process.exitCode = right && arrived.indexOf(0) < layers - 1 ? 0 : 1;
