/** Rate and latency of messages beside what they are built on, in one interleaved run: dealers and routers over tcp beside
 *  the zeromq package, fabric beside tcp, inproc beside postMessage.
 *
 *    tsx bench/messaging/run.ts [--rounds 7] [--scale 1] [--out bench/results/messaging.json]
 *
 *  Rate: messages one way until a count is over, the last one answered. Latency: a round trip, one at a time. The raw
 *  programs do what the package's documentation shows: await each send, iterate over the socket. */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Worker } from 'node:worker_threads';
import * as zmq from 'zeromq';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { fabricProviders } from '../../src/fabric/providers.ts';
import { deriveCurveKeys } from '../../src/messaging/backends/curve-keys.ts';
import { Dealer, MessageType, MessagingContext, Msg, Router } from '../../src/messaging/index.ts';

/** Above the number of CPUs the machine was busy with other things. */
const loadBefore = os.loadavg()[0];
const { values } = parseArgs({
  options: { rounds: { type: 'string', default: '7' }, scale: { type: 'string', default: '1' }, out: { type: 'string' } },
});
const rounds = Number(values.rounds);
const scale = Number(values.scale);
const secret = Buffer.from('bench');
const small = 64;
const large = 2 ** 20;
const times = (count: number): number => Math.max(3, Math.round(count * scale));

interface Subject {
  /** Sends `count` messages and returns when the last was answered. */
  stream?(bytes: number, count: number): Promise<void>;
  roundTrip(bytes: number): Promise<number>;
}

const peer = spawn(process.execPath, ['--import', 'tsx', fileURLToPath(new URL('./peer.ts', import.meta.url))], {
  stdio: ['pipe', 'pipe', 'inherit'],
});
const endpoints = JSON.parse((await createInterface({ input: peer.stdout })[Symbol.asyncIterator]().next()).value as string) as Record<
  string,
  string
>;

const closers: (() => Promise<unknown>)[] = [];
const subjects = new Map<string, Subject>();
for (const [name, url] of Object.entries(endpoints)) {
  subjects.set(name, name.startsWith('zeromq') ? rawSubject(name, url) : await messagingSubject(name, url));
}
const { inproc, postMessage } = await threadSubjects();
subjects.set('inproc', inproc);
subjects.set('postMessage', postMessage);

const samples = new Map<string, number[]>();
let checksum = 0;
for (let round = -1; round < rounds; round++) {
  for (const [name, { stream, roundTrip }] of subjects) {
    for (const bytes of [small, large]) {
      if (stream !== undefined) {
        const count = times(bytes === small ? 30_000 : 200);
        const startMs = systemClock.now();
        await stream(bytes, count);
        sample(round, `${name}|${bytes}|rate`, count / ((systemClock.now() - startMs) / 1000));
      } else if (bytes === large) continue;
      const count = times(bytes === small ? 1500 : 50);
      const startMs = systemClock.now();
      for (let k = 0; k < count; k++) checksum = (checksum + (await roundTrip(bytes))) >>> 0;
      sample(round, `${name}|${bytes}|roundTripUs`, ((systemClock.now() - startMs) / count) * 1000);
    }
  }
}
for (const close of closers) await close();
peer.stdin.end();

const results = [...samples].map(([key, all]) => {
  const [subject, bytes, what] = key.split('|');
  const sorted = all.toSorted((a, b) => a - b);
  const round3 = (value: number): number => Number(value.toPrecision(3));
  return {
    subject,
    bytes: Number(bytes),
    what,
    median: round3(sorted[sorted.length >> 1]),
    min: round3(sorted[0]),
    max: round3(sorted.at(-1)!),
  };
});
const median = (subject: string, bytes: number, what: string): number =>
  results.find((each) => each.subject === subject && each.bytes === bytes && each.what === what)?.median ?? Number.NaN;
const ratio = (a: string, b: string, bytes: number, what: string): number =>
  Number((median(a, bytes, what) / median(b, bytes, what)).toPrecision(3));
const ratios: Record<string, number> = {};
for (const mode of ['curve', 'plain']) {
  for (const bytes of [small, large]) {
    ratios[`tcp ${mode}, ${bytes} B: rate over zeromq`] = ratio(`tcp ${mode}`, `zeromq ${mode}`, bytes, 'rate');
    ratios[`tcp ${mode}, ${bytes} B: latency over zeromq`] = ratio(`tcp ${mode}`, `zeromq ${mode}`, bytes, 'roundTripUs');
  }
}
ratios['inproc, 64 B: round trips over postMessage'] = ratio('postMessage', 'inproc', small, 'roundTripUs');
for (const name of subjects.keys()) {
  if (name.startsWith('fabric')) ratios[`${name}, 1 MiB: rate over tcp plain`] = ratio(name, 'tcp plain', large, 'rate');
}
const machine = { cpu: os.cpus()[0].model, cpus: os.availableParallelism(), node: process.version, kernel: os.release(), loadBefore };
const report = { machine, rounds, scale, checksum, ratios, results };
console.log(JSON.stringify(report, undefined, 2));
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);

function sample(round: number, key: string, value: number): void {
  // The first round warms up.
  if (round < 0) return;
  const all = samples.get(key);
  if (all === undefined) samples.set(key, [value]);
  else all.push(value);
}

function rawSubject(name: string, url: string): Subject {
  const { publicKey: curvePublicKey, secretKey: curveSecretKey } = deriveCurveKeys(secret, 'bench', 'dealer');
  const curveServerKey = deriveCurveKeys(secret, 'bench', 'router').publicKey;
  const security = name.endsWith('curve') ? { curveServerKey, curvePublicKey, curveSecretKey } : {};
  const socket = new zmq.Dealer({ sendHighWaterMark: 1000, linger: 0, ...security });
  socket.connect(url);
  closers.push(async () => socket.close());
  const bodies = new Map([small, large].map((bytes) => [bytes, [Buffer.alloc(bytes), Buffer.alloc(bytes).fill(1, 0, 1)] as const]));
  return {
    stream: async (bytes, count) => {
      const [silent, asking] = bodies.get(bytes)!;
      for (let k = 1; k < count; k++) await socket.send(silent);
      await socket.send(asking);
      await socket.receive();
    },
    roundTrip: async (bytes) => {
      await socket.send(bodies.get(bytes)![1]);
      const [body] = await socket.receive();
      return body.length;
    },
  };
}

async function messagingSubject(name: string, url: string): Promise<Subject> {
  const [kind, second] = name.split(' ');
  const changes: { encryption?: 'none' } = second === 'plain' ? { encryption: 'none' } : {};
  let fabric;
  if (kind === 'fabric') {
    const provider = fabricProviders.find((each) => each.name === second)!;
    const identity = { world: 'bench', rank: 2 };
    const made = provider.create({ identity, secret, clock: systemClock, random: systemRandom });
    closers.push(() => made.close());
    fabric = { fabric: { fabric: made, identity } };
  }
  const context = new MessagingContext({ world: 'bench', secret, ...changes, ...fabric });
  const dealer = new Dealer(context, { address: 1n });
  await dealer.connect(url);
  closers.unshift(async () => {
    await dealer.close();
    await context.close();
  });
  return dealerSubject(dealer);
}

/** Frames are not changed, so they may be sent again and again. */
function dealerSubject(dealer: Dealer): Subject {
  const frames = new Map([small, large].map((bytes) => [bytes, new Uint8Array(bytes)]));
  const message = (bytes: number, type: number): Msg => {
    const msg = new Msg(1n, 0n);
    msg.type = type;
    msg.addFrame(frames.get(bytes)!);
    return msg;
  };
  return {
    stream: async (bytes, count) => {
      for (let k = 1; k < count; k++) {
        await dealer.writable();
        dealer.send(message(bytes, MessageType.user));
      }
      await dealer.writable();
      dealer.send(message(bytes, MessageType.user + 1));
      await dealer.receive();
    },
    roundTrip: async (bytes) => {
      dealer.send(message(bytes, MessageType.user + 1));
      return (await dealer.receive()).frameSize();
    },
  };
}

async function threadSubjects(): Promise<{ inproc: Subject; postMessage: Subject }> {
  const context = new MessagingContext({ world: 'bench', secret: new Uint8Array(1) });
  const router = new Router(context);
  const url = await router.bind('inproc://bench');
  const code = `import(${JSON.stringify(import.meta.resolve('tsx/esm/api'))}).then(({ register }) => { register(); return import(${JSON.stringify(
    new URL('./thread.ts', import.meta.url).href,
  )}); });`;
  const thread = new Worker(code, { eval: true, workerData: url });
  let onAnswer: ((bytes: number) => void) | undefined;
  thread.on('message', (message: Uint8Array) => onAnswer?.(message.length));
  closers.push(async () => {
    await router.close();
    await context.close();
    await thread.terminate();
  });
  const frame = new Uint8Array(small);
  return {
    inproc: {
      roundTrip: async () => {
        const msg = new Msg(0n, 1n);
        msg.addFrame(frame);
        router.send(msg);
        return (await router.receive()).frameSize();
      },
    },
    postMessage: {
      roundTrip: () =>
        new Promise((resolve) => {
          onAnswer = resolve;
          thread.postMessage(frame);
        }),
    },
  };
}
