/** One comparison of the messaging benchmark: starts the other process, measures the named subjects in turns, prints medians as
 *  JSON. Subjects that this machine cannot have are left out. */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Worker } from 'node:worker_threads';
import * as zmq from 'zeromq';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import { fabricProviders } from '../../src/fabric/providers.ts';
import { deriveCurveKeys } from '../../src/messaging/backends/zeromq/curve-keys.ts';
import { Dealer, MessagingContext, Msg, Router } from '../../src/messaging/index.ts';
import { largeBytes, smallBytes, type Sample } from './comparison.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { rounds: { type: 'string', default: '7' }, scale: { type: 'string', default: '1' } },
});
const rounds = Number(values.rounds);
const scale = Number(values.scale);
/** Number of rounds until the compiler has seen everything. */
const warmUps = 2;
const secret = Buffer.from('bench');
const times = (count: number): number => Math.max(3, Math.round(count * scale));

interface Subject {
  /** Sends `count` messages and returns when the last was answered. */
  stream?(bytes: number, count: number): Promise<void>;
  roundTrip(bytes: number): Promise<number>;
}

const closers: (() => Promise<unknown>)[] = [];
const subjects = new Map<string, Subject>();
if (positionals.includes('inproc')) {
  for (const [name, subject] of Object.entries(await threadSubjects())) subjects.set(name, subject);
} else {
  for (const [name, url] of Object.entries(await startPeer())) {
    subjects.set(name, name.startsWith('zeromq') ? rawSubject(name, url) : await messagingSubject(name, url));
  }
}

const samples = new Map<string, number[]>();
let checksum = 0;
for (let round = -warmUps; round < rounds; round++) {
  for (const [name, { stream, roundTrip }] of subjects) {
    for (const bytes of [smallBytes, largeBytes]) {
      if (stream !== undefined) {
        const count = times(bytes === smallBytes ? 100_000 : 400);
        const startMs = systemClock.now();
        await stream(bytes, count);
        sample(round, `${name}|${bytes}|rate`, count / ((systemClock.now() - startMs) / 1000));
      } else if (bytes === largeBytes) continue;
      const count = times(bytes === smallBytes ? 1500 : 50);
      const startMs = systemClock.now();
      for (let k = 0; k < count; k++) checksum = (checksum + (await roundTrip(bytes))) >>> 0;
      sample(round, `${name}|${bytes}|roundTripUs`, ((systemClock.now() - startMs) / count) * 1000);
    }
  }
}
for (const close of closers) await close();

const results = [...samples].map(([key, all]): Sample => {
  const [subject, bytes, what] = key.split('|') as [string, string, Sample['what']];
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
console.log(JSON.stringify({ samples: results, checksum }));

/** @returns the endpoints of the subjects that the other process has. */
async function startPeer(): Promise<Record<string, string>> {
  const script = fileURLToPath(new URL('./peer.ts', import.meta.url));
  const peer = spawn(process.execPath, ['--import', 'tsx', script, ...positionals], { stdio: ['pipe', 'pipe', 'inherit'] });
  closers.push(async () => peer.stdin.end());
  const { value } = await createInterface({ input: peer.stdout })[Symbol.asyncIterator]().next();
  return JSON.parse(value as string) as Record<string, string>;
}

function sample(round: number, key: string, value: number): void {
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
  const bodies = new Map(
    [smallBytes, largeBytes].map((bytes) => [bytes, [Buffer.alloc(bytes), Buffer.alloc(bytes).fill(1, 0, 1)] as const]),
  );
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

/** A subject over dealers. Frames are not changed, so they may be sent again and again. */
function dealerSubject(dealer: Dealer): Subject {
  const frames = new Map([smallBytes, largeBytes].map((bytes) => [bytes, new Uint8Array(bytes)]));
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
        dealer.send(message(bytes, 0));
      }
      await dealer.writable();
      dealer.send(message(bytes, 1));
      await dealer.receive();
    },
    roundTrip: async (bytes) => {
      dealer.send(message(bytes, 1));
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
  const frame = new Uint8Array(smallBytes);
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
